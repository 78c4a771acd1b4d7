// How far work is from what the device allows, against the peaks that are printed.
import { app } from "./app.js";
import { axis, chart, plain, tip } from "./charts.js";
import { categoryColor, hashed, PALETTE } from "./data.js";
import { LIMIT_COLUMNS } from "./details.js";
import { choice, clear, el, nameOf, note, section } from "./dom.js";
import { DataTable, textColumn, timeColumn } from "./table.js";
import { roundPowers } from "./ticks.js";
import { formatBytes, formatCount, formatNs, formatRate, formatShare, largestOf, least, most } from "./units.js";

export function rooflineView(data) {
    const { roofline } = data.trace;
    const { limits } = data.document;
    return [
        ...roofsOf(data, roofline),
        limits && !limits.nothing
            ? section(
                  "Work by time lost",
                  limitRows(data, limits),
                  roofline.work_note ? note(roofline.work_note) : null,
              )
            : null,
    ];
}

// The roofs of each device, with the points that are chosen below them.
export function roofsOf(data, { roofs, labels, notes }) {
    const devices = roofs.map((roof) => {
        const holder = el("div");
        const kinds = Object.keys(roof.points);
        const draw = (kind) => {
            const points = roof.points[kind];
            const charts = [
                roofChart(
                    data,
                    roof,
                    labels,
                    points.filter((one) => one.flop > 0),
                    true,
                ),
                roofChart(
                    data,
                    roof,
                    labels,
                    points.filter((one) => !one.flop && one.bytes > 0),
                    false,
                ),
            ];
            clear(holder).append(...charts.filter(Boolean));
        };
        if (kinds.length) draw(kinds[0]);
        return section(
            roof.title,
            kinds.length > 1
                ? el(
                      "div",
                      { class: "tools" },
                      choice(
                          "points",
                          kinds.map((kind) => [kind, kind]),
                          kinds[0],
                          draw,
                      ),
                  )
                : null,
            holder,
            roof.notes.map((text) => note(text)),
        );
    });
    return [...devices, ...notes.map((text) => note(text))];
}

function pointOf(moved, one, value, largest) {
    const color = one.category ? categoryColor(one.category) : hashed(one.name);
    return {
        value,
        symbolSize: 6 + 34 * Math.sqrt(Math.max(one.area_ns, 0) / (largest || 1)),
        itemStyle: { color, opacity: 0.72, borderColor: color, borderWidth: 1 },
        operator: one.operator,
        tip: () =>
            tip(
                one.name,
                [
                    ["calls", formatCount(one.calls)],
                    ["a call", formatNs(one.call_ns)],
                    one.lost_ns === null ? null : ["lost", formatNs(one.lost_ns)],
                    one.share === null ? null : ["of the limit", formatShare(one.share, 1)],
                    one.limited_by ? ["limited by", one.limited_by] : null,
                    one.precision ? ["precision", one.precision] : null,
                    one.flop ? ["achieved", formatRate((1e9 * one.flop) / one.call_ns, "FLOP/s")] : null,
                    [moved, `${formatBytes(one.bytes)}, ${formatRate((1e9 * one.bytes) / one.call_ns, "B/s")}`],
                ].filter(Boolean),
            ),
    };
}

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

// Operations a second over operations a byte, below the roofs of the units; or bytes a second over bytes, below that of
// the memory.
function roofChart(data, roof, labels, points, computes) {
    if (!points.length) return null;
    const memory = roof.memory_bytes_per_s;
    const used = new Set(points.map((one) => one.precision));
    const units = computes ? Object.entries(roof.flop_per_s).filter(([precision]) => used.has(precision)) : [];
    const largest = largestOf(points, (one) => one.area_ns, -Infinity);
    const xs = points.map((one) => (computes ? one.flop / Math.max(one.bytes, 1) : one.bytes));
    const ys = points.map((one) => (1e9 * (computes ? one.flop : one.bytes)) / one.call_ns);
    const across = [...xs, ...units.map(([, rate]) => rate / memory)];
    const [beside, base] = computes ? [2, 10] : [1.5, 32];
    const { min: left, max: right } = roundPowers(least(across) / beside, most(-Infinity, across) * beside, base);
    const highest = computes ? units.map(([, rate]) => rate) : [memory];
    const rates = roundPowers(least(ys) / 1.5, most(-Infinity, [...ys, ...highest]) * 1.5);
    // Roofs close to each other have their labels side by side.
    const beforeIt = (rate, number) =>
        units.filter(([, other], at) => at < number && Math.abs(Math.log2(other / rate)) < 1.1).length;
    const rate = (value) => formatRate(value, computes ? "FLOP/s" : "B/s");
    const lines = computes
        ? units.map(([name, peak], number) => ({
              name,
              color: PALETTE[number],
              at: [right / (right / left) ** (0.17 * beforeIt(peak, number)), peak],
              data: [
                  [left, left * memory],
                  [peak / memory, peak],
                  [right, peak],
              ],
          }))
        : [
              {
                  name: "memory",
                  color: null,
                  at: [right, memory],
                  data: [
                      [left, memory],
                      [right, memory],
                  ],
              },
          ];
    return chart(
        computes ? labels.roofline : labels.bandwidth,
        computes ? 420 : 360,
        (colors) =>
            plain(colors, {
                grid: { left: 92, right: 40, top: 34, bottom: 58 },
                xAxis: axis(colors, computes ? labels.intensity : labels.bytes, computes ? formatCount : formatBytes, {
                    type: "log",
                    logBase: base,
                    min: left,
                    max: right,
                }),
                yAxis: axis(colors, "", rate, { type: "log", ...rates }),
                series: [
                    ...lines.map(({ name, color, data: places }) => ({
                        name,
                        type: "line",
                        showSymbol: false,
                        lineStyle: { width: 2, color: color || colors.accent },
                        silent: true,
                        data: places,
                    })),
                    ...lines.map(({ name, at }) => roofLabel(colors, `${name} ${rate(at[1])}`, at)),
                    {
                        type: "scatter",
                        data: points.map((one, place) => pointOf(labels.moved, one, [xs[place], ys[place]], largest)),
                    },
                ],
                legend: { show: false },
            }),
        (event) => {
            if (event.data && event.data.operator) app.reveal(data, "operators", event.data.operator);
        },
    );
}

function limitRows(data, limits) {
    const table = new DataTable({
        name: "limits",
        rows: limits.rows,
        sort: ["lost_ns", true],
        search: (row) => [row.operator, row.kernel, row.category],
        groups: { label: "category", of: (row) => row.category },
        columns: [
            textColumn(
                "operator",
                "Operator",
                (row) => row.operator || row.kernel,
                (row) => (row.operator ? app.operatorLink(data, row.operator) : nameOf(row.kernel)),
            ),
            ...LIMIT_COLUMNS,
            timeColumn("lost_ns", "Lost", { bar: true }),
        ],
    });
    data.limitTable = table;
    return table.element;
}
