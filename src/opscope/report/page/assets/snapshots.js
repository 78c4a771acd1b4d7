// Memory snapshots: bytes by owner over time with the peak, what held most at a moment, and the segments at the end.
import { sectionOf } from "./blocks.js";
import { axis, chart, plain, tip } from "./charts.js";
import { PALETTE } from "./data.js";
import { add, clear, el, nameOf, note, section } from "./dom.js";
import { tableOf } from "./table.js";
import { roundScale } from "./ticks.js";
import { formatBytes, formatCount, formatNs, formatShare, most } from "./units.js";

const FREE = -1;
const colorOf = (owner) => PALETTE[owner % PALETTE.length];

export function snapshotsView(page) {
    const words = page.snapshots.map((pictures, place) =>
        sectionOf(page.snapshot_sections[place], pictures.map(pictureOf)),
    );
    const difference = page.snapshot_sections.slice(page.snapshots.length).map((entry) => sectionOf(entry));
    return [difference, words];
}

function pictureOf(picture) {
    const title = picture.device === null ? "Pinned memory of the host" : `GPU ${picture.device}`;
    return section(title, overTime(picture, title), mapOf(picture, title));
}

function overTime(picture, title) {
    if (picture.time_us.length < 2) return null;
    const then = el("div", { class: "block" });
    const show = (moment) => add(clear(then), [momentOf(picture, moment)]);
    show(picture.peak);
    const total = (moment) => picture.bytes.reduce((sum, column) => sum + column[moment], 0);
    const facts = (moment) =>
        picture.owners
            .map((owner, number) => [owner, formatBytes(picture.bytes[number][moment])])
            .filter((_, number) => picture.bytes[number][moment] > 0);
    const tipOf = (moment) => () =>
        tip(formatBytes(total(moment)), [["at", formatNs(1e3 * picture.time_us[moment])], ...facts(moment)]);
    const points = (column) => column.map((bytes, moment) => ({ value: [moment, bytes], moment, tip: tipOf(moment) }));
    const last = picture.time_us.length - 1;
    return [
        el("h3", null, "Allocated over time, by owner"),
        note("Moments are in order, as far apart as their events are. Choose one to see which lines held most."),
        chart(
            `memory of ${title} by owner over time`,
            320,
            (colors) =>
                plain(colors, {
                    xAxis: axis(colors, "since the first event", (moment) => timeAt(picture, moment), {
                        min: 0,
                        max: last,
                        nameGap: 26,
                    }),
                    yAxis: axis(colors, "", formatBytes, {
                        nameGap: 60,
                        ...roundScale(most(1, picture.reserved_bytes), 1024),
                    }),
                    grid: { left: 86, right: 28, top: 60, bottom: 46 },
                    series: [
                        ...picture.owners.map((owner, number) => ({
                            name: owner,
                            type: "line",
                            stack: "bytes",
                            symbolSize: 4,
                            showSymbol: number === picture.owners.length - 1,
                            color: colorOf(number),
                            lineStyle: { width: 0.6 },
                            areaStyle: { opacity: 0.7 },
                            data: points(picture.bytes[number]),
                            ...(number === 0 ? { markPoint: peakOf(picture, colors) } : {}),
                        })),
                        {
                            name: "reserved",
                            type: "line",
                            showSymbol: false,
                            color: colors.text,
                            lineStyle: { width: 1.2, type: "dashed" },
                            data: picture.reserved_bytes.map((bytes, moment) => [moment, bytes]),
                        },
                    ],
                }),
            (event) => event.data && event.data.moment !== undefined && show(event.data.moment),
        ),
        then,
    ];
}

const timeAt = (picture, moment) => formatNs(1e3 * (picture.time_us[Math.round(moment)] ?? 0));

const peakOf = (picture, colors) => ({
    symbol: "circle",
    symbolSize: 9,
    itemStyle: { color: "#e15759" },
    label: {
        show: true,
        position: "top",
        color: colors.text,
        formatter: `peak ${formatBytes(picture.peak_bytes)}`,
    },
    data: [{ coord: [picture.peak, picture.peak_bytes] }],
});

function momentOf(picture, moment) {
    const whole = picture.bytes.reduce((sum, column) => sum + column[moment], 0);
    const where = moment === picture.peak ? "at the peak" : `${timeAt(picture, moment)} after the first event`;
    return [
        el("h3", null, `Lines that held most ${where}`),
        tableOf(
            { class: "data plain", "aria-label": "lines that held most" },
            ["Owner", "Line", "Bytes", "of all"].map((name, place) =>
                el("th", { scope: "col", class: place > 1 ? "number" : "text" }, name),
            ),
            picture.top[moment].map(([line, owner, bytes]) => [
                el("td", { class: "text" }, picture.owners[owner]),
                el("td", { class: "text" }, nameOf(picture.lines[line])),
                el("td", { class: "number" }, formatBytes(bytes)),
                el("td", { class: "number" }, formatShare(bytes, whole || null)),
            ]),
        ),
    ];
}

// Each segment as a bar: what holds it in its owner's colour, what is free empty.
function mapOf(picture, title) {
    if (!picture.segments.length && !picture.empty_segments) return null;
    const widest = most(
        1,
        picture.segments.map((one) => one.bytes),
    );
    const about = (one, [, bytes, owner, line]) => {
        if (owner === FREE) return `${formatBytes(bytes)} free of ${formatBytes(one.bytes)}`;
        const name = owner < 0 ? "another stream may still use it" : picture.owners[owner];
        return `${formatBytes(bytes)}: ${name}${line < 0 ? "" : `, ${picture.lines[line]}`}`;
    };
    const bar = (one) => [
        el(
            "span",
            { class: "lane-name" },
            `${formatBytes(one.bytes)}${one.free_bytes ? `, ${formatBytes(one.free_bytes)} free` : ""}`,
        ),
        el(
            "div",
            {
                class: "lane",
                role: "img",
                style: { background: "none" },
                "aria-label": `segment of ${formatBytes(one.bytes)} in pool ${one.pool}`,
            },
            el("b", {
                title: `segment of ${formatBytes(one.bytes)}, stream ${one.stream}, pool ${one.pool}`,
                style: { left: "0%", width: `${(100 * one.bytes) / widest}%` },
            }),
            one.blocks
                .filter(([, , owner]) => owner !== FREE)
                .map((block) =>
                    el("i", {
                        title: about(one, block),
                        style: {
                            left: `${(100 * block[0]) / widest}%`,
                            width: `${(100 * block[1]) / widest}%`,
                            background: block[2] < 0 ? "#999" : colorOf(block[2]),
                        },
                    }),
                ),
        ),
    ];
    return [
        el("h3", null, "Segments at the end"),
        note(
            [
                "Each dark line is a segment that holds something; what has no colour below it is free, and cannot be given back.",
                picture.left_out ? `${formatCount(picture.left_out)} more are not drawn.` : "",
                picture.empty_segments
                    ? `${formatCount(picture.empty_segments)} segments of ${formatBytes(picture.empty_bytes)} hold nothing: torch.cuda.empty_cache() gives them back.`
                    : "",
            ].join(" "),
        ),
        el(
            "div",
            { class: "chips" },
            picture.owners.map((name, owner) =>
                el("span", { class: "chip", style: { "--chip": colorOf(owner) } }, name),
            ),
        ),
        el("div", { class: "lanes", "aria-label": `segments of ${title}` }, picture.segments.map(bar)),
    ];
}
