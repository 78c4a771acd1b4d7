// The timeline: devices, threads and curves of the chosen steps, from the whole down to a single activity.
import { app } from "./app.js";
import { Surface } from "./canvas.js";
import { tip } from "./charts.js";
import { categoryColor, causeColor, hashed, sum } from "./data.js";
import { add, button, clear, el, facts, link, note, shapes, tooltip } from "./dom.js";
import { Curve, Lanes, Strips } from "./lanes.js";
import { measured, rangeReport } from "./measure.js";
import { details } from "./overview.js";
import { drawTimeline } from "./timeline_drawing.js";
import { formatCount, formatNs } from "./units.js";

export const ROW_HEIGHT = 17;
const TRACK_GAP = 7;
export const LABEL_HEIGHT = 16;
export const AXIS_HEIGHT = 30;
export const CURVE_HEIGHT = 34;
const MOST_HEIGHT = 4000;
const MANY_ROWS = 12; // a track of more rows of Python begins folded
export const MOST_ARROWS = 60;
const NEAREST = 20; // nanoseconds: one does not look closer
const HOST_COLORS = { call: "#c9a227" };

const HOST_KINDS = new Set(["operator", "module", "range", "python"]);

export class Timeline {
    constructor(data) {
        this.data = data;
        this.entry = data.trace.timeline;
        this.names = data.trace.names;
        const colorOf = (lanes, name, operator) => this.colorOf(lanes.kind, name, operator);
        this.lanes = [];
        this.slices = 0;
        for (const track of this.entry.tracks) {
            this.lanes.push(new Lanes(track, this.slices, colorOf));
            this.slices += track.start.length;
        }
        this.severalDevices =
            new Set(this.lanes.filter((one) => one.kind === "stream").map((one) => one.device)).size > 1;
        this.curves = this.entry.curves.map((curve) => new Curve(curve));
        this.length = this.entry.duration_ns;
        this.view = { start: 0, end: this.length };
        /** @type {{start: number, end: number} | null} What is measured, in nanoseconds. */
        this.range = null;
        /** @type {import("./timeline_drawing.js").Slice | null} */
        this.selected = null;
        this.matches = [];
        this.showsPath = false;
        /** @type {any} Where the axis has its ticks, as last drawn. */
        this.axisTicks = null;
        this.pointer = null;
        this.labels = this.names.map((name) => data.shortOf.get(name) || name);
        this.strips = new Strips();
        this.tracks = this.arranged();
        this.place();
        this.surface = new Surface(
            "timeline: W and S or + and - zoom, A and D or arrow keys pan, 0 shows all, drag or M measures, " +
                "n and p go from slice to slice, g follows an arrow, c shows the critical path, f folds, Enter opens the row",
            (context, width, height, colors) => drawTimeline(this, context, width, height, colors),
        );
        this.element = this.layout();
    }

    colorOf(kind, name, operator) {
        const text = this.names[operator >= 0 ? operator : name];
        if (kind === "idle") return causeColor(text);
        if (HOST_COLORS[kind]) return HOST_COLORS[kind];
        const category = this.data.categoryOf.get(text);
        if (category) return categoryColor(category);
        return hashed(text.startsWith("ProfilerStep#") ? "ProfilerStep" : text); // steps are of one colour
    }

    // A device's idle time, streams and curves stand together; then come the threads, and what is of the host alone.
    arranged() {
        /** @type {import("./timeline_drawing.js").Track[]} */
        const tracks = this.lanes.map((lanes) => ({
            lanes,
            label: lanes.label,
            folded: lanes.kind === "python" && lanes.rowCount > MANY_ROWS,
            top: 0,
            height: 0,
        }));
        for (const curve of this.curves) {
            let last = -1;
            tracks.forEach((track, at) => {
                const of = track.lanes
                    ? ["stream", "idle"].includes(track.lanes.kind) && track.lanes.device
                    : track.curve.device;
                if (of === curve.device && of !== false) last = at;
            });
            const onHost =
                curve.kind === "memory" &&
                curve.device === null &&
                this.lanes.some((one) => one.kind === "stream" && one.device !== null);
            tracks.splice(last < 0 || onHost ? tracks.length : last + 1, 0, {
                curve,
                label: curve.label,
                folded: false,
                top: 0,
                height: 0,
            });
        }
        return tracks;
    }

    // Put the tracks below each other.
    place() {
        let top = AXIS_HEIGHT;
        for (const track of this.tracks) {
            track.top = top;
            track.height = track.folded ? 0 : track.curve ? CURVE_HEIGHT : track.lanes.rowCount * ROW_HEIGHT;
            top += LABEL_HEIGHT + track.height + TRACK_GAP;
        }
        this.fullHeight = top;
        this.trackOf = new Map(this.tracks.map((track) => [track.lanes || track.curve, track]));
        if (this.inner) this.inner.style.height = `${this.fullHeight}px`;
    }

    layout() {
        this.search = el("input", {
            type: "search",
            placeholder: "find operator, kernel, module, line",
            "aria-label": "find in the timeline",
            on: {
                input: () => this.mark(this.search.value),
                keydown: (event) => {
                    if (event.key !== "Enter") return;
                    event.preventDefault();
                    this.step(event.shiftKey ? -1 : 1);
                },
            },
        });
        this.found = el("span", { class: "count", "aria-live": "polite" });
        this.inner = el(
            "div",
            { class: "timeline-height", style: { height: `${this.fullHeight}px` } },
            this.surface.canvas,
        );
        this.scroller = el("div", { class: "timeline-scroll" }, this.inner);
        this.fit();
        addEventListener("resize", () => this.fit());
        this.detail = el("div", { class: "slice detail", "aria-live": "polite" });
        this.measure = el("div", { class: "measure detail", "aria-live": "polite" });
        this.scroller.addEventListener("scroll", () => this.surface.redraw());
        this.listen(this.surface.canvas);
        this.pathButton = this.entry.path
            ? button("critical path", () => this.showPath(!this.showsPath), { title: "c", "aria-pressed": "false" })
            : null;
        return el(
            "div",
            { class: "timeline" },
            el(
                "div",
                { class: "tools" },
                this.search,
                button("previous", () => this.step(-1), { title: "p" }),
                button("next", () => this.step(1), { title: "n" }),
                this.found,
                el("span", { class: "spacer" }),
                this.trackList(),
                this.pathButton,
                button("measure", () => this.measureChosen(), { title: "m: the chosen slice, else what is shown" }),
                button("−", () => this.zoom(1.6), { "aria-label": "zoom out", title: "-" }),
                button("+", () => this.zoom(1 / 1.6), { "aria-label": "zoom in", title: "+" }),
                button("all", () => this.show(0, this.length), { title: "0" }),
                link("https://ui.perfetto.dev", "Perfetto", "opens ui.perfetto.dev, where you can drop the trace file"),
            ),
            this.scroller,
            el("div", { class: "chosen" }, this.detail, this.measure),
            this.notes(),
            this.legend(),
        );
    }

    notes() {
        const {
            steps,
            all_steps: all,
            slice_count: count,
            merged_below_ns: below,
            python_merged_below_ns: python,
        } = this.entry;
        const shown = steps.length
            ? `${steps.length === 1 ? "Step" : "Steps"} ${ranges(steps)} of ${ranges(all)}, `
            : "";
        const { path } = this.entry;
        return note(
            `${shown}${formatNs(this.length)}, ${formatCount(count)} slices. `,
            below
                ? `Neighbours shorter than ${formatNs(below)} are drawn as one; choose fewer steps (--steps) to see each. `
                : python
                  ? `Python's frames shorter than ${formatNs(python)} are drawn with their neighbours. `
                  : "",
            this.data.document.light && this.data.document.light.agrees
                ? "It is of the pass with names, which slows the host down more than the light one that the verdict rests on. "
                : "",
            path
                ? `The critical path is that of ${path.steps.length ? `${path.steps.length === 1 ? "step" : "steps"} ${ranges(path.steps)}` : "the recording"}, as recorded. `
                : "",
            "Drag to measure; Shift and drag to pan; W A S D or Ctrl and the wheel move, as does the wheel alone once the timeline was clicked; double-click zooms to a slice; ? lists the keys.",
        );
    }

    // Which tracks are unfolded: for the keyboard, and where there are many.
    trackList() {
        const list = details("tracks", () => {
            this.boxes = this.tracks.map((track) => {
                const box = el("input", { type: "checkbox", on: { change: () => this.fold(track, !box.checked) } });
                box.checked = !track.folded;
                return el("label", null, box, track.label);
            });
            return el("div", { class: "track-list" }, this.boxes);
        });
        list.classList.add("tracks");
        return list;
    }

    fold(track, folded) {
        track.folded = folded;
        this.place();
        this.fit();
        if (this.boxes) this.boxes[this.tracks.indexOf(track)].querySelector("input").checked = !folded;
        this.surface.redraw();
    }

    legend() {
        const used = (kind) => this.lanes.filter((lanes) => lanes.kind === kind);
        const causes = new Set(
            used("idle").flatMap((lanes) => [...new Set(lanes.name)].map((name) => this.names[name])),
        );
        const categories = new Set(
            used("stream").flatMap((lanes) =>
                [...new Set(lanes.operator)]
                    .filter((one) => one >= 0)
                    .map((one) => this.data.categoryOf.get(this.names[one]) || "Other"),
            ),
        );
        const item = (color, name, kind) =>
            el("li", null, el("span", { class: `swatch ${kind}`, style: { "background-color": color } }), name);
        return el(
            "ul",
            { class: "legend" },
            [...categories].map((name) => item(categoryColor(name), name, "")),
            [...causes].map((name) => item(causeColor(name), `idle: ${name}`, "idle")),
        );
    }

    // As high as there is room in the window; on paper as high as it is.
    fit(whole) {
        this.surface.canvas.style.height = `${Math.min(this.fullHeight, whole ? MOST_HEIGHT : Math.round(innerHeight * 0.68))}px`;
    }

    // ------------------------------------------------------------ pointer and keys

    listen(canvas) {
        let drag = null;
        const timeAt = (event) =>
            this.view.start + Math.max(0, Math.min(event.offsetX, this.surface.width)) * this.perPixel();
        canvas.addEventListener("pointercancel", () => {
            drag = null;
        });
        canvas.addEventListener("pointerdown", (event) => {
            if (event.button > 1) return;
            const pans = event.shiftKey || event.button === 1;
            drag = {
                x: event.clientX,
                y: event.clientY,
                start: this.view.start,
                top: this.scroller.scrollTop,
                time: timeAt(event),
                pans,
                moved: false,
            };
            canvas.setPointerCapture(event.pointerId);
        });
        canvas.addEventListener("pointermove", (event) => {
            this.pointer = event.offsetX / this.surface.width;
            if (drag) {
                if (Math.abs(event.clientX - drag.x) + Math.abs(event.clientY - drag.y) > 3) drag.moved = true;
                if (!drag.moved) return;
                if (drag.pans) {
                    const shift = (drag.x - event.clientX) * this.perPixel();
                    this.show(drag.start + shift, drag.start + shift + this.view.end - this.view.start);
                    this.scroller.scrollTop = drag.top + drag.y - event.clientY;
                } else this.setRange(drag.time, timeAt(event), false);
                tooltip.hide();
                return;
            }
            this.hover(event);
        });
        canvas.addEventListener("pointerup", (event) => {
            if (drag && !drag.moved) this.click(event);
            else if (drag && !drag.pans) this.setRange(drag.time, timeAt(event), true);
            drag = null;
        });
        canvas.addEventListener("pointerleave", () => {
            this.pointer = null;
            tooltip.hide();
        });
        canvas.addEventListener("dblclick", (event) => {
            const slice = this.hit(event);
            if (slice) this.zoomTo(slice);
        });
        canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
        canvas.addEventListener("keydown", (event) => this.key(event));
    }

    hover(event) {
        const slice = this.hit(event);
        const track = this.trackAt(event);
        this.surface.canvas.style.cursor = slice || (track && track.onLabel) ? "pointer" : "crosshair";
        if (slice) tooltip.show(event.clientX, event.clientY, this.describe(slice));
        else if (track && track.curve && !track.onLabel) {
            const time = this.view.start + event.offsetX * this.perPixel();
            const at = track.curve.at(time);
            if (at < 0) tooltip.hide();
            else
                tooltip.show(
                    event.clientX,
                    event.clientY,
                    tip(track.curve.format(track.curve.value[at]), [
                        ["at", formatNs(time)],
                        ["of", track.label],
                    ]),
                );
        } else tooltip.hide();
    }

    click(event) {
        const track = this.trackAt(event);
        if (track && track.onLabel) this.fold(track.track, !track.track.folded);
        else this.select(this.hit(event));
    }

    wheel(event) {
        if (!event.ctrlKey && !event.metaKey && document.activeElement !== this.surface.canvas) return;
        event.preventDefault();
        if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
            this.pan((event.deltaX || event.deltaY) / this.surface.width);
        else this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), event.offsetX / this.surface.width);
    }

    key(event) {
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        const at = this.pointer === null ? 0.5 : this.pointer;
        const act = {
            ArrowLeft: () => (event.shiftKey ? this.stretch(-0.02) : this.pan(-0.15)),
            ArrowRight: () => (event.shiftKey ? this.stretch(0.02) : this.pan(0.15)),
            a: () => this.pan(-0.15),
            d: () => this.pan(0.15),
            ArrowUp: () => {
                this.scroller.scrollTop -= 60;
            },
            ArrowDown: () => {
                this.scroller.scrollTop += 60;
            },
            "+": () => this.zoom(1 / 1.6),
            "=": () => this.zoom(1 / 1.6),
            w: () => this.zoom(1 / 1.6, at),
            "-": () => this.zoom(1.6),
            s: () => this.zoom(1.6, at),
            0: () => this.show(0, this.length),
            n: () => this.step(1),
            p: () => this.step(-1),
            g: () => this.follow(),
            c: () => this.showPath(!this.showsPath),
            f: () =>
                this.selected &&
                this.fold(this.trackOf.get(this.selected.lanes), !this.trackOf.get(this.selected.lanes).folded),
            m: () => this.measureChosen(),
            z: () =>
                this.selected ? this.zoomTo(this.selected) : this.range && this.show(this.range.start, this.range.end),
            Enter: () => this.selected && this.open(this.selected),
            Escape: () => this.leave(),
        }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
        if (!act) return;
        event.preventDefault();
        event.stopPropagation();
        act();
    }

    // Leave what was measured, then what was chosen, then what was searched for.
    leave() {
        if (this.range) this.clearRange();
        else if (this.selected) this.select(null);
        else this.mark("");
    }

    perPixel() {
        return (this.view.end - this.view.start) / (this.surface.width || 1);
    }

    show(start, end) {
        const span = Math.max(NEAREST, Math.min(end - start, this.length * 1.02));
        const begin = Math.max(-this.length * 0.01, Math.min(start, this.length * 1.01 - span));
        this.view = { start: begin, end: begin + span };
        this.surface.redraw();
        app.rememberSoon();
    }

    zoom(factor, at = 0.5) {
        const span = this.view.end - this.view.start;
        const fixedTime = this.view.start + at * span;
        const next = Math.max(NEAREST, Math.min(span * factor, this.length * 1.02));
        this.show(fixedTime - at * next, fixedTime + (1 - at) * next);
    }

    pan(share) {
        const shift = share * (this.view.end - this.view.start);
        this.show(this.view.start + shift, this.view.end + shift);
    }

    zoomTo({ lanes, place }) {
        const [start, end] = [lanes.start[place], lanes.end[place]];
        const around = Math.max((end - start) * 1.5, 50);
        this.show(start - around, end + around);
        this.scrollTo({ lanes, place });
    }

    scrollTo({ lanes, place }) {
        const track = this.trackOf.get(lanes);
        if (track.folded) this.fold(track, false);
        const top = track.top + lanes.row[place] * ROW_HEIGHT;
        if (top < this.scroller.scrollTop + AXIS_HEIGHT || top > this.scroller.scrollTop + this.surface.height - 40)
            this.scroller.scrollTop = top - this.surface.height / 2;
    }

    trackAt(event) {
        if (event.offsetY < AXIS_HEIGHT) return null;
        const y = event.offsetY + this.scroller.scrollTop;
        const track = this.tracks.find((one) => y >= one.top && y < one.top + LABEL_HEIGHT + one.height);
        return track
            ? {
                  track,
                  curve: track.curve,
                  label: track.label,
                  onLabel: y < track.top + LABEL_HEIGHT && event.offsetX < 400,
              }
            : null;
    }

    hit(event) {
        const found = this.trackAt(event);
        if (!found || !found.track.lanes || found.track.folded) return null;
        const { lanes, top } = found.track;
        const row = Math.floor((event.offsetY + this.scroller.scrollTop - top - LABEL_HEIGHT) / ROW_HEIGHT);
        if (row < 0 || row >= lanes.rowCount) return null;
        const time = this.view.start + event.offsetX * this.perPixel();
        const place = lanes.at(row, time, 1.5 * this.perPixel());
        return place < 0 ? null : { lanes, place };
    }

    // ------------------------------------------------------------ one slice

    // A slice by its number through all tracks, and the number of a slice.
    sliceAt(number) {
        const lanes = this.lanes.findLast((one) => one.first <= number);
        return lanes && number >= 0 && number - lanes.first < lanes.size
            ? { lanes, place: number - lanes.first }
            : null;
    }

    nameOf({ lanes, place }) {
        const count = lanes.count ? lanes.count[place] : 1;
        const label = this.labels[lanes.name[place]];
        return count > 1 ? `${formatCount(count)} short slices, mostly ${label}` : label;
    }

    // Of the chosen slice all; what has to be looked for is left out of what follows the pointer.
    facts(slice, whole) {
        const { lanes, place } = slice;
        const operator = lanes.operator[place];
        const origin = lanes.place[place] >= 0 ? this.entry.places[lanes.place[place]] : null;
        const covered =
            lanes.covered && lanes.count[place] > 1 ? ["of that in slices", formatNs(lanes.covered[place])] : null;
        const cause = this.sliceAt(lanes.link[place]);
        return {
            title: `${lanes.kind === "idle" ? "idle: " : ""}${this.nameOf(slice)}`,
            pairs: [
                this.labels[lanes.name[place]] === this.names[lanes.name[place]]
                    ? null
                    : ["name", this.names[lanes.name[place]]],
                ["took", formatNs(lanes.duration(place))],
                covered,
                ["began at", formatNs(lanes.start[place])],
                operator >= 0 ? ["operator", this.names[operator]] : null,
                cause && lanes.kind === "stream"
                    ? [
                          "waited",
                          `${formatNs(Math.max(0, lanes.start[place] - cause.lanes.end[cause.place]))} after ${this.nameOf(cause)} had returned`,
                      ]
                    : null,
                cause && lanes.kind === "operator" ? ["backward of", this.nameOf(cause)] : null,
                ...(whole && lanes.kind === "operator" ? [this.inputsOf(this.names[lanes.name[place]])] : []),
                ...(whole ? this.launchedFacts(slice) : []),
                origin && origin.module >= 0 ? ["module", this.names[origin.module]] : null,
                origin && origin.python >= 0 ? ["line", this.names[origin.python]] : null,
                ["on", lanes.label],
            ],
        };
    }

    // The inputs of an operator, where all its calls had the same; the page has no inputs of single calls.
    inputsOf(name) {
        const row = this.data.document.operators.find((one) => one.name === name);
        const found = row && row.detail ? row.detail.shapes : [];
        if (!found.length) return null;
        const all = row.detail.shape_count;
        return ["inputs", all === 1 ? shapes(found[0].input_dims) || "-" : `${formatCount(all)} kinds: see its row`];
    }

    // What calls within a slice of the host launched: of a range on all threads, as backward passes have their own. Where
    // calls or work are merged, their sum is not known: then nothing is said.
    launched({ lanes, place }) {
        if (!HOST_KINDS.has(lanes.kind)) return [];
        const number = lanes.first + place;
        if (this.launchedBy && this.launchedBy.number === number) return this.launchedBy.found;
        this.effects = this.effects || this.reversed();
        const thread = (one) => one.label.split(":")[0];
        const [start, end] = [lanes.start[place], lanes.end[place]];
        const chosen = this.lanes.filter((one) => one.kind === "call" || one.kind === "stream");
        const found = [];
        for (const calls of chosen.some((one) => one.count) ? [] : chosen) {
            if (calls.kind !== "call" || (lanes.kind !== "range" && thread(calls) !== thread(lanes))) continue;
            for (let row = 0; row < calls.rowCount; row += 1)
                for (const call of calls.touching(row, start, end))
                    if (calls.start[call] >= start && calls.end[call] <= end)
                        found.push(...(this.effects.get(calls.first + call) || []));
        }
        const slices = found.map((one) => this.sliceAt(one)).filter((one) => one && one.lanes.kind === "stream");
        this.launchedBy = { number, found: slices };
        return slices;
    }

    launchedFacts(slice) {
        const found = this.launched(slice);
        if (!found.length) return [];
        const times = new Map();
        for (const one of found) {
            const label = this.nameOf(one);
            times.set(label, (times.get(label) || 0) + one.lanes.duration(one.place));
        }
        const longest = [...times].sort((one, other) => other[1] - one[1]).slice(0, 3);
        return [
            ["launched", `${formatCount(found.length)} on the device, ${formatNs(sum([...times.values()]))} together`],
            ["most of it", longest.map(([label, time]) => `${label} ${formatNs(time)}`).join("; ")],
        ];
    }

    describe(slice) {
        const { title, pairs } = this.facts(slice);
        return tip(title, pairs.filter(Boolean));
    }

    select(slice) {
        this.selected = slice;
        clear(this.detail);
        if (slice) {
            const { title, pairs } = this.facts(slice, true);
            const linked = this.linked(slice);
            add(this.detail, [
                el("strong", null, title),
                facts(pairs.filter(Boolean)),
                el(
                    "p",
                    { class: "actions" },
                    this.rowOf(slice) ? button("open its row", () => this.open(slice), { title: "Enter" }) : null,
                    button("zoom to it", () => this.zoomTo(slice), { title: "z" }),
                    linked.length
                        ? button(
                              linked.length === 1
                                  ? `go to ${this.labels[linked[0].lanes.name[linked[0].place]]}`
                                  : `go to the first of ${formatCount(linked.length)} linked slices`,
                              () => this.follow(),
                              { title: "g" },
                          )
                        : null,
                ),
            ]);
        }
        this.surface.redraw();
        app.rememberSoon();
    }

    // What a slice launched, or the node that is its backward; else what launched it, or its forward operator.
    linked({ lanes, place }) {
        this.effects = this.effects || this.reversed();
        const number = lanes.first + place;
        const effects = this.effects.get(number) || [];
        const cause = this.sliceAt(lanes.link[place]);
        return [...(cause ? [cause] : []), ...effects.map((one) => this.sliceAt(one))];
    }

    reversed() {
        const found = new Map();
        for (const lanes of this.lanes)
            for (let place = 0; place < lanes.size; place += 1) {
                if (lanes.link[place] < 0) continue;
                if (!found.has(lanes.link[place])) found.set(lanes.link[place], []);
                found.get(lanes.link[place]).push(lanes.first + place);
            }
        return found;
    }

    follow() {
        const next = this.selected ? this.linked(this.selected)[0] : null;
        if (!next) return;
        this.select(next);
        this.bringIntoView(next);
    }

    bringIntoView(slice) {
        const { lanes, place } = slice;
        if (lanes.end[place] < this.view.start || lanes.start[place] > this.view.end) this.zoomTo(slice);
        else this.scrollTo(slice);
    }

    rowOf({ lanes, place }) {
        if (lanes.kind === "idle" || (lanes.count && lanes.count[place] > 1)) return null;
        const name = this.names[lanes.name[place]];
        if (lanes.kind === "stream")
            return this.data.document.kernels.some((row) => row.name === name && row.device === lanes.device)
                ? ["kernels", name, lanes.device]
                : null;
        if (this.data.categoryOf.has(name)) return ["operators", name];
        const operator = lanes.operator[place];
        return operator >= 0 ? ["operators", this.names[operator]] : null;
    }

    open(slice) {
        const row = this.rowOf(slice);
        if (row) app.reveal(this.data, ...row);
    }

    // ------------------------------------------------------------ search and findings

    foundText() {
        const onDevice = this.matches.filter((one) => one.lanes.kind === "stream");
        const idle = this.matches.filter((one) => one.lanes.kind === "idle");
        const time = (slices) => formatNs(sum(slices.map(({ lanes, place }) => lanes.duration(place))));
        const together = sum(
            this.lanes.map((lanes) => (lanes.count ? sum(Array.from(lanes.count).filter((count) => count > 1)) : 0)),
        );
        return [
            `${formatCount(this.matches.length)} ${this.matches.length === 1 ? "slice" : "slices"}`,
            onDevice.length ? `, ${time(onDevice)} on the device` : "",
            idle.length ? `, ${time(idle)} idle` : "",
            together
                ? `, of those that stand alone: ${formatCount(together)} short slices are drawn together with others`
                : "",
        ].join("");
    }

    // Mark all slices of a name, and what operators of that name launched.
    mark(text, exactly) {
        const query = text.trim().toLowerCase();
        if (this.search.value !== text) this.search.value = text;
        const exact = exactly || this.names.some((name) => name.toLowerCase() === query);
        const wanted = Uint8Array.from(this.names, (name) =>
            exact ? name.toLowerCase() === query : name.toLowerCase().includes(query),
        );
        this.markThose(
            query
                ? (lanes, place) =>
                      wanted[lanes.name[place]] === 1 ||
                      (lanes.kind === "stream" && lanes.operator[place] >= 0 && wanted[lanes.operator[place]] === 1)
                : null,
        );
    }

    markThose(wanted) {
        this.matches = [];
        this.searched = wanted !== null;
        for (const lanes of this.lanes) {
            lanes.marked = wanted ? new Uint8Array(lanes.size) : null;
            if (!wanted) continue;
            for (let place = 0; place < lanes.size; place += 1) {
                // What was put together with its neighbours has no name to be found by.
                if ((lanes.count && lanes.count[place] > 1) || !wanted(lanes, place)) continue;
                lanes.marked[place] = 1;
                this.matches.push({ lanes, place });
            }
        }
        this.matches.sort((one, other) => one.lanes.start[one.place] - other.lanes.start[other.place]);
        clear(this.found).append(wanted ? this.foundText() : "");
        this.surface.redraw();
    }

    // Where a finding is: its idle time, else its kernel's or its operator's work.
    slicesOfFinding(finding) {
        const marks = this.entry.marks.filter((one) => one.finding === finding.id);
        if (marks.length) {
            const found = new Set();
            for (const { device, start, duration } of marks) {
                const idle = this.lanes.find((lanes) => lanes.kind === "idle" && lanes.device === device);
                start.forEach((at, number) => {
                    const place = idle ? idle.at(0, at + duration[number] / 2, 0) : -1;
                    if (place >= 0) found.add(idle.first + place);
                });
            }
            return found.size ? (lanes, place) => found.has(lanes.first + place) : null;
        }
        const { kernel, operator } = finding.where;
        const numbers = [kernel, operator].map((name) => (name ? this.names.indexOf(name) : -1));
        if (numbers.every((one) => one < 0)) return null;
        const [ofKernel, ofOperator] = numbers;
        return (lanes, place) =>
            lanes.kind === "stream" &&
            (ofKernel < 0 || lanes.name[place] === ofKernel) &&
            (ofOperator < 0 || lanes.operator[place] === ofOperator || ofKernel >= 0);
    }

    showFinding(finding) {
        const wanted = this.slicesOfFinding(finding);
        if (!wanted) return;
        this.search.value = "";
        this.markThose(wanted);
        if (!this.matches.length) {
            clear(this.found).append(
                `${finding.id}: its slices are drawn together with others; choose fewer steps (--steps)`,
            );
            return;
        }
        const longest = this.matches.reduce((best, one) =>
            one.lanes.duration(one.place) > best.lanes.duration(best.place) ? one : best,
        );
        const marks = this.entry.marks.filter((one) => one.finding === finding.id);
        const pieces = sum(marks.map((one) => one.piece_count));
        const shown = sum(marks.map((one) => one.start.length));
        let what = "its dearest kernel, ";
        if (marks.length)
            what = pieces > shown ? `the longest ${formatCount(shown)} of ${formatCount(pieces)} waits, ` : "";
        this.found.prepend(`${finding.id}: ${what}`);
        this.select(longest);
        this.zoomTo(longest);
    }

    // From slice to slice: of those that are marked, else of the track of the one that is selected.
    step(way) {
        if (this.searched && !this.matches.length) return;
        if (this.matches.length) {
            const now = this.selected
                ? this.matches.findIndex(
                      (one) => one.lanes === this.selected.lanes && one.place === this.selected.place,
                  )
                : -1;
            const next =
                now < 0 && way < 0
                    ? this.matches[this.matches.length - 1]
                    : this.matches[(now + way + this.matches.length) % this.matches.length];
            this.select(next);
            this.zoomTo(next);
            return;
        }
        const { lanes, place } = this.selected || {
            lanes: this.lanes.find((one) => one.kind !== "idle") || this.lanes[0],
            place: -1,
        };
        const next = Math.max(0, Math.min(lanes.size - 1, place + way));
        this.select({ lanes, place: next });
        this.bringIntoView(this.selected);
    }

    // ------------------------------------------------------------ ranges

    setRange(one, other, done) {
        const [start, end] = [Math.min(one, other), Math.max(one, other)].map((time) =>
            Math.round(Math.max(0, Math.min(time, this.length))),
        );
        if (end <= start) return;
        this.range = { start, end };
        clear(this.measure);
        if (done) add(this.measure, rangeReport(this, measured(this, start, end)));
        this.surface.redraw();
        app.rememberSoon();
    }

    measureChosen() {
        const { lanes, place } = this.selected || {};
        if (lanes && lanes.duration(place) > 0) this.setRange(lanes.start[place], lanes.end[place], true);
        else this.setRange(this.view.start, this.view.end, true);
    }

    stretch(share) {
        const range = this.range || {
            start: (this.view.start + this.view.end) / 2,
            end: (this.view.start + this.view.end) / 2,
        };
        this.setRange(range.start, range.end + share * (this.view.end - this.view.start), true);
    }

    clearRange() {
        this.range = null;
        clear(this.measure);
        this.surface.redraw();
        app.rememberSoon();
    }

    showPath(shown) {
        this.showsPath = shown && this.entry.path !== null;
        if (this.pathButton) this.pathButton.setAttribute("aria-pressed", this.showsPath);
        this.surface.redraw();
    }

    // ------------------------------------------------------------ the address

    // What of the timeline the address keeps: times in nanoseconds, and the number of the chosen slice.
    state() {
        const parts = [`t=${Math.round(this.view.start)}..${Math.round(this.view.end)}`];
        if (this.selected) parts.push(`sel=${this.selected.lanes.first + this.selected.place}`);
        if (this.range) parts.push(`m=${this.range.start}..${this.range.end}`);
        return parts.join("&");
    }

    restore(state) {
        const pair = (text) => {
            const found = /^(-?\d+)\.\.(-?\d+)$/.exec(text || "");
            return found ? [Number(found[1]), Number(found[2])] : null;
        };
        const [shown, range] = [pair(state.get("t")), pair(state.get("m"))];
        if (range) this.setRange(...range, true);
        const slice = /^\d+$/.test(state.get("sel") || "") ? this.sliceAt(Number(state.get("sel"))) : null;
        if (slice) this.select(slice);
        if (shown && shown[1] > shown[0]) this.show(...shown);
        else if (slice) this.zoomTo(slice);
        if (slice) this.scrollTo(slice);
    }
}

// Numbers as ranges: 1 to 3, 5.
function ranges(numbers) {
    const parts = [];
    for (let place = 0; place < numbers.length; place += 1) {
        const first = place;
        while (place + 1 < numbers.length && numbers[place + 1] === numbers[place] + 1) place += 1;
        parts.push(first === place ? `${numbers[first]}` : `${numbers[first]} to ${numbers[place]}`);
    }
    return parts.length > 8 ? `${parts.slice(0, 8).join(", ")} ...` : parts.join(", ");
}

export function timelineView(data) {
    if (!data.trace.timeline) return [note("Nothing was recorded that a timeline could show.")];
    data.timeline = new Timeline(data);
    return [data.timeline.element];
}
