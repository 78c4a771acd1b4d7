// The recorded steps one by one, a server's iterations, named ranges, and what the backward pass of each operator cost.
import { app } from "./app.js";
import { blocksOf } from "./blocks.js";
import { axis, chart, plain, tip } from "./charts.js";
import { nameOf, note, section } from "./dom.js";
import { countColumn, DataTable, nameColumn, textColumn, timeColumn } from "./table.js";
import { roundScale } from "./ticks.js";
import { formatCount, formatNs, largestOf } from "./units.js";

export function hasSteps({ document: doc }) {
    return [doc.steps, doc.iterations, doc.annotations, doc.backward].some((rows) => rows.length > 0);
}

export function stepsView(data) {
    const { document: doc, trace } = data;
    const { phases } = trace;
    const parts = [
        doc.steps.length ? section("Steps", stepChart(doc.steps), stepTable(data)) : null,
        doc.iterations.length ? section("Iterations", iterationTable(data)) : null,
        phases.length ? section("Phases of a training step", blocksOf(phases)) : null,
        doc.annotations.length ? section("Named ranges", rangeTree(data)) : null,
        doc.backward.length ? section("Forward and backward", backwardTable(data)) : null,
    ].filter(Boolean);
    return parts.length ? parts : [note("No steps, ranges or backward pass were recorded.")];
}

// A bar a step: busy and idle time, one device beside the other.
function stepChart(steps) {
    const devices = [...new Set(steps.map((row) => row.device))];
    const numbers = [...new Set(steps.map((row) => row.index))];
    /** @type {[string, string, (row: any) => number | null][]} */
    const parts = [
        ["busy", "#4e79a7", (row) => row.busy_ns],
        ["idle", "#edae49", (row) => row.idle_ns],
        ["on the host", "#98a4ae", (row) => (row.busy_ns === null ? row.span_ns : null)],
    ];
    const series = devices.flatMap((device) =>
        parts.map(([part, color, time]) => ({
            name: devices.length > 1 ? `device ${device}: ${part}` : part,
            type: "bar",
            stack: `device ${device}`,
            itemStyle: { color },
            data: steps
                .filter((row) => row.device === device)
                .map((row) => ({
                    value: [numbers.indexOf(row.index), time(row) ?? 0],
                    tip: () =>
                        tip(`step ${row.number}`, [
                            ["takes", formatNs(row.span_ns)],
                            ["busy", formatNs(row.busy_ns)],
                            ["idle", formatNs(row.idle_ns)],
                        ]),
                })),
        })),
    );
    if (numbers.length < 2) return null;
    return chart("steps, busy and idle", 240, (colors) =>
        plain(colors, {
            xAxis: {
                type: "category",
                data: numbers.map((index) => String(steps.find((row) => row.index === index).number)),
                name: "step",
                nameLocation: "middle",
                nameGap: 28,
                axisLabel: { color: colors.soft },
                nameTextStyle: { color: colors.soft },
            },
            yAxis: axis(colors, "", formatNs, roundScale(largestOf(steps, (row) => row.span_ns))),
            grid: { left: 86, right: 28, top: 30, bottom: 46 },
            series,
        }),
    );
}

function stepTable(data) {
    const rows = data.document.steps;
    const several = new Set(rows.map((row) => row.device)).size > 1;
    return [
        new DataTable({
            name: "steps",
            rows,
            sort: ["index", false],
            columns: [
                { key: "index", label: "Step", value: (row) => row.index, show: (row) => String(row.number) },
                several ? { key: "device", label: "Device", value: (row) => row.device, format: String } : null,
                timeColumn("span_ns", "Takes", { bar: true }),
                timeColumn("busy_ns", "Busy"),
                timeColumn("idle_ns", "Idle"),
                timeColumn("launch_bound_ns", "idle, waiting for launches"),
                countColumn("activities", "Activities"),
                timeColumn("device_sum_ns", "Device sum"),
                textColumn("cold", "", (row) => (row.cold ? "code was loaded" : "")),
            ].filter(Boolean),
        }).element,
        data.trace.steps_note ? note(data.trace.steps_note) : null,
        data.leftOutNote("steps", "steps"),
    ];
}

function iterationTable(data) {
    return [
        new DataTable({
            name: "iterations",
            rows: data.document.iterations,
            sort: ["total_ns", true],
            columns: [
                textColumn("kind", "Kind"),
                nameColumn("detail", "", (row) => row.detail),
                countColumn("requests", "Requests"),
                countColumn("tokens", "Tokens"),
                countColumn("iterations", "Iterations"),
                timeColumn("total_ns", "Time", { bar: true }),
                timeColumn("median_ns", "Median"),
                timeColumn("host_ns", "on the host"),
                timeColumn("idle_ns", "Idle"),
                textColumn("bound", "Bound by", (row) => row.bound || "-"),
            ],
        }).element,
        data.leftOutNote("iterations", "kinds of iterations"),
    ];
}

// Ranges inside others stand below them, indented.
function rangeTree(data) {
    const rows = data.document.annotations;
    return [
        new DataTable({
            name: "ranges",
            rows,
            sort: ["total_device_ns", true],
            search: (row) => [row.path],
            columns: [
                textColumn(
                    "path",
                    "Range",
                    (row) => row.path,
                    (row) => nameOf(row.path, { style: { "padding-left": `${12 * Math.min(row.depth, 12)}px` } }),
                ),
                countColumn("calls", "Calls"),
                timeColumn("total_device_ns", "Device time", { bar: true }),
                timeColumn("self_device_ns", "its own"),
                timeColumn("span_ns", "On the host"),
                timeColumn("self_cpu_ns", "its own"),
            ],
        }).element,
        data.leftOutNote("annotations", "ranges"),
        note(
            "Device time of what was launched in a range, with the ranges inside it; its own is without them. Sort by name to see what is inside what.",
        ),
    ];
}

function backwardTable(data) {
    return [
        new DataTable({
            name: "backward",
            rows: data.document.backward,
            sort: ["backward_device_ns", true],
            search: (row) => [row.forward, row.backward],
            columns: [
                textColumn(
                    "forward",
                    "Forward",
                    (row) => row.forward || "-",
                    (row) => (row.forward ? app.operatorLink(data, row.forward) : "-"),
                ),
                nameColumn("backward", "Backward"),
                countColumn("calls", "Calls"),
                timeColumn("forward_device_ns", "Forward's device time"),
                timeColumn("backward_device_ns", "Backward's", { bar: true }),
                {
                    key: "ratio",
                    label: "Backward / forward",
                    value: (row) => (row.forward_device_ns ? row.backward_device_ns / row.forward_device_ns : null),
                    format: (value) => (value === null ? "-" : formatCount(value)),
                },
            ],
        }).element,
        data.leftOutNote("backward", "pairs"),
        note("Over the whole recording. A backward node belongs to the forward operator with its sequence number."),
    ];
}
