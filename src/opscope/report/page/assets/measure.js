// What lies in a range of time: how long devices work and why they do not, and what takes most of it.
import { sum } from "./data.js";
import { button, el, facts, figure, note, printable } from "./dom.js";
import { countColumn, plainTable, shareColumn, textColumn, timeColumn } from "./table.js";
import { formatCount, formatNs, formatShare } from "./units.js";

const LISTED_IN_RANGE = 10;

// The busy time of a device within a range: the union of what its streams do. Rows are sorted and do not overlap, so
// that their slices are merged as they come. Of slices that were drawn together only what they cover is known, and not
// where: then it is between what one row covers for sure and what all of them may.
export function busyWithin(tracks, start, end) {
    const heads = [];
    for (const lanes of tracks)
        for (let row = 0; row < lanes.rowCount; row += 1) {
            const next = lanes.touching(row, start, end);
            const { value, done } = next.next();
            if (!done) heads.push({ lanes, next, place: value });
        }
    let [busy, until, merged] = [0, start, false];
    while (heads.length) {
        let first = 0;
        for (let at = 1; at < heads.length; at += 1)
            if (heads[at].lanes.start[heads[at].place] < heads[first].lanes.start[heads[first].place]) first = at;
        const head = heads[first];
        if (head.lanes.count && head.lanes.count[head.place] > 1) merged = true;
        const from = Math.max(head.lanes.start[head.place], until);
        const stop = Math.min(head.lanes.end[head.place], end);
        if (stop > from) {
            busy += stop - from;
            until = stop;
        }
        const { value, done } = head.next.next();
        if (done) heads.splice(first, 1);
        else head.place = value;
    }
    if (!merged) return { low: busy, high: busy };
    let [low, all] = [0, 0];
    for (const lanes of tracks)
        for (let row = 0; row < lanes.rowCount; row += 1) {
            let covered = 0;
            for (const place of lanes.touching(row, start, end)) covered += lanes.within(place, start, end);
            low = Math.max(low, covered);
            all += covered;
        }
    return { low, high: Math.min(busy, all) };
}

// Sums of what lies within a range, by name and device; the largest first. Merged slices are one entry without a name.
function sumsWithin(tracks, names, start, end) {
    const found = new Map();
    for (const lanes of tracks)
        for (let row = 0; row < lanes.rowCount; row += 1)
            for (const place of lanes.touching(row, start, end)) {
                const count = lanes.count ? lanes.count[place] : 1;
                const name = count > 1 ? null : names[lanes.name[place]];
                const key = `${lanes.device}:${name}`;
                if (!found.has(key)) found.set(key, { name, calls: 0, ns: 0, device: lanes.device });
                const sums = found.get(key);
                // Of slices drawn together that reach out of the range, as many as their share of it.
                const inside = Math.min(lanes.end[place], end) - Math.max(lanes.start[place], start);
                sums.calls += count > 1 ? Math.max(1, Math.round((count * inside) / lanes.duration(place))) : 1;
                sums.ns += lanes.within(place, start, end);
            }
    return [...found.values()].sort((one, other) => other.ns - one.ns);
}

export function measured(timeline, start, end) {
    const streams = timeline.lanes.filter((lanes) => lanes.kind === "stream");
    const devices = [...new Set(streams.map((lanes) => lanes.device))].map((device) => ({
        device,
        busy: busyWithin(
            streams.filter((lanes) => lanes.device === device),
            start,
            end,
        ),
        idle: sumsWithin(
            timeline.lanes.filter((lanes) => lanes.kind === "idle" && lanes.device === device),
            timeline.names,
            start,
            end,
        ),
    }));
    const host = timeline.lanes.filter((lanes) => lanes.kind === "operator");
    return {
        start,
        end,
        devices,
        kernels: sumsWithin(streams, timeline.names, start, end),
        operators: sumsWithin(host, timeline.names, start, end),
        calls: sumsWithin(
            timeline.lanes.filter((lanes) => lanes.kind === "call"),
            timeline.names,
            start,
            end,
        ),
        curves: timeline.curves.map((curve) => ({
            label: curve.label,
            highest: curve.highest(start, end),
            format: curve.format,
        })),
    };
}

function rangeTable(timeline, label, rows, length) {
    if (!rows.length) return null;
    const shown = rows.slice(0, LISTED_IN_RANGE);
    const rest = rows.slice(LISTED_IN_RANGE);
    if (rest.length)
        shown.push({
            name: `(${formatCount(rest.length)} more)`,
            calls: sum(rest.map((one) => one.calls)),
            ns: sum(rest.map((one) => one.ns)),
            rest: true,
        });
    const named = (row) => {
        if (row.name === null || row.rest) return row.name || "(short ones drawn together)";
        const device = row.device === null || !timeline.severalDevices ? "" : `device ${row.device}: `;
        const title = printable(row.name).slice(0, 2000);
        const choose = () => timeline.mark(row.name, true);
        return button(`${device}${timeline.data.shortOf.get(row.name) || row.name}`, choose, {
            class: "plain name",
            title,
        });
    };
    return plainTable(
        label,
        [
            textColumn("name", label, undefined, named),
            countColumn("calls", "calls"),
            timeColumn("ns", "time"),
            shareColumn("share", "of the range", { value: (row) => row.ns / length }),
        ],
        shown,
    );
}

// The figures and tables of a range.
export function rangeReport(timeline, { start, end, devices, kernels, operators, calls, curves }) {
    const length = end - start;
    const several = devices.length > 1;
    return [
        el("strong", null, `Measured: ${formatNs(length)}`),
        facts([
            ["from", `${formatNs(start)} to ${formatNs(end)}`],
            ...devices.flatMap(({ device, busy, idle }) => [
                [
                    several ? `device ${device} busy` : "device busy",
                    el(
                        "span",
                        null,
                        figure(busy.low, formatNs, { data: { key: "busy" } }),
                        busy.high > busy.low ? [" to ", figure(busy.high, formatNs)] : null,
                        `, ${formatShare(busy.low, length)}`,
                        busy.high > busy.low ? ` to ${formatShare(busy.high, length)}` : null,
                    ),
                ],
                length - busy.high - sum(idle.map((one) => one.ns)) > 1
                    ? ["outside of the analysed window", formatNs(length - busy.high - sum(idle.map((one) => one.ns)))]
                    : null,
                idle.length
                    ? ["idle", idle.map((one) => `${formatNs(one.ns)} ${one.name || "short waits"}`).join(", ")]
                    : null,
            ]),
            ...curves
                .filter(({ highest }) => highest !== null)
                .map(({ label, highest, format }) => [`most: ${label}`, format(highest)]),
        ]),
        el(
            "div",
            { class: "pair" },
            rangeTable(timeline, "kernels in the range", kernels, length),
            rangeTable(timeline, "operators in the range", operators, length),
            kernels.length ? null : rangeTable(timeline, "API calls in the range", calls, length),
        ),
        timeline.entry.merged_below_ns
            ? note("Slices drawn together count with their share of the range: their order is not in the page.")
            : null,
        operators.length ? note("Operators are inside each other: their times do not add up.") : null,
    ];
}
