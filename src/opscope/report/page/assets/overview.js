// The verdict, where a step goes, what to do first, and how far that can be trusted.
import { app } from "./app.js";
import { blocksOf, partsOf, sectionOf } from "./blocks.js";
import { axis, chart, plain, tip } from "./charts.js";
import { categoryColor, partColor } from "./data.js";
import { add, button, clear, el, facts, figure, nameOf, note, section, sentenceOf, tooltip } from "./dom.js";
import { closeTimes } from "./ticks.js";
import { formatBytes, formatCount, formatNs, formatShare, largestOf, most } from "./units.js";

export function overview(data) {
    const { trust, environment } = data.trace;
    return [verdict(data), actions(data), whatIf(data), categories(data), foldedOf(trust), sectionOf(environment)];
}

function verdict(data) {
    const { document: doc, trace } = data;
    return el(
        "section",
        { class: "part verdict" },
        el("div", { class: "screen" }, blocksOf(trace.screen)),
        stepBars(data),
        el(
            "div",
            { class: "figures" },
            trace.figures.map(({ label, value, unit, about }) => big(label, value, FORMATS[unit], about)),
        ),
        doc.bound.evidence ? details("How that is known", () => note(doc.bound.evidence)) : null,
        doc.light ? note(doc.light.sentence) : null,
        doc.capture && doc.capture.steady_state ? note(doc.capture.steady_state) : null,
        trace.samples_ns.length > 1
            ? details("Unprofiled steps, one by one", () =>
                  chart("times of unprofiled steps", 220, (colors) => samplesOption(colors, trace.samples_ns)),
              )
            : null,
    );
}

/** @type {Record<string, (value: number) => string>} */
const FORMATS = { ns: formatNs, bytes: formatBytes, count: formatCount, share: (value) => formatShare(value, 1) };

export function big(label, value, format, about) {
    return el(
        "div",
        { class: "big", data: { figure: label } },
        el("span", { class: "label" }, label),
        figure(value, format, { class: "figure value" }),
        about ? el("span", { class: "about" }, about) : null,
    );
}

// Made when it is first opened.
export function details(title, make) {
    const box = el("details", null, el("summary", null, title));
    box.addEventListener("toggle", () => {
        if (box.open && !box.made) {
            box.made = true;
            add(box, [make()]);
        }
    });
    return box;
}

// A section whose inner sections open.
const foldedOf = ({ title, blocks, sections }) =>
    section(
        partsOf(title),
        blocksOf(blocks),
        sections.map((inner) => details(partsOf(inner.title), () => blocksOf(inner.blocks))),
    );

function samplesOption(colors, samples) {
    const { axisLabel, ...scale } = closeTimes(samples);
    return plain(colors, {
        xAxis: axis(colors, "step", null, { min: 0, max: samples.length, nameGap: 28 }),
        yAxis: axis(colors, "", axisLabel, scale),
        grid: { left: 86, right: 28, top: 16, bottom: 46 },
        series: [
            {
                type: "scatter",
                symbolSize: 4,
                data: samples.map((value, place) => ({
                    value: [place + 1, value],
                    tip: () => tip(`step ${place + 1}`, [["took", formatNs(value)]]),
                })),
            },
        ],
    });
}

function actions(data) {
    const { findings, findings_reason: reason } = data.document;
    if (!findings.length) return reason ? section("What to do first", note(reason)) : null;
    const first = findings.filter((one) => one.is_first);
    const rest = findings.filter((one) => !one.is_first);
    return section(
        "What to do first",
        findingList(data, first),
        rest.length ? details(`${rest.length} more`, () => findingList(data, rest, first.length + 1)) : null,
    );
}

export const findingList = (data, findings, start = 1) =>
    el(
        "ol",
        { class: "findings", start },
        findings.map((one) => finding(data, one)),
    );

// Whether the timeline has what a finding is about.
function canBeShown(data, { id, where: { kernel, operator } }) {
    const { timeline } = data ? data.trace : {};
    if (!timeline) return false;
    return (
        timeline.marks.some((mark) => mark.finding === id) ||
        [kernel, operator].some((name) => name && data.ranOnDevice(name))
    );
}

function finding(data, one) {
    const { low, high } = one.saving_ns;
    const scale = one.of_step_ns || 1;
    return el(
        "li",
        { data: { finding: one.id } },
        el(
            "div",
            { class: "head" },
            el("strong", null, sentenceOf(one.title)),
            el("a", { class: "rule", href: app.addressOf(data, one.id), title: "a link to this finding" }, one.rule),
            canBeShown(data, one)
                ? button("show", () => app.showFinding(data, one), { class: "plain", title: "in the timeline" })
                : null,
        ),
        el(
            "div",
            { class: "saving" },
            one.saving ? `could save ${one.saving}` : "saves nothing by itself",
            el(
                "span",
                { class: "range", "aria-hidden": "true" },
                el("span", { class: "high", style: { width: `${Math.min(100, (100 * high) / scale)}%` } }),
                el("span", { class: "low", style: { width: `${Math.min(100, (100 * low) / scale)}%` } }),
            ),
        ),
        el("pre", { class: "action" }, el("code", null, one.action)),
        where(data, one.where),
        details("Evidence, and how to prove it", () => [
            el(
                "ul",
                null,
                one.evidence.map((fact) =>
                    el(
                        "li",
                        null,
                        sentenceOf(fact.text),
                        el("span", { class: "how", title: fact.source || "" }, fact.basis),
                    ),
                ),
            ),
            facts([
                [`how the saving follows, of the ${formatNs(one.of_step_ns)} ${one.of_step}`, one.derivation],
                ["to prove it", el("code", null, one.prove)],
                ["wrong if", one.wrong_if],
                one.overlaps.length ? ["saves some of the same time as", one.overlaps.join(", ")] : null,
            ]),
        ]),
    );
}

// A slider for each of the first findings, and the step's bar that moves with them: all combinations were replayed.
function whatIf(data) {
    const { choices } = data.trace;
    if (!choices) return null;
    const { positions, step_ns: steps } = choices;
    const base = steps[0];
    const whole = data.document.step_count ? "a step" : "of the recording";
    const longest = most(1, steps);
    const width = (ns) => `${((100 * Math.max(ns, 0)) / longest).toFixed(3)}%`;
    const left = el("span", { class: "piece left" });
    const saved = el("span", { class: "piece saved" });
    const said = el("p", { class: "said", "aria-live": "polite" });
    // At first all of them are done, as they likely would be.
    const likely = positions.indexOf("likely");
    const chosen = choices.findings.map(() => likely);
    const show = () => {
        const step = steps[chosen.reduce((at, position) => at * positions.length + position, 0)];
        left.style.width = width(step);
        saved.style.width = width(base - step);
        clear(said);
        add(said, [
            figure(step, formatNs, { data: { figure: "changed step" } }),
            step === base
                ? ` ${whole}, without the profiler`
                : ` of ${formatNs(base)} ${whole}: ${formatNs(Math.abs(base - step))} ${step < base ? "less" : "more"} (${formatShare(Math.abs(base - step), base)})`,
        ]);
    };
    const sliders = choices.findings.map((id, place) => {
        const named = data.document.findings.find((one) => one.id === id);
        const state = el("output", null, WORDS.likely);
        const slider = el("input", {
            type: "range",
            min: 0,
            max: positions.length - 1,
            step: 1,
            value: likely,
            "aria-label": `how far ${id} is done`,
            "aria-valuetext": WORDS.likely,
            data: { finding: id },
            on: {
                input: () => {
                    chosen[place] = Number(slider.value);
                    const word = WORDS[positions[chosen[place]]];
                    slider.setAttribute("aria-valuetext", word);
                    state.textContent = word;
                    show();
                },
            },
        });
        return el(
            "label",
            { class: "change" },
            el("span", { class: "name", title: named ? named.title : id }, sentenceOf(named ? named.title : id)),
            slider,
            state,
        );
    });
    show();
    return section(
        "What if",
        el("div", { class: "choices" }, sliders),
        el("div", { class: "stack whole", role: "img", "aria-label": "the step with these changes" }, left, saved),
        said,
        note(choices.basis),
    );
}

const WORDS = { none: "not done", low: "done, low", likely: "done, likely", high: "done, high" };

function where(data, place) {
    const parts = [];
    if (place.operator) parts.push(["operator", app.operatorLink(data, place.operator)]);
    if (place.python) parts.push(["line", nameOf(place.python)]);
    if (place.module) parts.push(["module", nameOf(place.module)]);
    if (place.annotation) parts.push(["range", nameOf(place.annotation)]);
    if (place.call) parts.push(["call", nameOf(place.call)]);
    if (place.kernel) parts.push(["kernel", nameOf(place.kernel)]);
    if (place.source_file) parts.push(["source", nameOf(place.source_file)]);
    return parts.length ? facts(parts) : null;
}

// One bar for the recorded step, divided; beside it, on the same scale, the unprofiled one.
function stepBars(data) {
    const { bars } = data.trace;
    if (!bars.length) return null;
    // The device that the verdict is about comes first; the others follow when they are asked for.
    const [first, ...others] = bars;
    return el(
        "div",
        { class: "step" },
        el("h2", null, first.per_step ? "Where a step goes" : "Where the time goes"),
        stepBar(first),
        others.length
            ? details(`${others.length} more ${others.length === 1 ? "device" : "devices"}`, () => others.map(stepBar))
            : null,
        note(data.trace.bars_note),
    );
}

function stepBar(bar) {
    const whole = Math.max(bar.step_ns, bar.unprofiled_ns || 0) || 1;
    const width = (ns) => `${((100 * ns) / whole).toFixed(3)}%`;
    return el(
        "div",
        { class: "stepbar", data: { device: bar.device } },
        el(
            "div",
            { class: "label" },
            bar.device < 0 ? "Device: " : `Device ${bar.device}: `,
            figure(bar.step_ns, formatNs),
            bar.per_step
                ? ` a recorded step${bar.light ? " of the light pass" : ""} (${bar.window})`
                : ` ${bar.window}`,
        ),
        el(
            "div",
            {
                class: "stack",
                role: "img",
                "aria-label": `device ${bar.device}: ${bar.parts.map((part) => `${part.name} ${formatNs(part.ns)}`).join(", ")}`,
            },
            bar.parts.map((part) =>
                hoverable(
                    el("span", {
                        class: part.name.startsWith("idle") ? "piece idle" : "piece",
                        style: { width: width(part.ns), "background-color": partColor(part.name) },
                    }),
                    () =>
                        tip(part.name, [
                            ["time", formatNs(part.ns)],
                            ["of the window", formatShare(part.ns, bar.step_ns)],
                        ]),
                ),
            ),
        ),
        bar.unprofiled_ns === null
            ? null
            : el(
                  "div",
                  { class: "stack whole" },
                  el(
                      "span",
                      { class: "piece unprofiled", style: { width: width(bar.unprofiled_ns) } },
                      "unprofiled step: ",
                      figure(bar.unprofiled_ns, formatNs),
                  ),
              ),
        el(
            "ul",
            { class: "legend" },
            bar.parts.map((part) =>
                el(
                    "li",
                    { data: { part: part.name } },
                    el("span", { class: "swatch", style: { "background-color": partColor(part.name) } }),
                    `${part.name} `,
                    figure(part.ns, formatNs),
                    ` (${formatShare(part.ns, bar.step_ns)})`,
                ),
            ),
        ),
    );
}

function hoverable(element, content) {
    element.addEventListener("mousemove", (event) => tooltip.show(event.clientX, event.clientY, content()));
    element.addEventListener("mouseleave", () => tooltip.hide());
    return element;
}

function categories(data) {
    const rows = data.document.categories;
    if (!rows.length) return null;
    const key = data.hasDevice ? "self_device_ns" : "self_cpu_ns";
    const whole = data.hasDevice ? data.deviceSum : data.cpuSum;
    const largest = largestOf(rows, (row) => row[key]);
    return section(
        data.hasDevice ? "Device time by category" : "CPU time by category",
        el(
            "div",
            { class: "bars" },
            rows
                .filter((row) => row[key] > 0)
                .map((row) =>
                    el(
                        "div",
                        { class: "line", data: { category: row.category } },
                        data.document.operators.length
                            ? button(row.category, () => app.showOperators(row.category), { class: "plain label" })
                            : el("span", { class: "label" }, row.category),
                        el(
                            "span",
                            { class: "track" },
                            el("span", {
                                class: "fill",
                                style: {
                                    width: `${((100 * row[key]) / largest).toFixed(2)}%`,
                                    "background-color": categoryColor(row.category),
                                },
                            }),
                        ),
                        el("span", { class: "number" }, figure(row[key], formatNs), ` ${formatShare(row[key], whole)}`),
                    ),
                ),
        ),
    );
}
