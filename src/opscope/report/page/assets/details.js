// What opens under a row: shapes, kernels, source, limits, the dossier, and the Python lines.
import { app } from "./app.js";
import { blocksOf } from "./blocks.js";
import { button, el, facts, figure, link, nameOf, note, printable, shapes } from "./dom.js";
import { countColumn, nameColumn, plainTable, shareColumn, textColumn, timeColumn } from "./table.js";
import { fixed, formatCount, formatNs } from "./units.js";

const HOW_WORDS = {
    verified: "verified",
    likely: "likely",
    candidate: "one of several",
    library: "in a library",
    unknown: "unknown",
};

export function sourceLink(source) {
    if (!source) return "-";
    if (!source.file)
        return [source.library ? nameOf(source.library) : "not known", el("span", { class: "how" }, source.basis)];
    return [placeLink(source), howOf(source.how, source.basis)];
}

// How a source is known.
export const howOf = (how, title) => (how ? el("span", { class: `how ${how}`, title }, HOW_WORDS[how] || how) : null);

export const KERNEL_SOURCE = textColumn(
    "source",
    "Source",
    (row) => row.source_file || row.library || "-",
    (row) => [nameOf(row.source_file || row.library || "-"), howOf(row.source_how)],
);

export function operatorDetail(data, row) {
    const detail = row.detail;
    const limits = (data.document.limits ? data.document.limits.rows : []).filter((one) => one.operator === row.name);
    const parts = [];
    const native = detail && detail.native_function;
    parts.push(
        facts([
            ["category", row.category + (detail ? ` (by ${detail.category_rule})` : "")],
            row.native_function && [
                "native function",
                nameOf(native && native.schema ? native.schema : row.native_function),
            ],
            row.cpp_function && ["C++ function", nameOf(row.cpp_function)],
            detail && ["kernel source", sourceLink(detail.source)],
            detail && detail.source.launch_site && ["launched in", placeLink(detail.source.launch_site)],
            [
                "calls",
                [
                    figure(row.calls, formatCount),
                    data.document.step_count ? ` (${formatCount(row.calls / data.steps)} a step)` : "",
                ],
            ],
            [
                "with what it calls",
                `${formatNs(row.total_device_ns)} on the device, ${formatNs(row.total_cpu_ns)} on the host`,
            ],
        ]),
    );
    parts.push(toTimeline(data, "calls", row.name));
    if (detail && detail.shapes.length)
        parts.push(
            el("h3", null, some("Shapes", detail.shapes.length, detail.shape_count)),
            shapeTable(data, detail.shapes),
        );
    if (detail && detail.kernels.length)
        parts.push(
            el("h3", null, some("Kernels", detail.kernels.length, detail.kernel_count)),
            kernelsOfOperator(detail.kernels),
        );
    if (limits.length) parts.push(el("h3", null, "Limits"), limitTable(limits));
    if (detail && detail.called_from && detail.called_from.length)
        parts.push(el("h3", null, "Called from"), callerTable(detail.called_from));
    else if (detail && detail.called_from === null)
        parts.push(note("Python lines are not known: stacks were not recorded (--with-stack)."));
    const dossier = Object.hasOwn(data.trace.dossiers, row.name) ? data.trace.dossiers[row.name] : [];
    if (dossier.length) parts.push(el("h3", null, "Dossier"), blocksOf(dossier));
    return parts;
}

// A way from a row to what it stands for in the timeline, where there is one.
export const toTimeline = (data, what, name) => {
    const go = button(`show its ${what} in the timeline`, () => app.showInTimeline(name));
    return data.trace.timeline ? el("p", { class: "actions" }, go) : null;
};

const some = (what, listed, all) =>
    listed < all ? `${what} (the ${listed} most expensive of ${formatCount(all)})` : what;

function placeLink(place) {
    const text = place.line ? `${place.file}:${place.line}` : place.file;
    return place.url ? link(place.url, text) : nameOf(text);
}

const shapeTable = (data, rows) =>
    plainTable(
        "shapes",
        [
            textColumn(
                "dims",
                "Inputs",
                (row) => shapes(row.input_dims) || (row.input_dims === null ? "not recorded" : "no tensors"),
            ),
            textColumn("types", "Types", (row) => types(row.input_types)),
            countColumn("calls", "Calls"),
            timeColumn("self_device_ns", "Device self"),
            timeColumn("total_device_ns", "Device total"),
            timeColumn("self_cpu_ns", "CPU self"),
        ],
        rows,
    );

function types(text) {
    if (!text) return "-";
    try {
        return [
            ...new Set(
                JSON.parse(text).filter(
                    (one) => typeof one === "string" && one && one !== "Scalar" && one !== "ScalarList",
                ),
            ),
        ].join(", ");
    } catch {
        return text;
    }
}

const kernelsOfOperator = (rows) =>
    plainTable(
        "kernels",
        [
            textColumn(
                "name",
                "Kernel",
                (row) => row.name,
                (row) => nameOf(row.summary || row.name, { title: printable(row.name) }),
            ),
            countColumn("calls", "Calls"),
            timeColumn("total_ns", "Total"),
            timeColumn("mean_ns", "Mean"),
            textColumn("grid", "Grid × block", (row) => (row.grid ? `${row.grid} × ${row.block}` : "-")),
            {
                key: "occupancy",
                label: "Theor. occupancy",
                title: "theoretical occupancy: follows from the launch, was not measured",
                value: (row) => row.theoretical_occupancy_percent,
                format: (value) => (value === null ? "-" : `${fixed(value, 0)} %`),
            },
            KERNEL_SOURCE,
        ],
        rows,
    );

const limitTable = (rows) =>
    plainTable(
        "limits",
        [...LIMIT_COLUMNS, timeColumn("lost_ns", "Lost", { title: "device time less the ideal time of all calls" })],
        rows,
    );

const productText = (product) =>
    `${product.batch > 1 ? `${product.batch} x ` : ""}${product.rows} x ${product.depth} by ${product.depth} x ${product.columns}`;

export const LIMIT_COLUMNS = [
    nameColumn("inputs", "Inputs", (row) => (row.product ? productText(row.product) : shapes(row.input_dims)) || "-"),
    countColumn("calls", "Calls"),
    timeColumn("call_ns", "A call"),
    timeColumn("ideal_ns", "Ideal"),
    shareColumn("share", "of limit"),
    textColumn("by", "Limited by", (row) => row.reason || [row.limited_by, row.precision].filter(Boolean).join(", ")),
];

const callerTable = (rows) =>
    plainTable(
        "callers",
        [
            nameColumn("place", "Python"),
            countColumn("calls", "Calls"),
            timeColumn("self_device_ns", "Device self"),
            timeColumn("self_cpu_ns", "CPU self"),
        ],
        rows,
    );
