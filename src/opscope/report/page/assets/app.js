// The page: which views there are, which one is shown, and how one leads to another.
// Each with whether a trace has anything for it: a view that no trace fills has no tab.
import { adviceView } from "./advise.js";
import { benchView } from "./bench.js";
import { drawnCharts, redrawCharts } from "./charts.js";
import { countersView } from "./counters.js";
import { licenses, takeColors, TraceData, unpacked } from "./data.js";
import { diffView } from "./diff.js";
import { add, button, choice, clear, el, facts, nameOf, printable, tooltip } from "./dom.js";
import { flameView } from "./flame.js";
import { Lanes } from "./lanes.js";
import { busyWithin } from "./measure.js";
import { memoryView } from "./memory.js";
import { kernelTable, operatorTable } from "./operators.js";
import { details, overview } from "./overview.js";
import { ranksView } from "./ranks.js";
import { rooflineView } from "./roofline.js";
import { hasSteps, stepsView } from "./steps.js";
import { snapshotsView } from "./snapshots.js";
import { sweepView } from "./sweep.js";
import { closeTimes, roundPowers, roundScale, timeTicks, withoutZeros } from "./ticks.js";
import { timelineView } from "./timeline.js";

/**
 * A view: its key, its label, what draws it, and whether there is anything for it.
 *
 * @typedef {[string, string, (of: any) => any, (of: any) => any]} View
 */

/** @type {View[]} */
const TRACE_VIEWS = [
    ["overview", "Overview", overview, () => true],
    ["operators", "Operators", operatorTable, ({ document }) => document.operators.length > 0],
    ["kernels", "Kernels", kernelTable, ({ document }) => document.kernels.length > 0],
    ["timeline", "Timeline", timelineView, ({ timeline }) => timeline !== null],
    ["steps", "Steps", stepsView, hasSteps],
    ["flame", "Flame", flameView, ({ flames }) => flames.some((one) => one.parent.length)],
    [
        "roofline",
        "Roofline",
        rooflineView,
        ({ document }) => document.limits !== null && document.limits.rows.length > 0,
    ],
    ["memory", "Memory", memoryView, (trace) => trace.memory.length > 0 || trace.document.measurement.memory !== null],
];
/** @type {View[]} */
const PAGE_VIEWS = [
    ["diff", "Difference", diffView, (page) => page.difference !== null],
    ["sweep", "Sweep", sweepView, (page) => page.sweeps.length > 1 || page.sweeps.some(isSweep)],
    ["ranks", "Ranks", ranksView, (page) => page.jobs.length > 0],
    ["advice", "Advice", adviceView, (page) => page.advice.length > 0],
    ["bench", "Benchmarks", benchView, (page) => page.benchmarks.length > 0],
];
// Beside a trace, what was counted and what was allocated come after what was timed.
/** @type {View[]} */
const LAST_VIEWS = [
    ["snapshots", "Memory by owner", snapshotsView, (page) => page.snapshots.length > 0],
    ["counters", "Counters", countersView, (page) => page.counters !== null],
];

// A run of one configuration has nothing to compare.
const isSweep = ({ comparison }) => comparison.rows.length + comparison.failed.length + comparison.pending.length > 1;

class App {
    constructor(page) {
        this.page = page;
        this.traces = page.traces.map((trace) => new TraceData(trace));
        this.views = [
            ...PAGE_VIEWS.filter(([, , , has]) => has(page)),
            ...TRACE_VIEWS.filter(([, , , has]) => page.traces.some(has)),
            ...LAST_VIEWS.filter(([, , , has]) => has(page)),
        ];
        this.current = 0;
        this.made = new Map();
        this.main = el("main", { tabindex: -1 });
        this.tabs = this.views.map(([key, label], number) =>
            el(
                "button",
                {
                    type: "button",
                    role: "tab",
                    id: `tab-${key}`,
                    title: `${number + 1}`,
                    data: { view: key },
                    on: { click: () => this.show(key) },
                },
                label,
            ),
        );
        this.nav = el("nav", null, el("div", { role: "tablist", "aria-label": "views" }, this.tabs));
        this.nav.addEventListener("keydown", (event) => {
            const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
            if (!step) return;
            const next =
                this.tabs[(this.tabs.indexOf(document.activeElement) + step + this.tabs.length) % this.tabs.length];
            next.focus();
            next.click();
        });
        const shell = document.getElementById("app");
        add(clear(shell), [this.header(), this.nav, this.main, this.footer(), tooltip.box]);
        document.addEventListener("keydown", (event) => this.onKey(event));
        addEventListener("hashchange", () => this.follow());
        // On paper it is light, drawings too.
        addEventListener("beforeprint", () => {
            this.chosen = document.documentElement.dataset.theme;
            document.documentElement.dataset.theme = "light";
            this.scrolled = this.traces.map(({ timeline }) => (timeline ? timeline.scroller.scrollTop : 0));
            this.recolor(true);
        });
        addEventListener("afterprint", () => {
            if (this.chosen) document.documentElement.dataset.theme = this.chosen;
            else document.documentElement.removeAttribute("data-theme");
            this.recolor();
            this.traces.forEach(({ timeline }, number) => {
                if (timeline) timeline.scroller.scrollTop = this.scrolled[number];
            });
        });
        matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolor());
    }

    header() {
        this.picker =
            this.traces.length > 1
                ? el(
                      "select",
                      { "aria-label": "configuration", on: { change: () => this.choose(Number(this.picker.value)) } },
                      this.traces.map((data, number) =>
                          el(
                              "option",
                              { value: number },
                              this.page.sweeps.length > 1 && data.trace.sweep
                                  ? `${data.trace.sweep}: ${data.trace.name}`
                                  : data.trace.name,
                          ),
                      ),
                  )
                : null;
        return el(
            "header",
            null,
            el("h1", null, this.page.title),
            this.picker,
            el("span", { class: "spacer" }),
            choice(
                "colours",
                [
                    ["auto", "auto"],
                    ["light", "light"],
                    ["dark", "dark"],
                ],
                "auto",
                (value) => this.theme(value),
            ),
            button("?", () => this.help(), { "aria-label": "help", class: "help" }),
        );
    }

    footer() {
        return el(
            "footer",
            null,
            `opscope ${this.page.opscope}, ${this.page.created}. Everything is in this file; it loads nothing. `,
            details("Licences of the parts of this page", () =>
                el("pre", { class: "licenses" }, licenses().replaceAll("<\\/", "</")),
            ),
        );
    }

    theme(value) {
        if (value === "auto") document.documentElement.removeAttribute("data-theme");
        else document.documentElement.dataset.theme = value;
        this.recolor();
    }

    recolor(atOnce) {
        for (const { timeline } of this.traces) if (timeline) timeline.fit(atOnce);
        redrawCharts();
        for (const data of this.traces)
            for (const view of [data.timeline, data.flame])
                if (view) {
                    if (atOnce) view.surface.drawNow();
                    else view.surface.redraw();
                }
    }

    // A view is made when it is first shown, and kept.
    show(key, quiet) {
        const view = this.views.find(([name]) => name === key);
        if (!view) return;
        const began = performance.now();
        this.shown = key;
        const ofTrace = TRACE_VIEWS.includes(view);
        const name = ofTrace ? `${key} ${this.current}` : key;
        if (!this.made.has(name)) {
            const panel = el("div", { role: "tabpanel", class: `view of-${key}`, "aria-labelledby": `tab-${key}` });
            this.made.set(name, panel);
            clear(this.main).append(panel);
            add(panel, [this.drawn(view, ofTrace ? this.traces[this.current] : this.page)]);
        } else {
            clear(this.main).append(this.made.get(name));
        }
        this.tabs.forEach((tab) => {
            const mine = tab.dataset.view === key;
            tab.setAttribute("aria-selected", mine);
            tab.tabIndex = mine ? 0 : -1;
        });
        if (this.picker) {
            this.picker.value = this.current;
            this.picker.hidden = !ofTrace;
        }
        tooltip.hide();
        this.main.dataset.shownMs = (performance.now() - began).toFixed(1);
        if (!quiet) this.remember();
    }

    // A view that cannot be drawn costs no other one.
    /** @param {View} view */
    drawn([, label, make], data) {
        try {
            return make(data);
        } catch (error) {
            console.error(error);
            const reason = `${label} cannot be drawn: ${error.message}. That is a fault of opscope's.`;
            return el("p", { class: "trust fail" }, reason);
        }
    }

    choose(number) {
        this.current = number;
        this.show(TRACE_VIEWS.some(([key]) => key === this.shown) ? this.shown : "overview");
    }

    chooseTrace(name, comparison) {
        const sweep = this.page.sweeps.find((one) => one.comparison === comparison);
        const number = this.traces.findIndex((data) => data.trace.name === name && data.trace.sweep === sweep.name);
        if (number >= 0) {
            this.current = number;
            this.show("overview");
        }
    }

    // The address keeps the view, so that it can be sent; where a page has no address of its own, it is not kept.
    remember() {
        try {
            const { timeline } = this.traces[this.current] || {};
            const state = this.shown === "timeline" && timeline ? `&${timeline.state()}` : "";
            history.replaceState(null, "", `#${this.shown}${this.current ? `,${this.current}` : ""}${state}`);
        } catch {
            /* in a frame */
        }
    }

    // While one moves about, the address follows when one rests.
    rememberSoon() {
        clearTimeout(this.resting);
        this.resting = setTimeout(() => this.shown === "timeline" && this.remember(), 250);
    }

    // An address such as #timeline,1&t=0..5000&sel=12, or only #t=0..5000: times in nanoseconds, the number of a slice.
    follow() {
        const parts = location.hash.slice(1).split("&");
        const [key, number] = parts[0].includes("=") ? ["timeline"] : parts.shift().split(",");
        const state = new URLSearchParams(parts.join("&"));
        if (number && this.traces[Number(number)]) this.current = Number(number);
        this.show(this.views.some(([name]) => name === key) ? key : this.views[0][0], true);
        const { timeline } = this.traces[this.current] || {};
        if (this.shown === "timeline" && timeline && state.size) timeline.restore(state);
        if (this.shown === "overview" && state.has("finding")) this.pointAt(state.get("finding"));
    }

    addressOf(data, finding) {
        return `#overview,${this.traces.indexOf(data)}&finding=${encodeURIComponent(finding)}`;
    }

    // The finding that an address names.
    pointAt(finding) {
        for (const one of this.main.querySelectorAll("li[data-finding]")) {
            one.classList.toggle("pointed", one.dataset.finding === finding);
            if (one.dataset.finding === finding) one.scrollIntoView({ block: "center" });
        }
    }

    operatorLink(data, name) {
        return data && data.categoryOf.has(name)
            ? button(name, () => this.reveal(data, "operators", name), { class: "plain name", title: printable(name) })
            : nameOf(name);
    }

    reveal(data, view, name, device) {
        this.current = this.traces.indexOf(data);
        this.show(view);
        const table = view === "operators" ? data.operatorTable : data.kernelTable;
        const row = table.options.rows.find(
            (one) => one.name === name && (device === undefined || one.device === device),
        );
        if (row) table.reveal(row);
    }

    showOperators(category) {
        this.show("operators");
        this.traces[this.current].operatorTable.filter(category);
    }

    showInTimeline(name) {
        this.show("timeline");
        const { timeline } = this.traces[this.current];
        timeline.mark(name, true);
        if (timeline.matches.length) timeline.step(1);
    }

    showFinding(data, finding) {
        this.current = this.traces.indexOf(data);
        this.show("timeline");
        data.timeline.showFinding(finding);
    }

    onKey(event) {
        if (
            document.querySelector("dialog") ||
            event.ctrlKey ||
            event.metaKey ||
            event.altKey ||
            event.target.closest("input, select, textarea")
        )
            return;
        if (/^[1-9]$/.test(event.key) && this.tabs[event.key - 1]) {
            this.tabs[event.key - 1].click();
            this.tabs[event.key - 1].focus();
        } else if (event.key === "/") {
            const search = this.main.querySelector("input[type=search]");
            if (search) {
                event.preventDefault();
                search.focus();
            }
        } else if (event.key === "?") this.help();
        else if (/^[a-z+=-]$/i.test(event.key) && this.shown === "timeline") {
            // Letters are the timeline's wherever the focus is; arrows and Enter belong to what has it.
            const { timeline } = this.traces[this.current];
            if (timeline) timeline.key(event);
        }
    }

    help() {
        const dialog = el(
            "dialog",
            { class: "helpbox" },
            el("h2", null, "Keys"),
            facts([
                ["1 to 9", "a view"],
                ["/", "search"],
                ["arrow keys", "from row to row, in tabs, timeline and flame view"],
                ["Enter", "open a row, a slice, a node"],
                [
                    "Timeline",
                    "W and S, or + and -, zoom (W and S where the pointer is); A and D, or left and right, pan; up and down scroll; 0 shows all",
                ],
                [
                    "",
                    "drag, or m, measures a range (m: the chosen slice, else what is shown); Shift with left and right moves its end; Escape leaves it, then the chosen slice, then a search",
                ],
                [
                    "",
                    "n and p go from slice to slice, of those found or of the track; g goes along an arrow; z zooms to the chosen slice; f folds its track; c shows the critical path",
                ],
                ["Flame view", "Enter zooms in, Escape out"],
                ["Tab", "everything else"],
            ]),
            el(
                "form",
                { method: "dialog" },
                button("close", () => dialog.close()),
            ),
        );
        dialog.addEventListener("close", () => dialog.remove());
        document.body.append(dialog);
        dialog.showModal();
    }
}

/** @type {App | null} */
export let app = null;

(async () => {
    const shell = document.getElementById("app");
    try {
        const page = await unpacked();
        takeColors(page);
        app = new App(page);
        app.follow();
        // What tests and curious users read: the document, how long drawing took, where ticks and points stand.
        window.opscopePage = {
            document: page,
            app,
            Lanes,
            busyWithin,
            charts: drawnCharts,
            ticks: { timeTicks, roundScale, roundPowers, closeTimes, withoutZeros },
        };
    } catch (error) {
        add(clear(shell), [
            el(
                "p",
                { class: "trust fail" },
                `This page cannot be drawn: ${error.message}. It needs a browser of 2023 or later.`,
            ),
        ]);
        throw error;
    } finally {
        shell.setAttribute("aria-busy", "false");
        shell.dataset.readyMs = performance.now().toFixed(0);
    }
})();
