// The timeline: streams, idle time and host threads of the chosen steps, from the whole down to a single activity.
const ROW_HEIGHT = 17;
const TRACK_GAP = 7;
const LABEL_HEIGHT = 16;
const AXIS_HEIGHT = 22;
const MOST_HEIGHT = 4000;

class Lanes {
    constructor(entry, names) {
        Object.assign(this, {
            kind: entry.kind,
            label: entry.label,
            device: entry.device,
            rowCount: entry.rows,
            names,
        });
        const size = entry.start.length;
        this.start = new Float64Array(size);
        this.end = new Float64Array(size);
        let at = 0;
        for (let place = 0; place < size; place += 1) {
            at += entry.start[place];
            this.start[place] = at;
            this.end[place] = at + entry.duration[place];
        }
        this.name = Int32Array.from(entry.name);
        this.operator = Int32Array.from(entry.operator);
        this.place = Int32Array.from(entry.place);
        this.count = entry.count.length ? Int32Array.from(entry.count) : null;
        // Slices are sorted by row, then by start.
        this.firstOfRow = new Int32Array(entry.rows + 1).fill(size);
        for (let place = size - 1; place >= 0; place -= 1) this.firstOfRow[entry.row[place]] = place;
        for (let row = entry.rows - 1; row >= 0; row -= 1)
            this.firstOfRow[row] = Math.min(this.firstOfRow[row], this.firstOfRow[row + 1]);
        this.row = Int32Array.from(entry.row);
        // How far the slices of a row reach up to each: what began before a moment may still run then.
        this.reach = new Float64Array(size);
        for (let row = 0; row < entry.rows; row += 1) {
            let furthest = -Infinity;
            for (let place = this.firstOfRow[row]; place < this.firstOfRow[row + 1]; place += 1) {
                furthest = Math.max(furthest, this.end[place]);
                this.reach[place] = furthest;
            }
        }
    }

    // The first slice of a row after which something reaches beyond a time.
    reaching(row, time) {
        let [low, high] = [this.firstOfRow[row], this.firstOfRow[row + 1]];
        while (low < high) {
            const middle = (low + high) >> 1;
            if (this.reach[middle] <= time) low = middle + 1;
            else high = middle;
        }
        return low;
    }

    // The first slice of a row that begins at a time or later.
    from(row, time) {
        let [low, high] = [this.firstOfRow[row], this.firstOfRow[row + 1]];
        while (low < high) {
            const middle = (low + high) >> 1;
            if (this.start[middle] < time) low = middle + 1;
            else high = middle;
        }
        return low;
    }

    // The innermost slice of a row at a time; the shortest of those within the tolerance.
    at(row, time, tolerance) {
        let best = -1;
        for (
            let place = this.from(row, time + tolerance) - 1;
            place >= this.firstOfRow[row] && this.reach[place] + tolerance >= time;
            place -= 1
        ) {
            if (
                this.end[place] + tolerance >= time &&
                (best < 0 || this.end[place] - this.start[place] < this.end[best] - this.start[best])
            )
                best = place;
        }
        return best;
    }
}

class Timeline {
    constructor(data) {
        this.data = data;
        this.entry = data.trace.timeline;
        this.names = data.trace.names;
        this.lanes = this.entry.tracks.map((track) => new Lanes(track, this.names));
        this.length = this.entry.duration_ns;
        this.view = { start: 0, end: this.length };
        this.marked = null;
        this.selected = null;
        this.colors = this.names.map((name) => this.colorOf(name));
        this.labels = this.names.map((name) => data.shortOf.get(name) || name);
        this.tops = [];
        let top = AXIS_HEIGHT;
        for (const lanes of this.lanes) {
            this.tops.push(top);
            top += LABEL_HEIGHT + lanes.rowCount * ROW_HEIGHT + TRACK_GAP;
        }
        this.fullHeight = top;
        this.surface = new Surface(
            "timeline: arrow keys pan, + and - zoom, 0 shows all, n and p go from slice to slice, Enter opens the row",
            (...context) => this.draw(...context),
        );
        this.element = this.layout();
    }

    colorOf(name) {
        const category = this.data.categoryOf.get(name);
        return category ? categoryColor(category) : /^cuda|^cu[A-Z]|^hip/.test(name) ? "#c9a227" : hashed(name);
    }

    layout() {
        this.search = el("input", {
            type: "search",
            placeholder: "highlight operator or kernel",
            "aria-label": "highlight in the timeline",
            on: { input: () => this.mark(this.search.value) },
        });
        this.found = el("span", { class: "count", "aria-live": "polite" });
        this.scroller = el(
            "div",
            { class: "timeline-scroll" },
            el("div", { class: "timeline-height", style: { height: `${this.fullHeight}px` } }, this.surface.canvas),
        );
        this.fit();
        addEventListener("resize", () => this.fit());
        this.detail = el("div", { class: "slice detail", "aria-live": "polite" });
        this.scroller.addEventListener("scroll", () => this.surface.redraw());
        this.listen(this.surface.canvas);
        const { steps, all_steps: all, slice_count: count, merged_below_ns: below } = this.entry;
        const shown = steps.length
            ? `${steps.length === 1 ? "Step" : "Steps"} ${ranges(steps)} of ${ranges(all)}, `
            : "";
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
                button("−", () => this.zoom(1.6), { "aria-label": "zoom out", title: "-" }),
                button("+", () => this.zoom(1 / 1.6), { "aria-label": "zoom in", title: "+" }),
                button("all", () => this.show(0, this.length), { title: "0" }),
            ),
            this.scroller,
            this.detail,
            note(
                `${shown}${formatNs(this.length)}, ${formatCount(count)} slices. `,
                below
                    ? `Neighbours shorter than ${formatNs(below)} are drawn as one; choose fewer steps (--steps) to see each. `
                    : "",
                this.data.document.light && this.data.document.light.agrees
                    ? "It is of the pass with names, which slows the host down more than the light one that the verdict rests on. "
                    : "",
                "Drag to pan; Ctrl and the wheel zoom, as does the wheel alone once the timeline was clicked; double-click zooms to a slice.",
            ),
            this.legend(),
        );
    }

    legend() {
        const causes = new Set();
        for (const lanes of this.lanes)
            if (lanes.kind === "idle")
                for (const name of new Set(lanes.name)) if (name >= 0) causes.add(this.names[name]);
        const categories = new Set();
        for (const lanes of this.lanes)
            if (lanes.kind === "stream")
                for (const operator of new Set(lanes.operator))
                    if (operator >= 0) categories.add(this.data.categoryOf.get(this.names[operator]) || "Other");
        return el(
            "ul",
            { class: "legend" },
            [...categories].map((name) =>
                el(
                    "li",
                    null,
                    el("span", { class: "swatch", style: { "background-color": categoryColor(name) } }),
                    name,
                ),
            ),
            [...causes].map((name) =>
                el(
                    "li",
                    null,
                    el("span", { class: "swatch idle", style: { "background-color": causeColor(name) } }),
                    `idle: ${name}`,
                ),
            ),
        );
    }

    // As high as there is room in the window; on paper as high as it is.
    fit(whole) {
        this.surface.canvas.style.height = `${Math.min(this.fullHeight, whole ? MOST_HEIGHT : Math.round(innerHeight * 0.68))}px`;
    }

    listen(canvas) {
        let drag = null;
        canvas.addEventListener("pointercancel", () => {
            drag = null;
        });
        canvas.addEventListener("pointerdown", (event) => {
            drag = {
                x: event.clientX,
                y: event.clientY,
                start: this.view.start,
                top: this.scroller.scrollTop,
                moved: false,
            };
            canvas.setPointerCapture(event.pointerId);
        });
        canvas.addEventListener("pointermove", (event) => {
            if (drag) {
                if (Math.abs(event.clientX - drag.x) + Math.abs(event.clientY - drag.y) > 3) drag.moved = true;
                if (!drag.moved) return;
                const shift = (drag.x - event.clientX) * this.perPixel();
                const span = this.view.end - this.view.start;
                this.show(drag.start + shift, drag.start + shift + span);
                this.scroller.scrollTop = drag.top + drag.y - event.clientY;
                tooltip.hide();
                return;
            }
            const slice = this.hit(event);
            canvas.style.cursor = slice ? "pointer" : "grab";
            if (slice) tooltip.show(event.clientX, event.clientY, this.describe(slice));
            else tooltip.hide();
        });
        canvas.addEventListener("pointerup", (event) => {
            if (drag && !drag.moved) this.select(this.hit(event));
            drag = null;
        });
        canvas.addEventListener("pointerleave", () => tooltip.hide());
        canvas.addEventListener("dblclick", (event) => {
            const slice = this.hit(event);
            if (slice) this.zoomTo(slice);
        });
        canvas.addEventListener(
            "wheel",
            (event) => {
                if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
                event.preventDefault();
                if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
                    this.pan((event.deltaX || event.deltaY) / this.surface.width);
                else
                    this.zoom(
                        Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))),
                        event.offsetX / this.surface.width,
                    );
            },
            { passive: false },
        );
        canvas.addEventListener("keydown", (event) => {
            const act = {
                ArrowLeft: () => this.pan(-0.15),
                ArrowRight: () => this.pan(0.15),
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
                w: () => this.zoom(1 / 1.6),
                "-": () => this.zoom(1.6),
                s: () => this.zoom(1.6),
                0: () => this.show(0, this.length),
                n: () => this.step(1),
                p: () => this.step(-1),
                z: () => this.selected && this.zoomTo(this.selected),
                Enter: () => this.selected && this.open(this.selected),
                Escape: () => this.select(null),
            }[event.key];
            if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
            event.preventDefault();
            event.stopPropagation();
            act();
        });
    }

    perPixel() {
        return (this.view.end - this.view.start) / (this.surface.width || 1);
    }

    show(start, end) {
        const span = Math.max(20, Math.min(end - start, this.length * 1.02));
        const begin = Math.max(-this.length * 0.01, Math.min(start, this.length * 1.01 - span));
        this.view = { start: begin, end: begin + span };
        this.surface.redraw();
    }

    zoom(factor, at = 0.5) {
        const span = this.view.end - this.view.start;
        const fixedTime = this.view.start + at * span;
        const next = Math.max(20, Math.min(span * factor, this.length * 1.02));
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
        const top = this.tops[this.lanes.indexOf(lanes)] + lanes.row[place] * ROW_HEIGHT;
        if (top < this.scroller.scrollTop + AXIS_HEIGHT || top > this.scroller.scrollTop + this.surface.height - 40)
            this.scroller.scrollTop = top - this.surface.height / 2;
    }

    hit(event) {
        const y = event.offsetY + this.scroller.scrollTop;
        if (event.offsetY < AXIS_HEIGHT) return null;
        const time = this.view.start + event.offsetX * this.perPixel();
        for (let number = 0; number < this.lanes.length; number += 1) {
            const lanes = this.lanes[number];
            const row = Math.floor((y - this.tops[number] - LABEL_HEIGHT) / ROW_HEIGHT);
            if (row < 0 || row >= lanes.rowCount) continue;
            const place = lanes.at(row, time, 1.5 * this.perPixel());
            return place < 0 ? null : { lanes, place };
        }
        return null;
    }

    facts({ lanes, place }) {
        const name = lanes.name[place];
        const operator = lanes.operator[place];
        const origin = lanes.place[place] >= 0 ? this.entry.places[lanes.place[place]] : null;
        const text = name >= 0 ? this.names[name] : `${formatCount(lanes.count ? lanes.count[place] : 1)} short slices`;
        return {
            title: lanes.kind === "idle" ? `idle: ${text}` : text,
            pairs: [
                ["took", formatNs(lanes.end[place] - lanes.start[place])],
                ["began at", formatNs(lanes.start[place])],
                operator >= 0 && operator !== name ? ["operator", this.names[operator]] : null,
                origin && origin.module >= 0 ? ["module", this.names[origin.module]] : null,
                origin && origin.python >= 0 ? ["line", this.names[origin.python]] : null,
                ["on", lanes.label],
            ],
        };
    }

    describe(slice) {
        const { title, pairs } = this.facts(slice);
        return tip(title, pairs.filter(Boolean));
    }

    select(slice) {
        this.selected = slice;
        clear(this.detail);
        if (slice) {
            const { title, pairs } = this.facts(slice);
            add(this.detail, [
                el("strong", null, title),
                facts(pairs.filter(Boolean)),
                this.rowOf(slice)
                    ? el(
                          "p",
                          { class: "actions" },
                          button("open its row", () => this.open(slice)),
                          button("zoom to it", () => this.zoomTo(slice)),
                      )
                    : button("zoom to it", () => this.zoomTo(slice)),
            ]);
        }
        this.surface.redraw();
    }

    rowOf({ lanes, place }) {
        if (lanes.name[place] < 0 || lanes.kind === "idle") return null;
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

    // Mark all slices of a name, and what operators of that name launched.
    foundText() {
        const onDevice = this.matches.filter((one) => one.lanes.kind === "stream");
        const time = sum(onDevice.map(({ lanes, place }) => lanes.end[place] - lanes.start[place]));
        const alone = this.entry.merged_below_ns ? `, of those that stand alone: ${this.aloneOf()}` : "";
        return `${formatCount(this.matches.length)} slices, ${formatNs(time)} on the device${alone}`;
    }

    mark(text, exactly) {
        const query = text.trim().toLowerCase();
        if (this.search.value !== text) this.search.value = text;
        this.matches = [];
        this.marked = null;
        if (query) {
            const exact = exactly || this.names.some((name) => name.toLowerCase() === query);
            this.marked = new Uint8Array(this.names.length);
            this.names.forEach((name, number) => {
                this.marked[number] = exact ? name.toLowerCase() === query : name.toLowerCase().includes(query);
            });
            for (const lanes of this.lanes) {
                for (let place = 0; place < lanes.start.length; place += 1)
                    if (this.isMarked(lanes, place)) this.matches.push({ lanes, place });
            }
            this.matches.sort((one, other) => one.lanes.start[one.place] - other.lanes.start[other.place]);
        }
        clear(this.found).append(query ? this.foundText() : "");
        this.surface.redraw();
    }

    // What was put together with its neighbours has no name to be found by.
    aloneOf() {
        const together = sum(
            this.lanes.map((lanes) => (lanes.count ? sum(Array.from(lanes.count).filter((count) => count > 1)) : 0)),
        );
        return `${formatCount(together)} short slices are drawn together with others`;
    }

    isMarked(lanes, place) {
        return (
            (lanes.name[place] >= 0 && this.marked[lanes.name[place]] === 1) ||
            (lanes.kind === "stream" && lanes.operator[place] >= 0 && this.marked[lanes.operator[place]] === 1)
        );
    }

    // From slice to slice: of those that are marked, else of the track of the one that is selected.
    step(way) {
        if (this.matches && this.matches.length) {
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
        const next = Math.max(0, Math.min(lanes.start.length - 1, place + way));
        this.select({ lanes, place: next });
        if (lanes.end[next] < this.view.start || lanes.start[next] > this.view.end) this.zoomTo(this.selected);
    }

    draw(context, width, height, colors) {
        const scroll = this.scroller.scrollTop;
        const scale = width / (this.view.end - this.view.start);
        this.grid(context, width, height, colors, scale);
        this.lanes.forEach((lanes, number) => {
            const top = this.tops[number] - scroll;
            if (top > height || top + LABEL_HEIGHT + lanes.rowCount * ROW_HEIGHT < AXIS_HEIGHT) return;
            for (let row = 0; row < lanes.rowCount; row += 1) {
                const y = top + LABEL_HEIGHT + row * ROW_HEIGHT;
                if (y + ROW_HEIGHT > AXIS_HEIGHT && y < height)
                    this.drawRow(context, lanes, row, y, width, scale, colors);
            }
            context.fillStyle = colors.soft;
            context.fillText(lanes.label, 4, top + LABEL_HEIGHT / 2);
        });
        this.axis(context, width, colors, scale);
    }

    drawRow(context, lanes, row, y, width, scale, colors) {
        const last = lanes.firstOfRow[row + 1];
        const begin = this.view.start;
        const rowHeight = ROW_HEIGHT - 2;
        // Of slices that would fall on the same pixel one is drawn: of those that are marked, and of the others.
        const drawn = [-1, -1];
        for (let place = lanes.reaching(row, begin); place < last; place += 1) {
            const x = (lanes.start[place] - begin) * scale;
            if (x > width) break;
            const end = (lanes.end[place] - begin) * scale;
            if (end < 0) continue;
            const marked = this.marked === null || this.isMarked(lanes, place) ? 1 : 0;
            const pixel = Math.floor(end);
            if (end - x < 1 && pixel === drawn[marked]) continue;
            drawn[marked] = pixel;
            const left = Math.max(x, -2);
            const wide = Math.max(Math.min(end, width + 2) - left, 1);
            context.globalAlpha = marked ? (lanes.kind === "idle" ? 0.75 : 1) : 0.16;
            context.fillStyle = this.fill(lanes, place);
            context.fillRect(left, y, wide > 3 ? wide - 0.6 : wide, rowHeight);
            if (wide > 26 && lanes.name[place] >= 0)
                this.surface.text(
                    this.labels[lanes.name[place]],
                    Math.max(x, 0),
                    y + rowHeight / 2,
                    Math.min(end, width) - Math.max(x, 0),
                    onColor(context.fillStyle),
                );
            if (this.selected && this.selected.lanes === lanes && this.selected.place === place) {
                context.globalAlpha = 1;
                context.strokeStyle = colors.text;
                context.lineWidth = 2;
                context.strokeRect(left, y, wide, rowHeight);
            }
        }
        context.globalAlpha = 1;
    }

    fill(lanes, place) {
        if (lanes.name[place] < 0) return "#9aa5b1";
        if (lanes.kind === "idle") return causeColor(this.names[lanes.name[place]]);
        if (lanes.kind === "stream") {
            const operator = lanes.operator[place];
            return operator >= 0 ? this.colors[operator] : this.colors[lanes.name[place]];
        }
        return this.colors[lanes.name[place]];
    }

    ticks(width) {
        const rough = (this.view.end - this.view.start) / Math.max(2, width / 130);
        const power = 10 ** Math.floor(Math.log10(rough));
        const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
        const found = [];
        for (let time = Math.ceil(this.view.start / step) * step; time <= this.view.end; time += step) found.push(time);
        return found;
    }

    grid(context, width, height, colors, scale) {
        context.strokeStyle = colors.faint;
        context.lineWidth = 1;
        context.beginPath();
        for (const time of this.ticks(width)) {
            const x = Math.round((time - this.view.start) * scale) + 0.5;
            context.moveTo(x, AXIS_HEIGHT);
            context.lineTo(x, height);
        }
        context.stroke();
    }

    axis(context, width, colors, scale) {
        context.fillStyle = colors.panel;
        context.fillRect(0, 0, width, AXIS_HEIGHT - 2);
        context.fillStyle = colors.soft;
        for (const time of this.ticks(width))
            context.fillText(formatNs(Math.round(time)), (time - this.view.start) * scale + 3, AXIS_HEIGHT / 2);
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

function timelineView(data) {
    if (!data.trace.timeline) return [note("Nothing was recorded that a timeline could show.")];
    data.timeline = new Timeline(data);
    return [data.timeline.element];
}
