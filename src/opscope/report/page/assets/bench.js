// Saved benchmarks: what they say, variants with their intervals, and sizes against the device's limit.
import { sectionOf } from "./blocks.js";
import { axis, chart, intervalChart, plain, tip } from "./charts.js";
import { el } from "./dom.js";
import { formatCount, formatNs, formatShare, least, most } from "./units.js";

/** @type {[string, string][]} */
const MEASURES = [
    ["kernel_ns", "kernels, cold cache"],
    ["kernel_warm_ns", "kernels, warm cache"],
    ["event_ns", "events"],
    ["graph_ns", "graph replay"],
    ["issue_ns", "issuing"],
    ["wall_ns", "host's clock"],
];

export function benchView(page) {
    return page.benchmarks.map((doc, place) => {
        const cases = new Map();
        for (const result of doc.results) {
            if (!cases.has(result.case)) cases.set(result.case, []);
            cases.get(result.case).push(result);
        }
        return sectionOf(
            page.benchmark_sections[place],
            [...cases].map(([name, results]) => benchCase(name, results)),
        );
    });
}

const parametersText = (values) =>
    Object.entries(values)
        .map(([name, value]) => `${name}=${value}`)
        .join(", ");
const spread = (duration) =>
    duration.ci_low === null ? "" : `${formatNs(duration.ci_low)} to ${formatNs(duration.ci_high)}`;

// The durations of a case, of the first kind that all timed variants have.
function benchCase(name, results) {
    const timed = results.filter((result) => result.wall_ns !== null);
    const known = MEASURES.filter(([key]) => results.some((result) => result[key] !== null));
    const measure = known.find(([key]) => timed.every((result) => result[key] !== null)) || known[0];
    if (!measure) return null;
    return el(
        "div",
        { class: "bench" },
        el("h3", null, name),
        sizeSweep(results, measure) || intervals(results, measure),
    );
}

// Medians with their intervals, one line a variant.
function intervals(results, [key, label]) {
    const title = (result) =>
        `${result.name}${Object.keys(result.parameters).length ? ` ${parametersText(result.parameters)}` : ""}`;
    const found = results
        .filter((result) => result[key])
        .map((result) => ({
            name: title(result),
            low: result[key].ci_low ?? result[key].median,
            high: result[key].ci_high ?? result[key].median,
            median: result[key].median,
            about: [
                ["median", formatNs(result[key].median)],
                ["95 %", spread(result[key])],
                ["samples", formatCount(result[key].n)],
            ],
        }));
    return intervalChart(label, found, formatNs);
}

// Bytes and operations a second over the size, against the limit, where one parameter has several numbers.
function sizeSweep(results, [key, label]) {
    const numbers = (name) => new Set(results.map((result) => sizeOf(result.parameters[name])));
    const along = Object.keys(results[0].parameters).find(
        (name) => results.every((result) => sizeOf(result.parameters[name]) !== null) && numbers(name).size > 2,
    );
    if (!along) return null;
    const title = (result) =>
        [
            result.name,
            ...Object.entries(result.parameters)
                .filter(([name]) => name !== along)
                .map(([name, value]) => `${name}=${value}`),
        ].join(" ");
    const groups = new Map();
    for (const result of results.filter((one) => one[key])) {
        if (!groups.has(title(result))) groups.set(title(result), []);
        groups.get(title(result)).push(result);
    }
    // The limit is of a size and of all other parameters: where it differs between these, there are several lines.
    const others = (result) =>
        Object.entries(result.parameters)
            .filter(([name]) => name !== along)
            .map(([name, value]) => `${name}=${value}`)
            .join(" ");
    const limits = new Map();
    for (const one of results.filter((result) => result.limit && result.limit.ideal_ns !== null)) {
        if (!limits.has(others(one))) limits.set(others(one), new Map());
        limits.get(others(one)).set(sizeOf(one.parameters[along]), one.limit.ideal_ns);
    }
    const ideals = [...limits.values()].flatMap((line) => [...line.values()]);
    const sizes = results.map((one) => sizeOf(one.parameters[along]));
    const times = results.filter((one) => one[key]).map((one) => one[key].median);
    return chart(`${label} over ${along}, with the limit`, 400, (colors) =>
        plain(colors, {
            xAxis: axis(colors, along, (value) => formatCount(value), {
                type: "log",
                logBase: 2,
                min: least(sizes),
                max: most(-Infinity, sizes),
            }),
            yAxis: axis(colors, label, formatNs, {
                type: "log",
                nameGap: 62,
                min: least([...times, ...ideals]) / 2,
                max: most(-Infinity, times) * 2,
            }),
            grid: { left: 92, right: 28, top: 54, bottom: 58 },
            series: [
                ...[...groups].map(([name, found]) => ({
                    name,
                    type: "line",
                    symbolSize: 5,
                    data: found
                        .sort((one, other) => sizeOf(one.parameters[along]) - sizeOf(other.parameters[along]))
                        .map((result) => ({
                            value: [sizeOf(result.parameters[along]), result[key].median],
                            tip: () =>
                                tip(`${name}, ${along}=${result.parameters[along]}`, [
                                    ["median", formatNs(result[key].median)],
                                    ["95 %", spread(result[key])],
                                    ["of limit", formatShare(result.limit ? result.limit.share : null, 1)],
                                ]),
                        })),
                })),
                ...[...limits].map(([name, line]) => ({
                    name: ["the device's limit", limits.size > 1 ? name : ""].join(" ").trim(),
                    type: "line",
                    showSymbol: false,
                    lineStyle: { type: "dashed", color: colors.soft },
                    itemStyle: { color: colors.soft },
                    data: [...line].sort((one, other) => one[0] - other[0]),
                })),
            ],
        }),
    );
}

function sizeOf(text) {
    const match = /^(\d+(?:\.\d+)?)([kKMG]?)$/.exec(String(text));
    return match ? Number(match[1]) * { "": 1, k: 1024, K: 1024, M: 1024 ** 2, G: 1024 ** 3 }[match[2]] : null;
}
