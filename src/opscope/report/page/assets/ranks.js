// The ranks of a job together: who is late and why, how late in each step, one clock, what collectives cost.
import { sectionOf } from "./blocks.js";
import { PALETTE } from "./data.js";
import { el, note } from "./dom.js";
import { countColumn, DataTable, nameColumn, textColumn, timeColumn } from "./table.js";
import { fixed, formatBytes, formatNs, formatShare, most } from "./units.js";

const HEAT = "209, 73, 91"; // of a late rank
const orUnknown = (value) => (value === null ? "unknown" : `${value}`);

export function ranksView(page) {
    return page.jobs.map((doc, place) =>
        sectionOf(
            page.job_sections[place],
            doc.heat ? heatOf(doc.heat) : null,
            doc.timeline ? laneOf(doc.timeline) : null,
            doc.collectives.length ? collectivesOf(doc.collectives) : null,
            ranksOf(doc),
        ),
    );
}

// How late each rank is in each step: the darker, the later; empty where it waits for others.
function heatOf(heat) {
    const most = Math.max(1, ...heat.late_ns.map((row) => Math.max(...row)));
    const span = ([first, last]) =>
        first === null ? "the recording" : first === last ? `step ${first}` : `steps ${first} to ${last}`;
    return [
        el("h3", null, "How late each rank is in each step"),
        note(heat.sentence),
        el(
            "div",
            { class: "scroll" },
            el(
                "table",
                { class: "heat", "aria-label": "how late each rank is in each step" },
                heat.ranks.map((rank, row) =>
                    el(
                        "tr",
                        null,
                        el("th", { scope: "row" }, `rank ${rank}`),
                        heat.late_ns[row].map((late, column) => {
                            const share = Math.max(0, late) / most;
                            const about = `rank ${rank}, ${span(heat.steps[column])}: ${late > 0 ? `${formatNs(late)} late` : "waits"}`;
                            return el("td", {
                                title: about,
                                style: { background: `rgba(${HEAT}, ${share.toFixed(3)})` },
                            });
                        }),
                    ),
                ),
            ),
        ),
    ];
}

// One step on the clock of all ranks: the host's part of it as a line, collectives of the device as bars below.
function laneOf(timeline) {
    const ends = timeline.lanes.map((lane) =>
        most(
            lane.begin_ns + lane.host_ns,
            lane.calls.map(([begin, length]) => begin + length),
        ),
    );
    const span = Math.max(1, most(1, ends));
    const at = (time) => `${(100 * time) / span}%`;
    const color = (kind) => PALETTE[kind % PALETTE.length];
    const bar =
        (rank) =>
        ([begin, length, kind, wait]) => {
            const name = timeline.kinds[kind];
            const about = `rank ${rank}: ${name}, ${formatNs(length)} from ${formatNs(begin)} on, of it ${formatNs(wait)} waiting for the last rank`;
            const waits = `${(100 * wait) / Math.max(1, length)}%`;
            return el("i", {
                title: about,
                style: {
                    left: at(begin),
                    width: at(length),
                    background: `linear-gradient(90deg, ${color(kind)}55 ${waits}, ${color(kind)} ${waits})`,
                },
            });
        };
    const late = (lane) => (lane.late_ns > 0 ? `, ${formatNs(lane.late_ns)} late` : "");
    const lane = (one) => [
        el("span", { class: "lane-name" }, `rank ${one.rank}`),
        el(
            "div",
            {
                class: "lane",
                role: "img",
                "aria-label": `rank ${one.rank}${late(one)}: ${one.calls.length} collectives`,
            },
            el("b", {
                title: `rank ${one.rank}: the host's step, ${formatNs(one.host_ns)}${late(one)}`,
                style: { left: at(one.begin_ns), width: at(one.host_ns) },
            }),
            one.calls.map(bar(one.rank)),
        ),
    ];
    const ticks = roundTicks(span);
    return [
        el("h3", null, "One step on one clock"),
        note(timeline.sentence),
        el(
            "div",
            { class: "chips" },
            timeline.kinds.map((name, kind) => el("span", { class: "chip", style: { "--chip": color(kind) } }, name)),
        ),
        el(
            "div",
            { class: "lanes" },
            timeline.lanes.map(lane),
            el("span"),
            el(
                "div",
                { class: "lane axis" },
                ticks.map((time) => el("em", { style: { left: at(time) } }, shortNs(time))),
            ),
        ),
    ];
}

const shortNs = (time) => (time ? formatNs(time).replace(/\.0+ /, " ") : "0");

// Four to nine times from 0 on, apart by 1, 2 or 5 times a power of ten.
function roundTicks(span) {
    const power = 10 ** Math.floor(Math.log10(span / 4));
    const apart = [5, 2, 1].map((times) => times * power).find((one) => span / one >= 4) || power;
    return Array.from({ length: Math.floor(span / apart) + 1 }, (_, place) => place * apart);
}

const rate = (value) => (value === null ? "-" : `${fixed(value / 1e9, 1)} GB/s`);

function collectivesOf(collectives) {
    const columns = [
        nameColumn("collective", "Collective"),
        textColumn("group", "Group"),
        {
            key: "bytes",
            label: "Size",
            value: (one) => one.bytes,
            format: (value) => (value === null ? "-" : formatBytes(value)),
        },
        countColumn("calls", "Calls"),
        timeColumn("transfer", "Transfer", { value: (one) => one.transfer_ns }),
        timeColumn("wait", "Wait", { value: (one) => one.wait_ns }),
        timeColumn("worst", "Worst wait", { value: (one) => one.worst_wait_ns }),
        { key: "bus", label: "Bus bandwidth", value: (one) => one.bus_bandwidth, format: rate },
        {
            key: "link",
            label: "Of the link",
            value: (one) =>
                one.link_bandwidth === null || one.bus_bandwidth === null
                    ? null
                    : one.bus_bandwidth / one.link_bandwidth,
            format: (value) => (value === null ? "-" : formatShare(value, 1)),
        },
        {
            key: "last",
            label: "Last rank",
            value: (one) => one.last_rank,
            format: (value) => (value === null ? "-" : `${value}`),
        },
    ];
    const search = (one) => [one.collective, one.group];
    return [
        el("h3", null, "Collectives"),
        new DataTable({ name: "collectives", rows: collectives, sort: ["calls", true], search, columns }).element,
    ];
}

function ranksOf(doc) {
    const clocks = new Map(doc.clocks.map((one) => [one.rank, one]));
    const late = new Map(doc.late.map((one) => [one.rank, one]));
    const of = (read, from) => (one) => (from.has(one.rank) ? read(from.get(one.rank)) : null);
    const columns = [
        { key: "rank", label: "Rank", value: (one) => one.rank, format: String },
        textColumn("state", "State"),
        {
            key: "late",
            label: "Late by",
            value: of((one) => one.late_ns, late),
            format: (value) => (value === null ? "" : formatNs(value)),
        },
        textColumn(
            "cause",
            "Cause",
            of((one) => one.cause, late),
            (one) => (late.has(one.rank) ? late.get(one.rank).cause : ""),
        ),
        textColumn("host", "Host", (one) => orUnknown(one.host)),
        textColumn("device", "Device", (one) => orUnknown(one.device)),
        timeColumn("clock", "Clock ahead", { value: of((one) => one.offset_ns, clocks) }),
        timeColumn("error", "Within", { value: of((one) => one.error_ns, clocks) }),
        textColumn("why", "What is wrong", (one) => one.reason || ""),
    ];
    const search = (one) => [String(one.rank), one.state, one.host];
    return [
        el("h3", null, "Ranks"),
        new DataTable({ name: "ranks", rows: doc.ranks, sort: ["rank", false], search, columns }).element,
    ];
}
