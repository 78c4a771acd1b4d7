// Changes that were tried on a step: the best of each class with its lines, all that was tried, and loading.
const CLASSES = {
    exact: "exact to rounding",
    tf32: "products in TF32",
    bf16: "16-bit numbers",
    lower: "fewer bits",
};
const times = (value) => `${fixed(value, 2)} times`;
const short = (value) => (value === null ? "-" : fixed(value, 2));
const exponent = (value) => (value === null ? "-" : value.toExponential(1));
const between = (one) => (one.ci_low === null ? "" : `${fixed(one.ci_low, 2)} to ${fixed(one.ci_high, 2)}`);
const changesOf = (one) => one.changes.join(" + ");

function adviceView(page) {
    return page.advice.map((doc) =>
        section(
            doc.target,
            facts([
                ["device", doc.device],
                ["as written", `${formatNs(doc.baseline_ns)} a step`],
                ["differs from itself", `${fixed(doc.of_itself[0], 2)} to ${fixed(doc.of_itself[1], 2)} times as fast`],
                ["measured with", `${formatCount(doc.processes)} processes in ${fixed(doc.seconds, 0)} s`],
                doc.unfinished && ["not everything was tried", doc.unfinished],
            ]),
            Object.keys(doc.best).length ? null : note("Nothing found among the combinations that were tried."),
            Object.entries(doc.best).map(([name, place]) => bestOf(name, doc.results[place])),
            doc.input ? loadingOf(doc.input) : null,
            doc.larger_batches.length ? batchesOf(doc.larger_batches) : null,
            triedOf(doc),
        ),
    );
}

function bestOf(name, one) {
    return el(
        "div",
        { class: "best" },
        el("h3", null, `Proven, ${CLASSES[name]}: ${changesOf(one)}`),
        facts([
            ["times as fast", [figure(one.ratio, times), ` (${between(one)})`]],
            ["a step", formatNs(one.step_ns)],
            one.error !== null && [
                "error",
                `${exponent(one.error)} against ` +
                    (one.reference === "float64" ? "float64" : "the step as written in another process") +
                    (one.own_error === null ? "" : `, as written ${exponent(one.own_error)}`),
            ],
            one.compared_tensors !== null && [
                "compared",
                `${formatCount(one.compared_tensors)} tensors, ${formatCount(one.compared_elements)} elements`,
            ],
            one.memory_bytes !== null && ["memory", formatBytes(one.memory_bytes)],
            one.pays_after_steps !== null && ["pays after", `${formatCount(one.pays_after_steps)} steps`],
        ]),
        listing(one.lines.map((line) => [line, null])),
        one.caveats.map((caveat) => note(`Mind: ${caveat}.`)),
        one.patch ? patchOf(one.patch) : null,
    );
}

function patchOf(patch) {
    if (patch.diff === null) return note(`No patch: ${patch.reason}.`);
    const kinds = { "+": "added", "-": "removed", "@": "place" };
    return [
        note(`As a patch, with which the script itself was ${times(patch.ratio)} as fast (${between(patch)}):`),
        listing(
            patch.diff
                .trimEnd()
                .split("\n")
                .map((line) => [line, kinds[line[0]]]),
        ),
    ];
}

const listing = (lines) =>
    el(
        "pre",
        { class: "action" },
        lines.map(([line, kind], place) => [
            place ? document.createTextNode("\n") : null,
            el("span", { class: kind }, line),
        ]),
    );

function loadingOf(proof) {
    const memory = `${formatNs(proof.from_memory_ns)} with batches from memory, ${formatNs(proof.step_ns)} as written`;
    const ratio = `${times(proof.ratio)} as fast (${between(proof)})`;
    if (proof.undecided) return [el("h3", null, "Loading"), note(`${proof.undecided}; ${memory}: ${ratio}.`)];
    const cost = `Loading costs ${formatNs(proof.step_ns - proof.from_memory_ns)} of each step`;
    const waits = proof.blamed ? ` A step waits ${formatNs(proof.wait_ns)} for its data.` : "";
    const said = [
        el("h3", null, proof.blamed ? cost : "Loading is not to blame"),
        note(`${memory}: ${ratio}.${waits}`),
        proof.copies ? note(copiesOf(proof)) : null,
    ];
    if (!proof.others.length) return said;
    return el(
        "div",
        null,
        said,
        plainTable(
            "stages of loading",
            [
                { key: "stage", label: "Stage", text: true, value: (one) => one.stage },
                { key: "batch", label: "Per batch", value: (one) => one.batch_ns, format: formatNs },
                { key: "step", label: "Per step", value: (one) => one.step_ns, format: formatNs },
                { key: "function", label: "Mostly in", text: true, value: (one) => one.function || "-" },
                {
                    key: "where",
                    label: "Where",
                    text: true,
                    value: (one) => (one.file === null ? "-" : `${one.file}:${one.line}`),
                },
            ],
            proof.stages,
        ),
        proof.others.map((one) =>
            note(
                `${one.measured ? "Measured with" : "Computed for"} ${one.change}: ` +
                    `${formatNs(one.step_ns)} a step, ${times(one.ratio)} as fast.`,
            ),
        ),
    );
}

function copiesOf(proof) {
    const { blamed, from_device_ns: there, from_pinned_ns: pinned, ratio } = proof.copies;
    if (!blamed) return "Copies to the GPU cost no time that can be measured.";
    const cost = `Copies to the GPU cost ${formatNs(proof.from_memory_ns - there)} of each step`;
    const fast = `with batches that are there already it takes ${formatNs(there)}, ${times(ratio)} as fast as from memory`;
    return `${cost}: ${fast}${pinned === null ? "" : `; from pinned memory ${formatNs(pinned)}`}.`;
}

const batchesOf = (larger) => [
    el("h3", null, "Larger batches, which are other training; measured, and not proven"),
    plainTable(
        "larger batches",
        [
            { key: "size", label: "Batch size", value: (one) => one.batch_size, format: formatCount },
            { key: "step", label: "Step", value: (one) => one.step_ns, format: formatNs },
            { key: "ratio", label: "Times as many samples", value: (one) => one.ratio, format: short },
            { key: "interval", label: "95 %", text: true, value: between },
            { key: "why", label: "Why not", text: true, value: (one) => one.reason || "-" },
        ],
        larger,
    ),
];

function triedOf(doc) {
    const tried = doc.results.filter((one) => one.verdict !== "refused");
    const refused = doc.results.filter((one) => one.verdict === "refused");
    const timed = tried.filter((one) => one.ratio !== null);
    const columns = [
        { key: "changes", label: "Changes", text: true, value: changesOf, show: (one) => nameOf(changesOf(one)) },
        { key: "class", label: "Class", text: true, value: (one) => one.class },
        { key: "verdict", label: "Verdict", text: true, value: (one) => one.verdict },
        { key: "ratio", label: "Times as fast", value: (one) => one.ratio, format: short },
        { key: "interval", label: "95 %", text: true, value: between },
        { key: "step", label: "Step", value: (one) => one.step_ns, format: formatNs },
        { key: "error", label: "Error", value: (one) => one.error, format: exponent },
        { key: "why", label: "Why", text: true, value: (one) => one.reason },
    ];
    return [
        tried.length
            ? new DataTable({
                  name: "what was tried",
                  rows: tried,
                  sort: ["ratio", true],
                  search: changesOf,
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
        refused.length
            ? [
                  el("h3", null, "Not tried"),
                  el(
                      "ul",
                      null,
                      refused.map((one) => el("li", null, nameOf(changesOf(one)), `: ${one.reason}`)),
                  ),
              ]
            : null,
    ];
}
