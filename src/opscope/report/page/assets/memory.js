// Memory over time, and what was alive when most was allocated.
import { app } from "./app.js";
import { axis, chart, plain, tip } from "./charts.js";
import { el, facts, figure, nameOf, note, section, shapes } from "./dom.js";
import { big } from "./overview.js";
import { countColumn, DataTable, nameColumn, shareColumn, sizeColumn, textColumn } from "./table.js";
import { roundScale } from "./ticks.js";
import { formatBytes, formatCount, formatNs, most } from "./units.js";

export function memoryView(data) {
    if (!data.trace.memory.length) {
        return [
            note("Allocations were not recorded (opscope profile --profile-memory, or profile_memory=True)."),
            peakOnly(data.document),
        ];
    }
    return data.trace.memory.map((one) => memoryOf(data, one)).reverse();
}

function peakOnly(doc) {
    const { memory } = doc.measurement;
    return memory
        ? facts([
              memory.allocated_bytes === null
                  ? null
                  : ["peak allocated on the device", figure(memory.allocated_bytes, formatBytes)],
              memory.reserved_bytes === null ? null : ["peak reserved", figure(memory.reserved_bytes, formatBytes)],
              ["peak resident in the process", figure(memory.resident_bytes, formatBytes)],
          ])
        : null;
}

function memoryOf(data, curve) {
    const title = curve.device === null ? "Host" : `Device ${curve.device}`;
    const rows = [...curve.alive];
    const other = (operator, bytes) =>
        rows.push({ operator, input_dims: null, module: null, python: null, allocations: null, bytes });
    if (curve.smaller_count) other(`(${formatCount(curve.smaller_count)} smaller ones)`, curve.smaller_bytes);
    if (curve.before_bytes !== null)
        other(
            curve.before_bytes < 0 ? "(records are missing)" : "(allocated before the recording)",
            curve.before_bytes,
        );
    const points = curve.time.map((time, place) => ({
        value: [time, curve.allocated_bytes[place]],
        tip: () => tip(formatBytes(curve.allocated_bytes[place]), [["at", formatNs(time)]]),
    }));
    return section(
        title,
        el(
            "div",
            { class: "figures" },
            big(
                "peak",
                curve.peak_bytes,
                formatBytes,
                `allocated ${formatNs(curve.peak_at)} after the first record of it, by PyTorch's allocator`,
            ),
        ),
        chart(`memory of ${title.toLowerCase()} over time`, 260, (colors) =>
            plain(colors, {
                xAxis: axis(colors, "since its first record", formatNs, {
                    min: 0,
                    max: most(1, curve.time),
                    nameGap: 26,
                }),
                yAxis: axis(colors, "", formatBytes, {
                    nameGap: 60,
                    ...roundScale(most(1, curve.allocated_bytes), 1024),
                }),
                grid: { left: 86, right: 28, top: 20, bottom: 46 },
                series: [
                    {
                        type: "line",
                        step: "end",
                        symbolSize: 3,
                        showSymbol: points.length < 500,
                        areaStyle: { opacity: 0.18 },
                        lineStyle: { width: 1.2 },
                        data: points,
                        markPoint: {
                            symbol: "circle",
                            symbolSize: 9,
                            itemStyle: { color: "#e15759" },
                            label: {
                                show: true,
                                position: "top",
                                color: colors.text,
                                formatter: `peak ${formatBytes(curve.peak_bytes)}`,
                            },
                            data: [{ coord: [curve.peak_at, curve.peak_bytes] }],
                        },
                    },
                ],
            }),
        ),
        curve.drawn ? note(curve.drawn) : null,
        el("h3", null, "Alive at the peak"),
        curve.before_bytes === null ? null : aliveTable(data, curve, rows),
        note(curve.adds_up),
    );
}

function aliveTable(data, curve, rows) {
    const table = new DataTable({
        name: `alive at the peak${curve.device === null ? ", host" : ""}`,
        rows,
        sort: ["bytes", true],
        search: (row) => [row.operator, row.module, row.python, row.input_dims],
        columns: [
            sizeColumn("bytes", "Bytes", { bar: true }),
            shareColumn("share", "of peak", { value: (row) => row.bytes / (curve.peak_bytes || 1) }),
            countColumn("allocations", "Allocations"),
            textColumn(
                "operator",
                "Operator",
                (row) => row.operator || "(no operator)",
                (row) =>
                    data.categoryOf.has(row.operator)
                        ? app.operatorLink(data, row.operator)
                        : nameOf(row.operator || "(no operator)"),
            ),
            nameColumn("inputs", "Its inputs", (row) => shapes(row.input_dims) || "-"),
            nameColumn("module", "Module"),
            nameColumn("python", "Line"),
        ],
    });
    return table.element;
}
