// Saved benchmarks: variants with their intervals, and sizes against the device's limit.
import { axis, chart, intervalChart, plain, tip } from "./charts.js";
import { el, facts, figure, nameOf, note, section } from "./dom.js";
import { DataTable, plainTable } from "./table.js";
import { fixed, formatBytes, formatCount, formatNs, formatRate, formatShare, least, most } from "./units.js";

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
        const more = page.benchmark_results_left_out[place];
        const cases = new Map();
        for (const result of doc.results) {
            if (!cases.has(result.case)) cases.set(result.case, []);
            cases.get(result.case).push(result);
        }
        return section(
            `Benchmark of ${doc.created}`,
            facts(
                [
                    ["device", deviceOf(doc)],
                    ["PyTorch", doc.framework.torch],
                    ["samples", doc.processes > 1 ? `medians of ${doc.processes} processes` : "calls"],
                    doc.false_alarms
                        ? [
                              "false alarms",
                              `${doc.false_alarms.alarms} of ${doc.false_alarms.trials} comparisons of equal functions on this machine`,
                          ]
                        : null,
                ].filter(Boolean),
            ),
            more
                ? note(
                      `These are the first ${formatCount(doc.results.length)} results; ${formatCount(more)} more are in the saved benchmark.`,
                  )
                : null,
            [...cases].map(([name, results]) => benchCase(doc, name, results)),
        );
    });
}

const deviceOf = (doc) =>
    doc.framework.device.startsWith("cuda") && doc.machine.gpus.length ? doc.machine.gpus[0].name : doc.machine.cpu;
const parametersText = (values) =>
    Object.entries(values)
        .map(([name, value]) => `${name}=${value}`)
        .join(", ");
const spread = (duration) =>
    duration.ci_low === null ? "" : `${formatNs(duration.ci_low)} to ${formatNs(duration.ci_high)}`;

function benchCase(doc, name, results) {
    const found = MEASURES.filter(([key]) => results.some((result) => result[key] !== null));
    // Charts are of the first one that all timed variants have.
    const timed = results.filter((result) => result.wall_ns !== null);
    const measures = [
        ...found.filter(([key]) => timed.every((result) => result[key] !== null)),
        ...found.filter(([key]) => !timed.every((result) => result[key] !== null)),
    ];
    const keyOf = (variant, parameters) => JSON.stringify([variant, parametersText(parameters)]);
    const comparisons = new Map(
        doc.comparisons.filter((one) => one.case === name).map((one) => [keyOf(one.variant, one.parameters), one]),
    );
    const rows = results.map((result) => ({
        result,
        comparison: comparisons.get(keyOf(result.name, result.parameters)),
    }));
    const table = new DataTable({
        name: `benchmark ${name}`,
        rows,
        sort: [measures.length ? measures[0][0] : "name", false],
        search: ({ result }) => `${result.name} ${parametersText(result.parameters)}`,
        open: ({ result, comparison }) => benchDetail(result, comparison),
        columns: [
            {
                key: "name",
                label: "Variant",
                text: true,
                value: ({ result }) => result.name,
                show: ({ result }) => nameOf(result.name),
            },
            {
                key: "parameters",
                label: "Parameters",
                text: true,
                value: ({ result }) => parametersText(result.parameters) || "-",
            },
            ...measures.map(([key, label]) => ({
                key,
                label,
                value: ({ result }) => (result[key] ? result[key].median : null),
                format: formatNs,
                bar: key === measures[0][0],
            })),
            {
                key: "share",
                label: "of limit",
                value: ({ result }) => (result.limit ? result.limit.share : null),
                format: (value) => formatShare(value, 1),
            },
            {
                key: "right",
                label: "Right?",
                text: true,
                value: ({ result }) => (result.correctness ? result.correctness.verdict : "-"),
                show: ({ result }) =>
                    el(
                        "span",
                        {
                            class: result.correctness
                                ? `trust ${{ wrong: "fail", right: "pass" }[result.correctness.verdict] || "warn"}`
                                : null,
                        },
                        result.correctness ? result.correctness.verdict : "-",
                    ),
            },
            {
                key: "ratio",
                label: "Ratio to first",
                value: ({ comparison }) => (comparison ? comparison.ratio : null),
                show: ({ comparison }) =>
                    comparison && comparison.ratio !== null
                        ? [
                              figure(comparison.ratio, (value) => fixed(value, 3)),
                              " ",
                              el("span", { class: `word ${comparison.verdict.replace(" ", "-")}` }, comparison.verdict),
                          ]
                        : "-",
            },
        ],
    });
    const parts = [el("h3", null, name), table.element];
    const sweep = sizeSweep(results, measures);
    if (measures.length) parts.push(sweep ? sweep : intervals(results, measures));
    return el("div", { class: "bench" }, parts);
}

function benchDetail(result, comparison) {
    return [
        facts(
            [
                result.about && ["what it is", result.about],
                result.inputs.length && ["inputs", result.inputs.join(", ")],
                result.correctness && ["correctness", result.correctness.sentence],
                comparison && ["beside the first", comparison.sentence],
                result.launched.length && ["launches", result.launched.join(", ")],
                result.limit &&
                    result.limit.ideal_ns !== null && [
                        "ideal time",
                        `${formatNs(result.limit.ideal_ns)} (peaks: ${result.limit.peaks})`,
                    ],
                result.limit &&
                    result.limit.bytes_per_s !== null && [
                        "achieved",
                        `${formatRate(result.limit.bytes_per_s, "B/s")}${result.limit.flop ? `, ${formatRate(result.limit.flop_per_s, "FLOP/s")}` : ""}`,
                    ],
                result.peak_memory_bytes !== null && ["memory of a call", formatBytes(result.peak_memory_bytes)],
                result.doubts.length && ["doubts", result.doubts.join("; ")],
            ].filter(Boolean),
        ),
        plainTable(
            "durations",
            [
                { key: "measure", label: "Duration of", text: true, value: ([, label]) => label },
                {
                    key: "median",
                    label: "Median",
                    value: ([key]) => (result[key] ? result[key].median : null),
                    format: formatNs,
                },
                {
                    key: "interval",
                    label: "95 % interval",
                    text: true,
                    value: ([key]) => (result[key] ? spread(result[key]) : result.reasons[key] || "not measured"),
                },
                {
                    key: "n",
                    label: "Samples",
                    value: ([key]) => (result[key] ? result[key].n : null),
                    format: formatCount,
                },
            ],
            MEASURES,
        ),
    ];
}

// Medians with their intervals, one line a variant.
function intervals(results, measures) {
    const [key, label] = measures[0];
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
function sizeSweep(results, measures) {
    const [key, label] = measures[0] || [];
    const numbers = (name) => new Set(results.map((result) => sizeOf(result.parameters[name])));
    const along =
        key &&
        Object.keys(results[0].parameters).find(
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
