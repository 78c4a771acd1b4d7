// How the timeline is drawn; `Timeline` has what is drawn.
Object.assign(Timeline.prototype, {
    draw(context, width, height, colors) {
        const scroll = this.scroller.scrollTop;
        const scale = width / (this.view.end - this.view.start);
        this.axisTicks = timeTicks(this.view.start, this.view.end, width);
        this.grid(context, height, colors, scale);
        this.drawTracks(context, width, height, colors, scale, scroll);
        this.drawLabels(context, width, height, colors, scroll);
        if (this.showsPath) this.drawPath(context, width, height, colors, scale, scroll);
        if (this.selected) this.drawSelected(context, colors, scale, scroll);
        this.axis(context, width, colors, scale);
        if (this.range) this.drawRange(context, width, height, colors, scale);
    },

    // The rows of lanes that can be seen, with where they are drawn.
    *shownRows(height, scroll) {
        for (const track of this.tracks) {
            if (!track.lanes || track.folded) continue;
            const first = Math.max(0, Math.floor((scroll + AXIS_HEIGHT - track.top - LABEL_HEIGHT) / ROW_HEIGHT));
            for (let row = first; row < track.lanes.rowCount; row += 1) {
                const y = track.top - scroll + LABEL_HEIGHT + row * ROW_HEIGHT;
                if (y >= height) break;
                yield { lanes: track.lanes, row, y };
            }
        }
    },

    drawTracks(context, width, height, colors, scale, scroll) {
        const rows = [...this.shownRows(height, scroll)];
        const ratio = devicePixelRatio || 1;
        const pixels = Math.round(width * ratio);
        this.strips.begin(pixels, rows.length);
        const parts = rows.map(({ lanes, row }) =>
            this.strips.add(lanes, row, this.view.start, scale * ratio, lanes.kind === "idle" ? 0.8 : 1),
        );
        this.strips.finish();
        context.imageSmoothingEnabled = false;
        rows.forEach(({ lanes, y }, at) => {
            this.strips.draw(context, parts[at].strip, y, width, ROW_HEIGHT - 2);
            for (const place of parts[at].wide) this.drawWide(context, lanes, place, y, width, scale);
        });
        context.globalAlpha = 1;
        for (const track of this.tracks) {
            const y = track.top - scroll + LABEL_HEIGHT;
            if (!track.curve || track.folded || y > height || y + track.height < AXIS_HEIGHT) continue;
            context.globalAlpha = 0.65;
            track.curve.draw(
                context,
                y,
                width,
                CURVE_HEIGHT,
                this.view.start,
                scale,
                track.curve.kind === "memory" ? "#76b7b2" : "#b07aa1",
            );
            context.globalAlpha = 1;
        }
    },

    drawWide(context, lanes, place, y, width, scale) {
        const x = (lanes.start[place] - this.view.start) * scale;
        const end = (lanes.end[place] - this.view.start) * scale;
        const left = Math.max(x, -2);
        const wide = Math.max(Math.min(end, width + 2) - left, 1);
        const color = lanes.colors[lanes.color[place]];
        const merged = lanes.count !== null && lanes.count[place] > 1;
        const strong = lanes.kind === "idle" ? 0.75 : 1;
        const density = merged ? 0.3 + 0.7 * Math.min(1, lanes.covered[place] / (lanes.duration(place) || 1)) : 1;
        context.globalAlpha = lanes.marked === null || lanes.marked[place] ? strong * density : FAINT;
        context.fillStyle = color;
        context.fillRect(left, y, wide > 3 ? wide - 0.6 : wide, ROW_HEIGHT - 2);
        if (wide > 26 && !merged)
            this.surface.text(
                this.labels[lanes.name[place]],
                Math.max(x, 0),
                y + (ROW_HEIGHT - 2) / 2,
                Math.min(end, width) - Math.max(x, 0),
                onColor(color),
            );
    },

    drawLabels(context, width, height, colors, scroll) {
        context.fillStyle = colors.soft;
        for (const track of this.tracks) {
            const y = track.top - scroll + LABEL_HEIGHT / 2;
            if (y < AXIS_HEIGHT || y > height) continue;
            let more = "";
            if (track.folded)
                more = `: ${formatCount(track.lanes ? track.lanes.size : track.curve.changes)} folded, click to open`;
            else if (track.curve) more = `, up to ${track.curve.format(track.curve.most)}`;
            context.fillText(printable(`${track.folded ? "▸" : "▾"} ${track.label}${more}`), 4, y);
        }
    },

    // Where a slice is on the canvas: of a folded track, on its label.
    spot({ lanes, place }, scale, scroll) {
        const track = this.trackOf.get(lanes);
        const y = track.top - scroll + (track.folded ? 0 : LABEL_HEIGHT + lanes.row[place] * ROW_HEIGHT);
        return {
            x: (lanes.start[place] - this.view.start) * scale,
            end: (lanes.end[place] - this.view.start) * scale,
            y,
            middle: y + (ROW_HEIGHT - 2) / 2,
        };
    },

    drawSelected(context, colors, scale, scroll) {
        const own = this.spot(this.selected, scale, scroll);
        context.strokeStyle = colors.text;
        context.lineWidth = 2;
        const left = Math.max(own.x, -4);
        context.strokeRect(left, own.y, Math.max(Math.min(own.end, this.surface.width + 4) - left, 2), ROW_HEIGHT - 2);
        context.strokeStyle = colors.more;
        context.fillStyle = colors.more;
        context.lineWidth = 1.4;
        const others = [...this.linked(this.selected), ...this.launched(this.selected)];
        for (const other of others.slice(0, MOST_ARROWS)) {
            const spot = this.spot(other, scale, scroll);
            const caused = other.lanes.first + other.place === this.selected.lanes.link[this.selected.place];
            const [from, to] = caused ? [spot, own] : [own, spot];
            this.arrow(context, from.end, from.middle, to.x, to.middle);
        }
    },

    arrow(context, x, y, toX, toY) {
        const bend = Math.min(60, Math.max(12, Math.abs(toX - x) / 2));
        context.beginPath();
        context.moveTo(x, y);
        context.bezierCurveTo(x + bend, y, toX - bend, toY, toX, toY);
        context.stroke();
        context.beginPath();
        context.moveTo(toX, toY);
        context.lineTo(toX - 6, toY - 3.5);
        context.lineTo(toX - 6, toY + 3.5);
        context.fill();
    },

    // Along the slices that hold the step, and from one to the next.
    drawPath(context, width, height, colors, scale, scroll) {
        const { start, duration, slice } = this.entry.path;
        context.strokeStyle = colors.more;
        context.lineWidth = 2.5;
        context.lineJoin = "round";
        context.beginPath();
        let [before, drawn] = [null, null];
        for (let place = 0; place < start.length; place += 1) {
            const at = slice[place] >= 0 ? this.sliceAt(slice[place]) : null;
            const y = at ? this.spot(at, scale, scroll).y + ROW_HEIGHT - 3 : before && before.y;
            const [x, end] = [
                (start[place] - this.view.start) * scale,
                (start[place] + duration[place] - this.view.start) * scale,
            ];
            if (y === null) continue;
            const spot = { x: end, y };
            if (end >= 0 && x <= width && (!drawn || Math.abs(end - drawn.x) >= 0.5 || Math.abs(y - drawn.y) >= 0.5)) {
                if (before) context.moveTo(Math.max(-9, before.x), before.y);
                else context.moveTo(x, y);
                context.lineTo(x, y);
                context.lineTo(Math.min(end, width + 9), y);
                drawn = spot;
            }
            before = spot;
        }
        context.stroke();
    },

    grid(context, height, colors, scale) {
        context.strokeStyle = colors.faint;
        context.lineWidth = 1;
        context.beginPath();
        for (const { time } of this.axisTicks.ticks) {
            const x = Math.round((time - this.view.start) * scale) + 0.5;
            context.moveTo(x, AXIS_HEIGHT);
            context.lineTo(x, height);
        }
        context.stroke();
    },

    axis(context, width, colors, scale) {
        const { ticks, anchorLabel } = this.axisTicks;
        context.fillStyle = colors.panel;
        context.fillRect(0, 0, width, AXIS_HEIGHT - 2);
        const free = anchorLabel ? context.measureText(anchorLabel).width + 14 : 0;
        context.fillStyle = colors.soft;
        for (const { time, label } of ticks) {
            const x = (time - this.view.start) * scale + 3;
            // A label that would be cut off says a wrong number.
            if (x > free && x + context.measureText(label).width < width) context.fillText(label, x, 9);
        }
        if (anchorLabel) {
            context.fillStyle = colors.text;
            context.font = "bold 11px system-ui, sans-serif";
            context.fillText(anchorLabel, 3, 9);
            context.font = "11px system-ui, sans-serif";
        }
        this.drawMarks(context, width, colors, scale);
    },

    // Below the ticks: the idle time that the first findings are about.
    drawMarks(context, width, colors, scale) {
        context.fillStyle = colors.more;
        const flags = []; // those that stand for others close by are drawn once
        for (const { start, duration } of this.entry.marks)
            start.forEach((at, number) => {
                const x = (at - this.view.start) * scale;
                const end = x + duration[number] * scale;
                if (end < 0 || x > width) return;
                const middle = Math.max(0, x) + (Math.min(end, width) - Math.max(0, x)) / 2;
                context.fillRect(
                    Math.max(x, 0),
                    AXIS_HEIGHT - 5,
                    Math.max(Math.min(end, width) - Math.max(x, 0), 1),
                    2,
                );
                if (flags.some((other) => Math.abs(other - middle) < 12)) return;
                flags.push(middle);
                context.beginPath();
                context.moveTo(middle - 4, AXIS_HEIGHT - 12);
                context.lineTo(middle + 4, AXIS_HEIGHT - 12);
                context.lineTo(middle, AXIS_HEIGHT - 5);
                context.fill();
            });
    },

    drawRange(context, width, height, colors, scale) {
        const [x, end] = [(this.range.start - this.view.start) * scale, (this.range.end - this.view.start) * scale];
        if (end < 0 || x > width) return;
        context.fillStyle = colors.accent;
        context.globalAlpha = 0.14;
        context.fillRect(x, AXIS_HEIGHT, end - x, height);
        context.globalAlpha = 1;
        context.strokeStyle = colors.accent;
        context.lineWidth = 1;
        context.beginPath();
        for (const edge of [x, end]) {
            context.moveTo(Math.round(edge) + 0.5, 14);
            context.lineTo(Math.round(edge) + 0.5, height);
        }
        context.stroke();
        const label = formatNs(this.range.end - this.range.start);
        const wide = context.measureText(label).width + 8;
        const middle = Math.max(wide / 2, Math.min((Math.max(0, x) + Math.min(width, end)) / 2, width - wide / 2));
        context.fillStyle = colors.accent;
        context.fillRect(middle - wide / 2, AXIS_HEIGHT - 14, wide, 14);
        context.fillStyle = colors.panel;
        context.fillText(label, middle - wide / 2 + 4, AXIS_HEIGHT - 7);
    },
});
