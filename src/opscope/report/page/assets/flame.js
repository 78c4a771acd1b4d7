// Where time was caused: a tree by operator nesting, module or Python frame, and categories by area.
import { app } from "./app.js";
import { onColor, Surface } from "./canvas.js";
import { chart, plain, tip } from "./charts.js";
import { categoryColor, hashed, sum } from "./data.js";
import { add, button, choice, clear, el, facts, note, printable, section, tooltip } from "./dom.js";
import { kernelCategory, usersOf } from "./operators.js";
import { formatCount, formatNs, formatShare } from "./units.js";

const FLAME_ROW = 18;
const MOST_FLAME_ROWS = 400;

class FlameView {
    constructor(data, entry, measure) {
        this.data = data;
        this.entry = entry;
        this.names = data.trace.names;
        this.focus = -1;
        this.selected = -1;
        this.query = "";
        this.kernels = new Map(data.document.kernels.map((row) => [row.name, row]));
        this.users = usersOf(data);
        this.depth = new Int32Array(entry.parent.length);
        this.children = Array.from({ length: entry.parent.length + 1 }, () => []);
        entry.parent.forEach((parent, node) => {
            this.depth[node] = parent < 0 ? 0 : this.depth[parent] + 1;
            this.children[parent + 1].push(node);
        });
        this.surface = new Surface(
            "flame view: arrow keys go from node to node, Enter zooms into one, Escape out again",
            (...context) => this.draw(...context),
        );
        this.path = el("div", { class: "path" });
        this.detail = el("div", { class: "slice detail", "aria-live": "polite" });
        this.element = el("div", { class: "flame" }, this.path, this.surface.canvas, this.detail);
        this.listen(this.surface.canvas);
        this.measureBy(measure);
    }

    measureBy(measure) {
        this.measure = measure;
        const own = this.entry[measure];
        this.total = Float64Array.from(own);
        for (let node = own.length - 1; node >= 0; node -= 1)
            if (this.entry.parent[node] >= 0) this.total[this.entry.parent[node]] += this.total[node];
        this.whole = sum(this.children[0].map((node) => this.total[node]));
        for (const nodes of this.children) nodes.sort((one, other) => this.total[other] - this.total[one]);
        this.zoomTo(-1);
    }

    nameOf(node) {
        const name = this.names[this.entry.name[node]];
        const text = this.data.shortOf.get(name) || name;
        return this.entry.merged[node] ? `${formatCount(this.entry.merged[node])} smaller ones` : text;
    }

    zoomTo(node) {
        this.focus = node;
        this.place();
        const path = [];
        for (let at = node; at >= 0; at = this.entry.parent[at]) path.unshift(at);
        add(clear(this.path), [
            button(`all ${formatNs(this.whole)}`, () => this.zoomTo(-1), { class: "crumb" }),
            path.map((one) => [
                " › ",
                button(this.nameOf(one).slice(0, 60), () => this.zoomTo(one), { class: "crumb" }),
            ]),
        ]);
        const deepest = this.boxes.reduce((most, box) => Math.max(most, box.row), 0);
        this.surface.canvas.style.height = `${(deepest + 1) * FLAME_ROW + 4}px`;
        this.surface.redraw();
    }

    // Where each node lies: those around the focus fill the width, those below divide it by their time.
    place() {
        this.boxes = [];
        const above = [];
        for (let at = this.focus; at >= 0; at = this.entry.parent[at]) above.unshift(at);
        above.forEach((node, row) => this.boxes.push({ node, row, left: 0, width: 1 }));
        const open = [{ node: this.focus, left: 0, row: above.length }];
        const whole = this.focus < 0 ? this.whole : this.total[this.focus];
        while (open.length) {
            const { node, left, row } = open.pop();
            let at = left;
            for (const child of this.children[node + 1]) {
                const width = whole ? this.total[child] / whole : 0;
                if (width < 0.0004 || row >= MOST_FLAME_ROWS) break;
                this.boxes.push({ node: child, row, left: at, width });
                open.push({ node: child, left: at, row: row + 1 });
                at += width;
            }
        }
    }

    // A kernel has the colour of the operator that launches it, here or where it is launched most.
    colorOf(node) {
        const { categoryOf } = this.data;
        const name = this.names[this.entry.name[node]];
        const kernel = this.kernels.get(name);
        if (!kernel) return categoryOf.has(name) ? categoryColor(categoryOf.get(name)) : hashed(name);
        for (let at = this.entry.parent[node]; at >= 0; at = this.entry.parent[at]) {
            const category = categoryOf.get(this.names[this.entry.name[at]]);
            if (category) return categoryColor(category);
        }
        return categoryColor(kernelCategory(this.data, kernel, this.users));
    }

    draw(context, width, height, colors) {
        for (const box of this.boxes) {
            const [x, wide, y] = [box.left * width, Math.max(box.width * width - 0.6, 0.4), box.row * FLAME_ROW];
            const name = this.nameOf(box.node);
            context.globalAlpha = this.query && !name.toLowerCase().includes(this.query) ? 0.18 : 1;
            context.fillStyle = this.colorOf(box.node);
            context.fillRect(x, y, wide, FLAME_ROW - 1.5);
            if (wide > 24) this.surface.text(name, x, y + FLAME_ROW / 2 - 0.5, wide, onColor(context.fillStyle));
            if (box.node === this.selected) {
                context.globalAlpha = 1;
                context.strokeStyle = colors.text;
                context.lineWidth = 2;
                context.strokeRect(x + 1, y + 1, Math.max(wide - 2, 1), FLAME_ROW - 3);
            }
        }
        context.globalAlpha = 1;
    }

    hit(event) {
        const row = Math.floor(event.offsetY / FLAME_ROW);
        const at = event.offsetX / this.surface.width;
        return this.boxes.find((box) => box.row === row && at >= box.left && at < box.left + box.width);
    }

    about(node) {
        return [
            ["time", `${formatNs(this.total[node])} (${formatShare(this.total[node], this.whole)})`],
            ["its own", formatNs(this.entry[this.measure][node])],
            ["times", formatCount(this.entry.calls[node])],
        ];
    }

    select(node) {
        this.selected = node;
        clear(this.detail);
        if (node >= 0) {
            const name = this.names[this.entry.name[node]];
            const row = this.data.categoryOf.has(name)
                ? "operators"
                : this.data.document.kernels.some((one) => one.name === name)
                  ? "kernels"
                  : null;
            add(this.detail, [
                el("strong", null, this.nameOf(node)),
                facts(this.about(node)),
                el(
                    "p",
                    { class: "actions" },
                    button("zoom into it", () => this.zoomTo(node)),
                    row ? button("open its row", () => app.reveal(this.data, row, name)) : null,
                ),
            ]);
        }
        this.surface.redraw();
    }

    listen(canvas) {
        canvas.addEventListener("mousemove", (event) => {
            const box = this.hit(event);
            canvas.style.cursor = box ? "pointer" : "default";
            if (box) tooltip.show(event.clientX, event.clientY, tip(this.nameOf(box.node), this.about(box.node)));
            else tooltip.hide();
        });
        canvas.addEventListener("mouseleave", () => tooltip.hide());
        canvas.addEventListener("click", (event) => {
            const box = this.hit(event);
            if (box) {
                this.select(box.node);
                this.zoomTo(box.node === this.focus ? this.entry.parent[box.node] : box.node);
            }
        });
        canvas.addEventListener("keydown", (event) => {
            const node = this.selected;
            const siblings = node < 0 ? [] : this.children[this.entry.parent[node] + 1];
            const beside = (way) => siblings[siblings.indexOf(node) + way];
            const first = this.children[this.focus + 1][0];
            const next = {
                ArrowDown: () => (node < 0 ? first : this.children[node + 1][0]),
                ArrowUp: () => (node < 0 ? first : this.entry.parent[node]),
                ArrowRight: () => (node < 0 ? first : beside(1)),
                ArrowLeft: () => (node < 0 ? first : beside(-1)),
            }[event.key];
            if (next) {
                const found = next();
                if (found !== undefined && found >= 0) this.select(found);
            } else if (event.key === "Enter" && node >= 0) this.zoomTo(node);
            else if (event.key === "Escape") this.zoomTo(this.focus < 0 ? -1 : this.entry.parent[this.focus]);
            else return;
            event.preventDefault();
            event.stopPropagation();
        });
    }
}

const FLAME_WORDS = { operator: "operator nesting", module: "module", python: "Python frame" };

export function flameView(data) {
    const { flames } = data.trace;
    const filled = flames.filter((one) => one.parent.length);
    if (!filled.length) return [note("Nothing was recorded that a flame view could show."), treemap(data)];
    const holder = el("div");
    let view;
    let by = filled[0].by;
    let measure = data.hasDevice ? "device_ns" : "cpu_ns";
    const build = () => {
        view = new FlameView(
            data,
            filled.find((one) => one.by === by),
            measure,
        );
        data.flame = view;
        clear(holder).append(view.element);
        view.query = search.value.toLowerCase();
    };
    const search = el("input", {
        type: "search",
        placeholder: "highlight",
        "aria-label": "highlight in the flame view",
        on: {
            input: () => {
                view.query = search.value.toLowerCase();
                view.surface.redraw();
            },
        },
    });
    const tools = el(
        "div",
        { class: "tools" },
        choice(
            "by",
            filled.map((one) => [one.by, FLAME_WORDS[one.by]]),
            by,
            (value) => {
                by = value;
                build();
            },
        ),
        data.hasDevice
            ? choice(
                  "time",
                  [
                      ["device_ns", "device time"],
                      ["cpu_ns", "CPU time"],
                  ],
                  measure,
                  (value) => {
                      measure = value;
                      view.measureBy(value);
                  },
              )
            : null,
        search,
    );
    build();
    return [
        tools,
        holder,
        note(
            "Device time is that of the kernels launched below a node; backward operators stand with the module of their " +
                "forward operator. CPU time is the operators' own and that of their API calls; by Python frame, the " +
                "frames' own.",
        ),
        flames.map((one) => (one.note ? note(one.note) : null)),
        flames.length < 3 ? note("By module and Python frame only where stacks were recorded (--with-stack).") : null,
        treemap(data),
    ];
}

function treemap(data) {
    const key = data.hasDevice ? "self_device_ns" : "self_cpu_ns";
    const rows = data.document.categories.filter((row) => row[key] > 0);
    if (!rows.length) return null;
    const whole = data.hasDevice ? data.deviceSum : data.cpuSum;
    return section(
        `${data.hasDevice ? "Device" : "CPU"} time by category and operator`,
        chart(
            "treemap of categories",
            380,
            (colors) =>
                plain(colors, {
                    series: [
                        {
                            type: "treemap",
                            roam: false,
                            nodeClick: false,
                            breadcrumb: { show: false },
                            top: 4,
                            bottom: 4,
                            left: 0,
                            right: 0,
                            label: {
                                show: true,
                                formatter: (item) => printable(`${item.name}\n${formatNs(item.value)}`),
                                overflow: "truncate",
                            },
                            upperLabel: {
                                show: true,
                                height: 20,
                                color: "#111418",
                                formatter: (item) => printable(item.name),
                            },
                            itemStyle: { borderColor: colors.panel, gapWidth: 1 },
                            levels: [
                                { upperLabel: { show: false } },
                                { itemStyle: { gapWidth: 1, borderWidth: 2 } },
                                {},
                            ],
                            data: rows.map((category) => {
                                const operators = data.document.operators.filter(
                                    (row) => row.category === category.category && row[key] > 0,
                                );
                                const rest = category[key] - sum(operators.map((row) => row[key]));
                                const leaf = (name, value, known) => ({
                                    name,
                                    value,
                                    category: category.category,
                                    known,
                                    itemStyle: { color: categoryColor(category.category) },
                                    label: { color: onColor(categoryColor(category.category)) },
                                    tip: () =>
                                        tip(name, [
                                            ["category", category.category],
                                            ["time", formatNs(value)],
                                            ["of all", formatShare(value, whole)],
                                        ]),
                                });
                                return {
                                    name: category.category,
                                    value: category[key],
                                    itemStyle: {
                                        borderColor: categoryColor(category.category),
                                        color: categoryColor(category.category),
                                    },
                                    tip: () =>
                                        tip(category.category, [
                                            ["time", formatNs(category[key])],
                                            ["of all", formatShare(category[key], whole)],
                                        ]),
                                    children: [
                                        ...operators.map((row) => leaf(row.name, row[key], true)),
                                        ...(rest > 0 ? [leaf("(others)", rest, false)] : []),
                                    ],
                                };
                            }),
                        },
                    ],
                }),
            (event) => {
                if (event.data && event.data.known) app.reveal(data, "operators", event.data.name);
            },
        ),
    );
}
