// Changes that were tried on a step: what Python wrote of them, then all that was tried, as a table and a chart.
import { sectionOf } from "./blocks.js";
import { intervalChart } from "./charts.js";
import { nameOf } from "./dom.js";
import { DataTable, textColumn, timeColumn } from "./table.js";
import { fixed } from "./units.js";

const times = (value) => `${fixed(value, 2)} times`;
const exponent = (value) => (value === null ? "-" : value.toExponential(1));
const between = (one) => (one.ci_low === null ? "" : `${fixed(one.ci_low, 2)} to ${fixed(one.ci_high, 2)}`);
const changesOf = (one) => one.changes.join(" + ");

export const adviceView = (page) =>
    page.advice.map((doc, place) => sectionOf(page.advice_sections[place], triedOf(doc)));

function triedOf(doc) {
    const tried = doc.results.filter((one) => one.verdict !== "refused");
    const timed = tried.filter((one) => one.ratio !== null);
    const columns = [
        textColumn("changes", "Changes", changesOf, (one) => nameOf(changesOf(one))),
        textColumn("class", "Class"),
        textColumn("verdict", "Verdict"),
        { key: "ratio", label: "Times as fast", value: (one) => one.ratio, format: (value) => fixed(value, 2) },
        textColumn("interval", "95 %", between),
        timeColumn("step", "Step", { value: (one) => one.step_ns }),
        { key: "error", label: "Error", value: (one) => one.error, format: exponent },
        textColumn("why", "Why", (one) => one.reason),
    ];
    return [
        tried.length
            ? new DataTable({
                  name: "what was tried",
                  rows: tried,
                  sort: ["ratio", true],
                  search: (one) => one.changes,
                  columns,
              }).element
            : null,
        timed.length
            ? intervalChart(
                  "times as fast, with intervals",
                  timed.map((one) => ({
                      name: changesOf(one),
                      low: one.ci_low ?? one.ratio,
                      high: one.ci_high ?? one.ratio,
                      median: one.ratio,
                      about: [
                          ["median", times(one.ratio)],
                          ["95 %", between(one)],
                      ],
                  })),
                  (value) => fixed(value, 1),
              )
            : null,
    ];
}
