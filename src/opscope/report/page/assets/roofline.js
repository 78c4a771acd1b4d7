// How far work is from what the device allows, against the peaks that are printed.
import { app } from "./app.js";
import { axis, chart, plain, tip } from "./charts.js";
import { categoryColor, hashed, PALETTE } from "./data.js";
import { productText } from "./details.js";
import { choice, clear, el, nameOf, note, section, shapes } from "./dom.js";
import { countColumn, DataTable, nameColumn, shareColumn, textColumn, timeColumn } from "./table.js";
import { roundPowers } from "./ticks.js";
import { formatBytes, formatCount, formatNs, formatRate, formatShare, least, most } from "./units.js";

// What the charts call their points: by models of operators, or by what was counted.
const MODELLED = {
    roofline: "roofline of products",
    intensity: "operations a byte (least bytes)",
    bandwidth: "bandwidth of work without products",
    bytes: "least bytes of a call",
    moved: "moved at least",
};

export function rooflineView(data) {
    const { limits } = data.document;
    if (!limits) return [note(`No limits: ${data.document.device_times_reason || "no device worked"}.`)];
    if (limits.nothing) return [note(limits.nothing)];
    const parts = [];
    for (const peaks of limits.peaks) for (const part of rooflineOf(data, limits, peaks)) parts.push(part);
    if (limits.over_limit.length)
        parts.push(note(`Above the limit, so a model or a peak is wrong for: ${limits.over_limit.join(", ")}.`));
    parts.push(section("Work by time lost", limitRows(data, limits)));
    return parts;
}

function rooflineOf(data, limits, peaks) {
    if (peaks.origin === null)
        return [note(`Nothing is known of what ${peaks.name} can do: opscope gpus --measure measures it.`)];
    const holder = el("div");
    const about = note(
        `${peaks.name}: peaks ${peaks.origin}${peaks.measured.length ? ` (measured: ${peaks.measured.join(", ")})` : ""}; memory ${formatRate(peaks.memory_bytes_per_s, "B/s")}. `,
        "Areas are time lost: device time less the ideal time. Operations are those of products; least bytes assume that each is moved once, so caches can lift a point above the memory's line.",
    );
    const draw = (kind) => {
        const points = kind === "operator" ? operatorPoints(limits, peaks) : kernelPoints(data, peaks);
        clear(holder).append(
            ...[
                rooflineChart(
                    data,
                    peaks,
                    points.filter((one) => one.flop > 0),
                ),
                bandwidthChart(
                    data,
                    peaks,
                    points.filter((one) => !one.flop && one.bytes > 0),
                ),
            ].filter(Boolean),
        );
    };
    draw("operator");
    return [
        section(
            `Device ${peaks.device}`,
            el(
                "div",
                { class: "tools" },
                choice(
                    "points",
                    [
                        ["operator", "operators by inputs"],
                        ["kernel", "kernels"],
                    ],
                    "operator",
                    draw,
                ),
            ),
            holder,
            about,
        ),
    ];
}

const operatorPoints = (limits, peaks) =>
    limits.rows
        .filter((row) => row.device === peaks.device && row.ideal_ns !== null)
        .map((row) => ({
            name: `${row.operator || row.kernel} ${row.product ? productText(row.product) : shapes(row.input_dims)}`,
            operator: row.operator,
            category: row.category,
            precision: row.precision,
            calls: row.calls,
            flop: row.flop,
            bytes: row.least_bytes,
            ns: row.call_ns,
            device_ns: row.device_ns,
            lost: row.lost_ns,
            area: row.lost_ns,
            share: row.share,
            limited: row.limited_by,
        }));

const kernelPoints = (data, peaks) =>
    data.trace.kernel_limits
        .filter((row) => row.device === peaks.device)
        .map((row) => ({
            name: row.kernel,
            operator: null,
            category: null,
            precision: row.precision,
            calls: row.calls,
            flop: row.flop / row.calls,
            bytes: row.least_bytes / row.calls,
            ns: row.device_ns / row.calls,
            device_ns: row.device_ns,
            lost: row.lost_ns,
            area: row.lost_ns,
            share: row.ideal_ns / row.device_ns,
            limited: null,
        }));

function point(words, one, x, y, largest, color) {
    return {
        value: [x, y],
        symbolSize: 6 + 34 * Math.sqrt(Math.max(one.area, 0) / (largest || 1)),
        itemStyle: { color, opacity: 0.72, borderColor: color, borderWidth: 1 },
        operator: one.operator,
        tip: () =>
            tip(
                one.name,
                [
                    ["calls", formatCount(one.calls)],
                    ["a call", formatNs(one.ns)],
                    one.lost === null ? null : ["lost", formatNs(one.lost)],
                    one.share === null ? null : ["of the limit", formatShare(one.share, 1)],
                    one.limited ? ["limited by", one.limited] : null,
                    one.precision ? ["precision", one.precision] : null,
                    one.flop ? ["achieved", formatRate((1e9 * one.flop) / one.ns, "FLOP/s")] : null,
                    [words.moved, `${formatBytes(one.bytes)}, ${formatRate((1e9 * one.bytes) / one.ns, "B/s")}`],
                ].filter(Boolean),
            ),
    };
}

const toRow = (data) => (event) => {
    if (event.data && event.data.operator) app.reveal(data, "operators", event.data.operator);
};

// What a line of the roof is, above it and to the left of a place on it.
const roofLabel = (colors, text, at) => ({
    type: "scatter",
    silent: true,
    symbolSize: 1,
    data: [at],
    z: 5,
    label: {
        show: true,
        formatter: text,
        position: "left",
        offset: [0, -9],
        color: colors.text,
        backgroundColor: colors.panel,
        padding: [1, 3],
    },
});

export function rooflineChart(data, peaks, points, words = MODELLED) {
    if (!points.length) return null;
    const used = new Set(points.map((one) => one.precision));
    const roofs = Object.entries(peaks.flop_per_s).filter(([precision]) => used.has(precision));
    const largest = most(
        -Infinity,
        points.map((one) => one.area),
    );
    const xs = points.map((one) => one.flop / Math.max(one.bytes, 1));
    const ys = points.map((one) => (1e9 * one.flop) / one.ns);
    const corners = roofs.map(([, rate]) => rate / peaks.memory_bytes_per_s);
    const { min: left, max: right } = roundPowers(
        least([...xs, ...corners]) / 2,
        most(-Infinity, [...xs, ...corners]) * 2,
    );
    const rates = roundPowers(least(ys) / 1.5, most(-Infinity, [...ys, ...roofs.map(([, rate]) => rate)]) * 1.5);
    return chart(
        words.roofline,
        420,
        (colors) =>
            plain(colors, {
                grid: { left: 92, right: 40, top: 34, bottom: 58 },
                xAxis: axis(colors, words.intensity, (value) => formatCount(value), {
                    type: "log",
                    min: left,
                    max: right,
                }),
                yAxis: axis(colors, "", (value) => formatRate(value, "FLOP/s"), { type: "log", ...rates }),
                series: [
                    ...roofs.map(([precision, rate], number) => ({
                        name: precision,
                        type: "line",
                        showSymbol: false,
                        lineStyle: { width: 2, color: PALETTE[number] },
                        itemStyle: { color: PALETTE[number] },
                        silent: true,
                        data: [
                            [left, left * peaks.memory_bytes_per_s],
                            [rate / peaks.memory_bytes_per_s, rate],
                            [right, rate],
                        ],
                    })),
                    ...roofs.map(([precision, rate], number) =>
                        roofLabel(
                            colors,
                            `${precision} ${formatRate(rate, "FLOP/s")}`,
                            // Roofs close to each other have their labels side by side.
                            [
                                right /
                                    (right / left) **
                                        (0.17 *
                                            roofs.filter(
                                                ([, other], at) => at < number && Math.abs(Math.log2(other / rate)) < 1,
                                            ).length),
                                rate,
                            ],
                        ),
                    ),
                    {
                        type: "scatter",
                        data: points.map((one, place) =>
                            point(
                                words,
                                one,
                                xs[place],
                                ys[place],
                                largest,
                                one.category ? categoryColor(one.category) : hashed(one.name),
                            ),
                        ),
                    },
                ],
                legend: { show: false },
            }),
        toRow(data),
    );
}

export function bandwidthChart(data, peaks, points, words = MODELLED) {
    if (!points.length) return null;
    const largest = most(
        -Infinity,
        points.map((one) => one.area),
    );
    const bytes = points.map((one) => one.bytes);
    const { min: left, max: right } = roundPowers(least(bytes) / 1.5, most(-Infinity, bytes) * 1.5, 32);
    const ys = points.map((one) => (1e9 * one.bytes) / one.ns);
    const rates = roundPowers(least(ys) / 1.5, most(peaks.memory_bytes_per_s, ys) * 1.5);
    return chart(
        words.bandwidth,
        360,
        (colors) =>
            plain(colors, {
                grid: { left: 92, right: 40, top: 34, bottom: 58 },
                xAxis: axis(colors, words.bytes, (value) => formatBytes(value), {
                    type: "log",
                    logBase: 32,
                    min: left,
                    max: right,
                }),
                yAxis: axis(colors, "", (value) => formatRate(value, "B/s"), { type: "log", ...rates }),
                series: [
                    {
                        type: "line",
                        showSymbol: false,
                        silent: true,
                        lineStyle: { width: 2, color: colors.accent },
                        data: [
                            [left, peaks.memory_bytes_per_s],
                            [right, peaks.memory_bytes_per_s],
                        ],
                    },
                    roofLabel(colors, `memory ${formatRate(peaks.memory_bytes_per_s, "B/s")}`, [
                        right,
                        peaks.memory_bytes_per_s,
                    ]),
                    {
                        type: "scatter",
                        data: points.map((one, place) =>
                            point(
                                words,
                                one,
                                one.bytes,
                                ys[place],
                                largest,
                                one.category ? categoryColor(one.category) : hashed(one.name),
                            ),
                        ),
                    },
                ],
                legend: { show: false },
            }),
        toRow(data),
    );
}

function limitRows(data, limits) {
    const table = new DataTable({
        name: "limits",
        rows: limits.rows,
        sort: ["lost_ns", true],
        search: (row) => `${row.operator || ""} ${row.kernel} ${row.category}`,
        groups: { label: "category", of: (row) => row.category },
        columns: [
            textColumn(
                "operator",
                "Operator",
                (row) => row.operator || row.kernel,
                (row) => (row.operator ? app.operatorLink(data, row.operator) : nameOf(row.kernel)),
            ),
            nameColumn(
                "inputs",
                "Inputs",
                (row) => (row.product ? productText(row.product) : shapes(row.input_dims)) || "-",
            ),
            countColumn("calls", "Calls"),
            timeColumn("call_ns", "A call"),
            timeColumn("ideal_ns", "Ideal"),
            shareColumn("share", "of limit"),
            textColumn(
                "by",
                "Limited by",
                (row) => row.reason || [row.limited_by, row.precision].filter(Boolean).join(", "),
            ),
            timeColumn("lost_ns", "Lost", { bar: true }),
        ],
    });
    data.limitTable = table;
    return [
        table.element,
        note(
            `The calls that lose most, over the whole recording. Roofline estimates cover ${formatShare(limits.modelled_ns, limits.device_sum_ns)} of the device sum; opscope limits has all calls.`,
        ),
    ];
}
