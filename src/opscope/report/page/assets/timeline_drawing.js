// How the timeline is drawn; `Timeline` has what is drawn.
import { onColor } from "./canvas.js";
import { printable } from "./dom.js";
import { FAINT } from "./lanes.js";
import { timeTicks } from "./ticks.js";
import { AXIS_HEIGHT, CURVE_HEIGHT, LABEL_HEIGHT, MOST_ARROWS, ROW_HEIGHT } from "./timeline.js";
import { formatCount, formatNs } from "./units.js";

/**
 * @typedef {import("./lanes.js").Lanes} Lanes
 * @typedef {import("./lanes.js").Curve} Curve
 * @typedef {{lanes?: Lanes, curve?: Curve, label: string, folded: boolean, top: number, height: number}} Track
 * @typedef {{lanes: Lanes, place: number}} Slice
 */

/**
 * Draw a timeline.
 *
 * @param {import("./timeline.js").Timeline} timeline
 * @param {CanvasRenderingContext2D} context
 * @param {number} width of the canvas, in pixels
 * @param {number} height of it
 * @param {Record<string, string>} colors of the theme
 */
export function drawTimeline(timeline, context, width, height, colors) {
    const scroll = timeline.scroller.scrollTop;
    const scale = width / (timeline.view.end - timeline.view.start);
    timeline.axisTicks = timeTicks(timeline.view.start, timeline.view.end, width);
    drawGrid(timeline, context, height, colors, scale);
    drawTracks(timeline, context, width, height, colors, scale, scroll);
    drawLabels(timeline, context, width, height, colors, scroll);
    if (timeline.showsPath) drawPath(timeline, context, width, height, colors, scale, scroll);
    if (timeline.selected) drawSelected(timeline, context, colors, scale, scroll);
    drawAxis(timeline, context, width, colors, scale);
    if (timeline.range) drawRange(timeline, context, width, height, colors, scale);
}

// The rows of lanes that can be seen, with where they are drawn.
/** @param {import("./timeline.js").Timeline} timeline */
function* shownRows(timeline, height, scroll) {
    for (const track of timeline.tracks) {
        if (!track.lanes || track.folded) continue;
        const first = Math.max(0, Math.floor((scroll + AXIS_HEIGHT - track.top - LABEL_HEIGHT) / ROW_HEIGHT));
        for (let row = first; row < track.lanes.rowCount; row += 1) {
            const y = track.top - scroll + LABEL_HEIGHT + row * ROW_HEIGHT;
            if (y >= height) break;
            yield { lanes: track.lanes, row, y };
        }
    }
}

/** @param {import("./timeline.js").Timeline} timeline */
function drawTracks(timeline, context, width, height, colors, scale, scroll) {
    const rows = [...shownRows(timeline, height, scroll)];
    const ratio = devicePixelRatio || 1;
    const pixels = Math.round(width * ratio);
    timeline.strips.begin(pixels, rows.length);
    const parts = rows.map(({ lanes, row }) =>
        timeline.strips.add(lanes, row, timeline.view.start, scale * ratio, lanes.kind === "idle" ? 0.8 : 1),
    );
    timeline.strips.finish();
    context.imageSmoothingEnabled = false;
    rows.forEach(({ lanes, y }, at) => {
        timeline.strips.draw(context, parts[at].strip, y, width, ROW_HEIGHT - 2);
        for (const place of parts[at].wide) drawWide(timeline, context, lanes, place, y, width, scale);
    });
    context.globalAlpha = 1;
    for (const track of timeline.tracks) {
        const y = track.top - scroll + LABEL_HEIGHT;
        if (!track.curve || track.folded || y > height || y + track.height < AXIS_HEIGHT) continue;
        context.globalAlpha = 0.65;
        track.curve.draw(
            context,
            y,
            width,
            CURVE_HEIGHT,
            timeline.view.start,
            scale,
            track.curve.kind === "memory" ? "#76b7b2" : "#b07aa1",
        );
        context.globalAlpha = 1;
    }
}

/** @param {import("./timeline.js").Timeline} timeline */
function drawWide(timeline, context, lanes, place, y, width, scale) {
    const x = (lanes.start[place] - timeline.view.start) * scale;
    const end = (lanes.end[place] - timeline.view.start) * scale;
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
        timeline.surface.text(
            timeline.labels[lanes.name[place]],
            Math.max(x, 0),
            y + (ROW_HEIGHT - 2) / 2,
            Math.min(end, width) - Math.max(x, 0),
            onColor(color),
        );
}

/** @param {import("./timeline.js").Timeline} timeline */
function drawLabels(timeline, context, width, height, colors, scroll) {
    context.fillStyle = colors.soft;
    for (const track of timeline.tracks) {
        const y = track.top - scroll + LABEL_HEIGHT / 2;
        if (y < AXIS_HEIGHT || y > height) continue;
        let more = "";
        if (track.folded)
            more = `: ${formatCount(track.lanes ? track.lanes.size : track.curve.changes)} folded, click to open`;
        else if (track.curve) more = `, up to ${track.curve.format(track.curve.most)}`;
        context.fillText(printable(`${track.folded ? "▸" : "▾"} ${track.label}${more}`), 4, y);
    }
}

// Where a slice is on the canvas: of a folded track, on its label.
/** @param {import("./timeline.js").Timeline} timeline */
function spotOf(timeline, { lanes, place }, scale, scroll) {
    const track = timeline.trackOf.get(lanes);
    const y = track.top - scroll + (track.folded ? 0 : LABEL_HEIGHT + lanes.row[place] * ROW_HEIGHT);
    return {
        x: (lanes.start[place] - timeline.view.start) * scale,
        end: (lanes.end[place] - timeline.view.start) * scale,
        y,
        middle: y + (ROW_HEIGHT - 2) / 2,
    };
}

/** @param {import("./timeline.js").Timeline} timeline */
function drawSelected(timeline, context, colors, scale, scroll) {
    const own = spotOf(timeline, timeline.selected, scale, scroll);
    context.strokeStyle = colors.text;
    context.lineWidth = 2;
    const left = Math.max(own.x, -4);
    context.strokeRect(left, own.y, Math.max(Math.min(own.end, timeline.surface.width + 4) - left, 2), ROW_HEIGHT - 2);
    context.strokeStyle = colors.more;
    context.fillStyle = colors.more;
    context.lineWidth = 1.4;
    const others = [...timeline.linked(timeline.selected), ...timeline.launched(timeline.selected)];
    for (const other of others.slice(0, MOST_ARROWS)) {
        const spot = spotOf(timeline, other, scale, scroll);
        const caused = other.lanes.first + other.place === timeline.selected.lanes.link[timeline.selected.place];
        const [from, to] = caused ? [spot, own] : [own, spot];
        drawArrow(timeline, context, from.end, from.middle, to.x, to.middle);
    }
}

/** @param {import("./timeline.js").Timeline} timeline */
function drawArrow(timeline, context, x, y, toX, toY) {
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
}

// Along the slices that hold the step, and from one to the next.
/** @param {import("./timeline.js").Timeline} timeline */
function drawPath(timeline, context, width, height, colors, scale, scroll) {
    const { start, duration, slice } = timeline.entry.path;
    context.strokeStyle = colors.more;
    context.lineWidth = 2.5;
    context.lineJoin = "round";
    context.beginPath();
    let [before, drawn] = [null, null];
    for (let place = 0; place < start.length; place += 1) {
        const at = slice[place] >= 0 ? timeline.sliceAt(slice[place]) : null;
        const y = at ? spotOf(timeline, at, scale, scroll).y + ROW_HEIGHT - 3 : before && before.y;
        const [x, end] = [
            (start[place] - timeline.view.start) * scale,
            (start[place] + duration[place] - timeline.view.start) * scale,
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
}

/** @param {import("./timeline.js").Timeline} timeline */
function drawGrid(timeline, context, height, colors, scale) {
    context.strokeStyle = colors.faint;
    context.lineWidth = 1;
    context.beginPath();
    for (const { time } of timeline.axisTicks.ticks) {
        const x = Math.round((time - timeline.view.start) * scale) + 0.5;
        context.moveTo(x, AXIS_HEIGHT);
        context.lineTo(x, height);
    }
    context.stroke();
}

/** @param {import("./timeline.js").Timeline} timeline */
function drawAxis(timeline, context, width, colors, scale) {
    const { ticks, anchorLabel } = timeline.axisTicks;
    context.fillStyle = colors.panel;
    context.fillRect(0, 0, width, AXIS_HEIGHT - 2);
    const free = anchorLabel ? context.measureText(anchorLabel).width + 14 : 0;
    context.fillStyle = colors.soft;
    for (const { time, label } of ticks) {
        const x = (time - timeline.view.start) * scale + 3;
        // A label that would be cut off says a wrong number.
        if (x > free && x + context.measureText(label).width < width) context.fillText(label, x, 9);
    }
    if (anchorLabel) {
        context.fillStyle = colors.text;
        context.font = "bold 11px system-ui, sans-serif";
        context.fillText(anchorLabel, 3, 9);
        context.font = "11px system-ui, sans-serif";
    }
    drawMarks(timeline, context, width, colors, scale);
}

// Below the ticks: the idle time that the first findings are about.
/** @param {import("./timeline.js").Timeline} timeline */
function drawMarks(timeline, context, width, colors, scale) {
    context.fillStyle = colors.more;
    const flags = []; // those that stand for others close by are drawn once
    for (const { start, duration } of timeline.entry.marks)
        start.forEach((at, number) => {
            const x = (at - timeline.view.start) * scale;
            const end = x + duration[number] * scale;
            if (end < 0 || x > width) return;
            const middle = Math.max(0, x) + (Math.min(end, width) - Math.max(0, x)) / 2;
            context.fillRect(Math.max(x, 0), AXIS_HEIGHT - 5, Math.max(Math.min(end, width) - Math.max(x, 0), 1), 2);
            if (flags.some((other) => Math.abs(other - middle) < 12)) return;
            flags.push(middle);
            context.beginPath();
            context.moveTo(middle - 4, AXIS_HEIGHT - 12);
            context.lineTo(middle + 4, AXIS_HEIGHT - 12);
            context.lineTo(middle, AXIS_HEIGHT - 5);
            context.fill();
        });
}

/** @param {import("./timeline.js").Timeline} timeline */
function drawRange(timeline, context, width, height, colors, scale) {
    const [x, end] = [
        (timeline.range.start - timeline.view.start) * scale,
        (timeline.range.end - timeline.view.start) * scale,
    ];
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
    const label = formatNs(timeline.range.end - timeline.range.start);
    const wide = context.measureText(label).width + 8;
    const middle = Math.max(wide / 2, Math.min((Math.max(0, x) + Math.min(width, end)) / 2, width - wide / 2));
    context.fillStyle = colors.accent;
    context.fillRect(middle - wide / 2, AXIS_HEIGHT - 14, wide, 14);
    context.fillStyle = colors.panel;
    context.fillText(label, middle - wide / 2 + 4, AXIS_HEIGHT - 7);
}
