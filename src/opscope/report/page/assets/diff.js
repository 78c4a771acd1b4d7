// The difference of two runs: what differs first, whether the step changed, and what that is made of.
import { sectionOf } from "./blocks.js";
import { categoryColor } from "./data.js";
import { el, facts, figure, nameOf, section, shapes } from "./dom.js";
import { big } from "./overview.js";
import { colouredName, countColumn, DataTable, nameColumn, plainTable, textColumn, timeColumn } from "./table.js";
import { formatChange, formatCount, formatNs, formatShare, largestOf } from "./units.js";

export function diffView(page) {
    const [whole, ...pairs] = page.pair_sections;
    return [sectionOf(whole), pairs.map((entry, place) => pairView(page.difference.pairs[place], entry))];
}

function pairView(pair, entry) {
    const { step } = pair;
    const what = step.per_step ? `${step.unprofiled ? "unprofiled" : "recorded"} step` : "recording";
    // What is made of what comes first, unless the step is not taken apart.
    const madeOf = entry.sections.slice(0, step.reason ? 0 : 1);
    const kernels = entry.sections.slice(madeOf.length, madeOf.length + (pair.kernels.length ? 1 : 0));
    const others = entry.sections.slice(madeOf.length + kernels.length);
    return el(
        "article",
        { class: "pair-diff", data: { pair: pair.name } },
        sectionOf(
            { ...entry, sections: [] },
            el(
                "div",
                { class: "figures" },
                big(`${what} before`, step.before_ns, formatNs),
                big("after", step.after_ns, formatNs),
                big("change", step.change_ns, formatChange, formatShare(step.change_ns, step.before_ns)),
            ),
        ),
        madeOf.map((inner) => sectionOf(inner)),
        step.reason ? null : section("Work", workTable(step)),
        kernels.map((inner) => sectionOf(inner, changedKernels(pair.kernels))),
        others.map((inner) => sectionOf(inner)),
    );
}

const diverging = (value, largest) =>
    el(
        "span",
        { class: "diverging", "aria-hidden": "true" },
        el("span", {
            class: value > 0 ? "up" : "down",
            style: { width: `${Math.min(50, (50 * Math.abs(value)) / (largest || 1)).toFixed(2)}%` },
        }),
    );

const countsOf = (row) =>
    row.calls_before === row.calls_after
        ? formatCount(row.calls_before)
        : `${formatCount(row.calls_before)} → ${formatCount(row.calls_after)}`;

// The largest changes first, whichever way they go.
function changeColumn(rows) {
    const size = (row) => Math.abs(row.change_ns);
    const largest = largestOf(rows, size);
    const show = ({ change_ns: ns }) => [
        figure(ns, formatChange, { class: ns > 0 ? "figure more" : "figure less" }),
        diverging(ns, largest),
    ];
    return { key: "size", label: "Change", value: size, show };
}

// What is run of each kernel, on both sides.
const changedKernels = (rows) =>
    new DataTable({
        name: "kernels before and after",
        rows,
        sort: ["size", true],
        search: (row) => [row.name],
        columns: [
            nameColumn("name", "Kernel"),
            changeColumn(rows),
            timeColumn("before_ns", "Before"),
            timeColumn("after_ns", "After"),
            textColumn("calls", "Runs", countsOf),
        ],
    }).element;

function workName(row) {
    const kernel = row.kernels[0] && (row.kernels[0].before || row.kernels[0].after);
    const now = row.renamed_to ? ` → ${row.renamed_to}` : "";
    const inputs = shapes(row.inputs_after || row.inputs_before);
    return `${row.operator || kernel || "work of no operator"}${now} ${inputs}`.trim();
}

function workTable(step) {
    const rows = step.work;
    const part = (key, label, title) => ({
        key,
        label,
        title,
        value: (row) => row[key],
        format: (value) => (value ? formatChange(value) : "-"),
    });
    return new DataTable({
        name: "work",
        rows,
        sort: ["size", true],
        search: (row) => [
            row.operator,
            row.renamed_to,
            row.inputs_before,
            row.inputs_after,
            row.category,
            ...row.kernels.flatMap((one) => [one.before, one.after]),
        ],
        groups: { label: "how it was matched", of: (row) => row.matched },
        open: (row) => workDetail(row),
        columns: [
            textColumn("name", "Operator", workName, (row) => colouredName(categoryColor(row.category), workName(row))),
            changeColumn(rows),
            timeColumn("before_ns", "Before"),
            timeColumn("after_ns", "After"),
            textColumn("calls", "Calls", countsOf),
            part("calls_ns", "More or fewer calls"),
            part("inputs_ns", "Other inputs"),
            part("launches_ns", "Launches of a call"),
            part("kernel_changed_ns", "Other kernels"),
            part("same_kernel_ns", "Same work, other time"),
            part("clocks_ns", "Clocks", "as much as the multiprocessors' clock can explain at most"),
            textColumn(
                "matched",
                "Matched by",
                (row) => row.matched,
                (row) => el("span", { class: "word", title: row.why || "" }, row.matched),
            ),
        ],
    }).element;
}

function workDetail(row) {
    return [
        facts(
            [
                ["category", row.category],
                row.why ? ["matched because", row.why] : null,
                ["inputs before", nameOf(row.inputs_before || "-")],
                ["inputs after", nameOf(row.inputs_after || "-")],
            ].filter(Boolean),
        ),
        row.kernels.length
            ? plainTable(
                  "kernels",
                  [
                      nameColumn("before", "Kernel before"),
                      nameColumn("after", "Kernel after"),
                      countColumn("calls_before", "Runs before"),
                      countColumn("calls_after", "after"),
                      timeColumn("mean_before_ns", "Mean before"),
                      timeColumn("mean_after_ns", "after"),
                  ],
                  row.kernels,
              )
            : null,
    ];
}
