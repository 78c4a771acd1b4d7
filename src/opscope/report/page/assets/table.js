// A table that sorts, searches, filters and opens rows. Rows are made as they come into sight.
import { categoryColor } from "./data.js";
import { add, button, clear, el, nameOf } from "./dom.js";
import { formatBytes, formatCount, formatNs, formatShare, largestOf } from "./units.js";

const ROWS_AT_ONCE = 60;

// columns: {key, label, value(row), show(row) -> node or text, text: whether it is text, bar: whether shares are drawn, title}
// options: {rows, columns, sort: [key, descending], search(row) -> texts, groups: {label, of(row)}, open(row) -> node, name, id(row)}
export class DataTable {
    constructor(options) {
        this.options = options;
        [this.sortKey, this.descending] = options.sort;
        this.query = "";
        this.group = null;
        this.opened = new Set();
        this.largest = new Map();
        for (const column of options.columns) {
            if (column.bar)
                this.largest.set(
                    column.key,
                    largestOf(options.rows, (row) => Math.abs(column.value(row) ?? 0), 1e-30),
                );
        }
        this.texts = options.search ? new Map() : null;
        this.body = el("tbody");
        this.count = el("span", { class: "count", "aria-live": "polite" });
        this.head = el(
            "tr",
            null,
            options.columns.map((column) => this.heading(column)),
        );
        this.table = el(
            "table",
            { class: "data", "aria-label": options.name },
            el("thead", null, this.head),
            this.body,
        );
        this.more = el("div", { class: "more" });
        this.element = el(
            "div",
            { class: "table" },
            this.tools(),
            el("div", { class: "scroll" }, this.table),
            this.more,
        );
        this.watcher = new IntersectionObserver(
            (entries) => {
                if (entries.some((one) => one.isIntersecting)) this.extend();
            },
            { rootMargin: "400px" },
        );
        this.watcher.observe(this.more);
        this.table.addEventListener("keydown", (event) => this.onKey(event));
        this.refresh();
    }

    tools() {
        const parts = [];
        if (this.options.search) {
            this.input = el("input", {
                type: "search",
                placeholder: "search",
                "aria-label": `search ${this.options.name}`,
                on: {
                    input: () => {
                        this.query = this.input.value.toLowerCase();
                        this.refresh();
                    },
                },
            });
            parts.push(this.input);
        }
        if (this.options.groups) {
            const counts = new Map();
            for (const row of this.options.rows)
                counts.set(this.options.groups.of(row), (counts.get(this.options.groups.of(row)) || 0) + 1);
            this.chips = el("span", { class: "chips", role: "group", "aria-label": this.options.groups.label });
            for (const [group, count] of counts) {
                add(this.chips, [
                    button(
                        [group, el("small", null, ` ${count}`)],
                        () => this.filter(this.group === group ? null : group),
                        {
                            class: "chip",
                            "aria-pressed": "false",
                            data: { group },
                            style: { "--chip": categoryColor(group) },
                        },
                    ),
                ]);
            }
            if (counts.size > 1) parts.push(this.chips);
        }
        parts.push(this.count);
        return el("div", { class: "tools" }, parts);
    }

    heading(column) {
        const label = button(column.label, () => this.sort(column.key), { title: column.title });
        return el("th", { scope: "col", class: column.text ? "text" : "number", data: { key: column.key } }, label);
    }

    sort(key) {
        const column = this.options.columns.find((one) => one.key === key);
        this.descending = key === this.sortKey ? !this.descending : !column.text;
        this.sortKey = key;
        this.refresh();
    }

    filter(group) {
        this.group = group;
        for (const chip of this.chips ? this.chips.children : [])
            chip.setAttribute("aria-pressed", chip.dataset.group === group);
        this.refresh();
    }

    textOf(row) {
        if (!this.texts.has(row)) this.texts.set(row, this.options.search(row).filter(Boolean).join(" ").toLowerCase());
        return this.texts.get(row);
    }

    refresh() {
        const began = performance.now();
        const column = this.options.columns.find((one) => one.key === this.sortKey);
        const words = this.query.split(/\s+/).filter(Boolean);
        this.shown = this.options.rows.filter(
            (row) =>
                (this.group === null || this.options.groups.of(row) === this.group) &&
                words.every((word) => this.textOf(row).includes(word)),
        );
        const keys = new Map(this.shown.map((row) => [row, column.value(row)]));
        const way = this.descending ? -1 : 1;
        this.shown.sort((one, other) => {
            const [first, second] = [keys.get(one), keys.get(other)];
            if (first === null || first === undefined) return second === null || second === undefined ? 0 : 1;
            if (second === null || second === undefined) return -1;
            return first < second ? -way : first > second ? way : 0;
        });
        for (const cell of this.head.children) {
            cell.setAttribute(
                "aria-sort",
                cell.dataset.key === this.sortKey ? (this.descending ? "descending" : "ascending") : "none",
            );
        }
        clear(this.body);
        this.drawn = 0;
        this.extend();
        clear(this.count).append(
            this.shown.length === this.options.rows.length
                ? `${formatCount(this.options.rows.length)} ${this.options.rows.length === 1 ? "row" : "rows"}`
                : `${formatCount(this.shown.length)} of ${formatCount(this.options.rows.length)} rows`,
        );
        this.lastRefreshMs = performance.now() - began;
        this.element.dataset.refreshMs = this.lastRefreshMs.toFixed(1);
    }

    extend() {
        const next = this.shown.slice(this.drawn, this.drawn + ROWS_AT_ONCE);
        for (const row of next) {
            add(this.body, [this.row(row)]);
            if (this.opened.has(row)) add(this.body, [this.detail(row)]);
        }
        this.drawn += next.length;
        clear(this.more);
        if (this.drawn < this.shown.length) {
            add(this.more, [
                el(
                    "span",
                    { class: "printed note" },
                    `The first ${formatCount(this.drawn)} of ${formatCount(this.shown.length)} rows are printed.`,
                ),
                button(`show all ${formatCount(this.shown.length)} rows`, () => {
                    while (this.drawn < this.shown.length) this.extend();
                }),
            ]);
        }
    }

    row(row) {
        const cells = this.options.columns.map((column) => this.cell(column, row));
        const attributes = this.options.open
            ? {
                  class: "row",
                  tabindex: 0,
                  "aria-expanded": this.opened.has(row),
                  on: { click: (event) => this.onClick(event, row) },
              }
            : { class: "row" };
        const element = el("tr", { ...attributes, data: { id: this.options.id ? this.options.id(row) : null } }, cells);
        element.opscopeRow = row;
        return element;
    }

    cell(column, row) {
        const cell = cellOf(column, row);
        if (column.bar) {
            const value = column.value(row) ?? 0;
            const share = Math.abs(value) / this.largest.get(column.key);
            const width = `${(100 * share).toFixed(2)}%`;
            add(cell, [el("span", { class: value < 0 ? "bar less" : "bar", style: { width }, "aria-hidden": "true" })]);
        }
        return cell;
    }

    onClick(event, row) {
        if (event.target.closest("a, button, input, .detail") || String(getSelection())) return;
        this.toggle(row);
    }

    toggle(row, open = !this.opened.has(row)) {
        const element = [...this.body.children].find((one) => one.opscopeRow === row);
        if (open === this.opened.has(row)) return element;
        if (open) this.opened.add(row);
        else this.opened.delete(row);
        if (element) {
            element.setAttribute("aria-expanded", open);
            if (open) element.after(this.detail(row));
            else if (element.nextElementSibling) element.nextElementSibling.remove();
        }
        return element;
    }

    detail(row) {
        return el(
            "tr",
            { class: "opened" },
            el("td", { colspan: this.options.columns.length }, el("div", { class: "detail" }, this.options.open(row))),
        );
    }

    // Show a row of another view's: without filters, opened, in sight.
    reveal(row) {
        if (this.input) this.input.value = "";
        this.query = "";
        if (this.options.groups) this.filter(null);
        else this.refresh();
        while (this.drawn < this.shown.length && this.shown.indexOf(row) >= this.drawn) this.extend();
        const element = this.toggle(row, true);
        if (element) {
            element.focus({ preventScroll: true });
            element.scrollIntoView({ block: "center" });
        }
    }

    onKey(event) {
        const row = event.target.closest("tr.row");
        if (!row || event.target !== row) return;
        const rows = [...this.body.querySelectorAll("tr.row")];
        const place = rows.indexOf(row);
        const target = {
            ArrowDown: rows[place + 1],
            ArrowUp: rows[place - 1],
            Home: rows[0],
            End: rows[rows.length - 1],
        }[event.key];
        if (target) {
            event.preventDefault();
            target.focus();
            return;
        }
        if (event.key === "Enter" || event.key === " ") {
            event.preventDefault();
            this.toggle(row.opscopeRow);
        }
    }
}

// A name with the colour of what it is.
export const colouredName = (color, name, attributes) => [
    el("span", { class: "swatch", style: { "background-color": color } }),
    nameOf(name, attributes),
];

// A table of a few rows, as they are.
export function plainTable(name, columns, rows) {
    const head = columns.map((column) =>
        el("th", { scope: "col", class: column.text ? "text" : "number", title: column.title }, column.label),
    );
    return tableOf(
        { class: "data plain", "aria-label": name },
        head,
        rows.map((row) => columns.map((column) => cellOf(column, row))),
    );
}

// A table with a line of headings, and cells.
export function tableOf(attributes, head, rows) {
    const body = rows.map((cells) => el("tr", null, cells));
    return el(
        "div",
        { class: "scroll" },
        el("table", attributes, el("thead", null, el("tr", null, head)), el("tbody", null, body)),
    );
}

function cellOf(column, row) {
    const value = column.value(row);
    const content = column.show ? column.show(row) : column.format ? column.format(value) : value;
    const data = { key: column.key, value: column.text ? null : (value ?? "") };
    return el("td", { class: column.text ? "text" : "number", data }, content ?? "-");
}

// Columns by what they hold: of each row what its key names, unless `more` says otherwise.
const formatted = (format) => (key, label, more) => ({ key, label, value: (row) => row[key], format, ...more });
export const timeColumn = formatted(formatNs);
export const countColumn = formatted(formatCount);
export const sizeColumn = formatted(formatBytes);
export const shareColumn = formatted((value) => formatShare(value, 1));
export const textColumn = (key, label, value = (row) => row[key], show = undefined, more = {}) => ({
    key,
    label,
    text: true,
    value,
    show,
    ...more,
});
export const nameColumn = (key, label, value = (row) => row[key] || "-", more = {}) =>
    textColumn(key, label, value, (row) => nameOf(value(row)), more);
