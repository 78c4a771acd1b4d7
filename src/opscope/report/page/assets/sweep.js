// A sweep: how each quantity goes with the sizes, what bounds each configuration, and how its step times are spread.
import { app } from "./app.js";
import { sectionOf } from "./blocks.js";
import { axis, chart, plain, tip } from "./charts.js";
import { categoryColor, sum } from "./data.js";
import { add, button, choice, clear, el, note, printable, section } from "./dom.js";
import { findingList } from "./overview.js";
import { countColumn, DataTable, shareColumn, sizeColumn, textColumn, timeColumn } from "./table.js";
import { roundScale } from "./ticks.js";
import { fixed, formatBytes, formatCount, formatNs, least, most } from "./units.js";

export function sweepView(page) {
    return page.sweeps.map((sweep) =>
        el(
            "article",
            { data: { sweep: sweep.name } },
            page.sweeps.length > 1 ? el("h2", null, sweep.name) : null,
            sweepOf(page, sweep),
        ),
    );
}

function sweepOf(page, sweep) {
    const { comparison } = sweep;
    const rows = comparison.rows;
    const written = sweep.sections.map((entry) => sectionOf(entry));
    if (!rows.length) return written;
    const axes = numericAxes(rows);
    return [
        section(null, sweepTable(comparison, rows)),
        axes.length ? growth(rows, axes, sweep) : null,
        section(
            `Time by category, ${comparison.measured_on === "device" ? "on the device" : "on the CPU"}, a step`,
            categoryChart(rows),
        ),
        section(
            "Unprofiled steps of each configuration",
            distributions(
                sweep,
                page.traces.filter((trace) => trace.sweep === sweep.name),
            ),
        ),
        comparison.findings.length ? section("What the sweep shows", findingList(null, comparison.findings)) : null,
        written,
    ];
}

const numericAxes = (rows) =>
    [...new Set(rows.flatMap((row) => Object.keys(row.axes)))].filter(
        (name) =>
            new Set(rows.map((row) => row.axes[name])).size > 1 &&
            rows.every((row) => typeof row.axes[name] === "number"),
    );

function sweepTable(comparison, rows) {
    const table = new DataTable({
        name: "configurations",
        rows,
        sort: ["wall_ns", false],
        id: (row) => row.id,
        columns: [
            textColumn(
                "id",
                "Configuration",
                (row) => row.id,
                (row) => button(row.id, () => app.chooseTrace(row.id, comparison), { class: "plain" }),
            ),
            timeColumn("wall_ns", "Unprofiled step", { bar: true }),
            timeColumn("event_ns", "By events"),
            timeColumn("device_sum_ns", "Device sum"),
            timeColumn("device_busy_ns", "Device busy"),
            shareColumn("device_share", "Busy share"),
            timeColumn("cpu_self_ns", "CPU self"),
            countColumn("sequences_per_second", `${comparison.unit} / s`),
            countColumn("tokens_per_second", "tokens / s"),
            sizeColumn("peak_memory_bytes", "Peak memory"),
            textColumn(
                "bound",
                "Bound",
                (row) => row.bound,
                (row) => el("span", { class: "word", data: { kind: row.bound } }, row.bound.replace("_", " ")),
            ),
            textColumn(
                "trust",
                "Trust",
                (row) => row.trust,
                (row) => el("span", { class: `trust ${row.trust}` }, row.trust),
            ),
        ],
    });
    return table.element;
}

/** @type {[string, string, (row: any) => number | null, (value: number) => string][]} */
const QUANTITIES = [
    ["wall_ns", "unprofiled step", (row) => row.wall_ns, formatNs],
    ["device_sum_ns", "device sum", (row) => row.device_sum_ns, formatNs],
    ["sequences_per_second", "sequences a second", (row) => row.sequences_per_second, formatCount],
    ["tokens_per_second", "tokens a second", (row) => row.tokens_per_second, formatCount],
    ["peak_memory_bytes", "peak memory", (row) => row.peak_memory_bytes, formatBytes],
    [
        "device_share",
        "busy share",
        (row) => (row.device_share === null ? null : 100 * row.device_share),
        (value) => `${fixed(value, 0)} %`,
    ],
];

function growth(rows, axes, sweep) {
    const holder = el("div", { class: "pair" });
    let along = axes[0];
    const draw = () => {
        clear(holder);
        for (const [key, label, of, format] of QUANTITIES) {
            const known = rows.filter((row) => of(row) !== null && of(row) !== undefined);
            if (known.length < 2) continue;
            const title = key === "sequences_per_second" ? `${sweep.comparison.unit} a second` : label;
            add(holder, [
                el(
                    "figure",
                    null,
                    el("figcaption", null, title),
                    chart(`${title} over ${along}`, 250, (colors) =>
                        growthOption(colors, known, along, of, format, key, title, sweep.axes),
                    ),
                ),
            ]);
        }
    };
    draw();
    return section(
        "How it grows",
        axes.length > 1
            ? el(
                  "div",
                  { class: "tools" },
                  choice(
                      "along",
                      axes.map((name) => [name, sweep.axes[name]]),
                      along,
                      (value) => {
                          along = value;
                          draw();
                      },
                  ),
              )
            : null,
        holder,
    );
}

function growthOption(colors, rows, along, of, format, key, title, names) {
    const others = (row) =>
        Object.entries(row.axes)
            .filter(([name]) => name !== along)
            .map(([name, value]) => `${names[name]} ${value}`)
            .join(", ") || "all";
    const groups = new Map();
    for (const row of rows) {
        if (!groups.has(others(row))) groups.set(others(row), []);
        groups.get(others(row)).push(row);
    }
    const sizes = rows.map((row) => row.axes[along]);
    return plain(colors, {
        grid: { left: 76, right: 20, top: 44, bottom: 46 },
        xAxis: axis(colors, names[along], null, {
            type: "log",
            logBase: 2,
            nameGap: 26,
            min: least(sizes),
            max: most(-Infinity, sizes),
        }),
        yAxis: axis(colors, "", format, {
            ...roundScale(most(0, rows.map(of)) || 1, key === "peak_memory_bytes" ? 1024 : 10, 5),
            nameGap: 56,
        }),
        series: [...groups].map(([name, found]) => {
            found.sort((one, other) => one.axes[along] - other.axes[along]);
            return {
                name,
                type: "line",
                symbolSize: 7,
                data: found.map((row) => ({
                    value: [row.axes[along], of(row)],
                    tip: () =>
                        tip(
                            row.id,
                            [
                                [title, format(of(row))],
                                key === "wall_ns" && row.wall_low_ns !== null
                                    ? ["95 % interval", `${formatNs(row.wall_low_ns)} to ${formatNs(row.wall_high_ns)}`]
                                    : null,
                                ["bound", row.bound],
                            ].filter(Boolean),
                        ),
                })),
            };
        }),
    });
}

function categoryChart(rows) {
    const names = [...new Set(rows.flatMap((row) => Object.keys(row.categories_ns)))];
    const total = (name) => sum(rows.map((row) => row.categories_ns[name] || 0));
    names.sort((one, other) => total(other) - total(one));
    return chart("time by category of each configuration", 60 + 26 * rows.length + 40, (colors) =>
        plain(colors, {
            grid: { left: 130, right: 30, top: 52, bottom: 40 },
            xAxis: axis(colors, "", formatNs),
            yAxis: {
                type: "category",
                inverse: true,
                data: rows.map((row) => row.id),
                axisLabel: { color: colors.text },
                axisLine: { lineStyle: { color: colors.line } },
            },
            series: names.map((name) => ({
                name,
                type: "bar",
                stack: "all",
                itemStyle: { color: categoryColor(name) },
                data: rows.map((row) => ({
                    value: row.categories_ns[name] || 0,
                    tip: () => tip(`${row.id}: ${name}`, [["a step", formatNs(row.categories_ns[name] || 0)]]),
                })),
            })),
        }),
    );
}

// Each step is a point; the box holds the middle half, the line is the median.
function distributions(sweep, traces) {
    const found = traces.filter((trace) => trace.samples_ns.length > 1);
    if (!found.length) return note("No unprofiled steps were timed.");
    let seed = 1;
    const random = () => {
        seed = (seed * 16807) % 2147483647;
        return seed / 2147483647;
    };
    return [
        chart("unprofiled steps of each configuration", 60 + 34 * found.length + 40, (colors) =>
            plain(colors, {
                grid: { left: 130, right: 30, top: 16, bottom: 40 },
                legend: { show: false },
                xAxis: axis(colors, "", formatNs, { min: 0 }),
                yAxis: {
                    type: "value",
                    inverse: true,
                    min: -0.6,
                    max: found.length - 0.4,
                    axisTick: { show: false },
                    axisLabel: {
                        color: colors.text,
                        customValues: found.map((_, place) => place),
                        formatter: (value) => (found[value] ? printable(found[value].name) : ""),
                    },
                    splitLine: { show: false },
                    axisLine: { lineStyle: { color: colors.line } },
                },
                series: [
                    {
                        type: "scatter",
                        symbolSize: 3,
                        itemStyle: { opacity: 0.35 },
                        data: found.flatMap((trace, place) =>
                            thinned(trace.samples_ns, sweep.most_samples).map((value) => ({
                                value: [value, place + 0.5 * (random() - 0.5)],
                                tip: () => tip(trace.name, [["a step", formatNs(value)]]),
                            })),
                        ),
                    },
                    {
                        type: "custom",
                        data: found.map((trace, place) => {
                            const wall = trace.document.measurement.wall;
                            return {
                                value: [wall.p25_ns, wall.p75_ns, wall.median_ns, place],
                                tip: () =>
                                    tip(trace.name, [
                                        ["median", formatNs(wall.median_ns)],
                                        ["middle half", `${formatNs(wall.p25_ns)} to ${formatNs(wall.p75_ns)}`],
                                        ["least and most", `${formatNs(wall.min_ns)}, ${formatNs(wall.max_ns)}`],
                                        ["samples", formatCount(wall.count)],
                                    ]),
                            };
                        }),
                        encode: { x: [0, 1, 2], y: 3 },
                        renderItem: (params, api) => {
                            const at = (value) => api.coord([api.value(value), api.value(3)]);
                            const [low, high, median] = [at(0), at(1), at(2)];
                            return {
                                type: "group",
                                children: [
                                    {
                                        type: "rect",
                                        shape: {
                                            x: low[0],
                                            y: low[1] - 9,
                                            width: Math.max(high[0] - low[0], 1),
                                            height: 18,
                                        },
                                        style: { fill: "transparent", stroke: colors.text, lineWidth: 1 },
                                    },
                                    {
                                        type: "line",
                                        shape: { x1: median[0], y1: median[1] - 12, x2: median[0], y2: median[1] + 12 },
                                        style: { stroke: "#e15759", lineWidth: 2 },
                                    },
                                ],
                            };
                        },
                    },
                ],
            }),
        ),
        note(sweep.samples_note),
    ];
}

const thinned = (values, most) =>
    values.length <= most ? values : values.filter((_, place) => place % Math.ceil(values.length / most) === 0);
