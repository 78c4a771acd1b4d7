// What kernels did by the counters of Nsight Compute: operations and bytes below the roofs of the device.
import { nameOf, note, printable, section } from "./dom.js";
import { bandwidthChart, rooflineChart } from "./roofline.js";
import { countColumn, DataTable, sizeColumn, textColumn, timeColumn } from "./table.js";
import { formatCount, formatNs, formatRate, formatShare, threeDigits } from "./units.js";

const COUNTED = {
    roofline: "roofline of counted operations",
    intensity: "operations a byte (both counted)",
    bandwidth: "bandwidth of kernels without arithmetic",
    bytes: "bytes that a launch moved",
    moved: "moved",
};

export function countersView(page) {
    const doc = page.counters;
    return [
        section(
            `Counters of ${doc.files.map((file) => file.split("/").pop()).join(", ")}`,
            ...countedRoofs(doc),
            ...doc.notes.map((text) => note(text)),
        ),
        section("Kernels", countedKernels(doc)),
    ];
}

function countedRoofs(doc) {
    const limited = doc.kernels.filter(({ work }) => work !== null && work.ideal_ns !== null);
    const shown = limited.filter(({ work }) => work.dram_bytes > 0);
    if (!shown.length) {
        const asked = doc.kernels.some(({ work, reason }) => work !== null || reason !== null);
        return [
            note(
                asked
                    ? "No roofline: no kernel has a limit and moved bytes."
                    : "No roofline: it takes operations and bytes, which ncu --set roofline counts.",
            ),
        ];
    }
    const roofs = {
        memory_bytes_per_s: doc.peaks.memory_bytes_per_s,
        flop_per_s: Object.fromEntries(shown.filter(busy).map(({ work }) => [work.unit, work.unit_peak_per_s])),
    };
    const points = shown.map((row) => ({
        name: row.summary || row.kernel,
        operator: null,
        category: null,
        precision: row.work.unit,
        calls: row.work.launches,
        // A roof is that of one unit, so a point is of what that unit did.
        flop: busy(row) ? row.work.operations_by_unit[row.work.unit] : 0,
        bytes: row.work.dram_bytes,
        ns: row.work.ns,
        lost: row.work.share === null ? null : row.work.launches * (row.work.ns - row.work.ideal_ns),
        area: row.work.launches * row.work.ns,
        share: row.work.share,
        limited: row.work.limited_by,
    }));
    const arithmetic = points.filter((one) => one.flop > 0);
    const left = limited.length - shown.length;
    return [
        ...[
            rooflineChart(null, roofs, arithmetic, COUNTED),
            bandwidthChart(
                null,
                roofs,
                points.filter((one) => !one.flop),
                COUNTED,
            ),
        ].filter(Boolean),
        note(
            "Areas are time.",
            arithmetic.length
                ? " A point of the roofline is of the operations of one unit, the one that would take longest at its peak."
                : "",
            left
                ? ` ${formatCount(left)} ${left > 1 ? "kernels" : "kernel"} that moved no bytes of the device's memory ${left > 1 ? "are" : "is"} left out.`
                : "",
        ),
    ];
}

const busy = ({ work }) => work.unit !== null && work.operations_by_unit[work.unit] > 0;
const percentText = (value) => formatShare(value, 100);
const ofWork =
    (key) =>
    ({ work }) =>
        work === null ? null : work[key];

// Nsight Compute leaves out parts of names.
function fullName(row) {
    return row.name_in_run || row.kernel;
}

function limitOf(row) {
    const limit = ofWork("limited_by")(row) ?? "-";
    return limit === "compute" ? `compute (${row.work.unit})` : limit;
}

function countedKernels(doc) {
    const figure = (key, label, format) => ({ key, label, value: (row) => row[key], format });
    const worked = (key, label, format) => ({ key, label, value: ofWork(key), format });
    const shown = [
        textColumn(
            "kernel",
            "Kernel",
            (row) => row.summary || row.kernel,
            (row) => nameOf(row.summary || row.kernel, { title: printable(fullName(row)).slice(0, 2000) }),
        ),
        {
            key: "time",
            label: "Time",
            // Times under Nsight Compute do not mix with those of a run.
            value: (row) =>
                row.run_ns !== null ? row.joined * row.run_ns : doc.trace ? null : row.measured * (row.ncu_ns ?? 0),
            format: formatNs,
            bar: true,
        },
        worked("share", "of limit", (value) => formatShare(value, 1)),
        textColumn("limited_by", "Limited by", limitOf, (row) => nameOf(limitOf(row))),
        worked("operations_per_s", "FLOP/s", (value) => formatRate(value, "FLOP/s")),
        worked("operations_per_byte", "FLOP/byte", (value) => (value === null ? "-" : threeDigits(value))),
        sizeColumn("dram_bytes", "Moved"),
        countColumn("measured", "Launches"),
        timeColumn("run_ns", "In the run"),
        timeColumn("ncu_ns", "Under ncu"),
        textColumn("grid", "Grid", (row) => row.grid || "-"),
        textColumn("block", "Block", (row) => row.block || "-"),
        figure("sm_percent", "SM", percentText),
        figure("dram_percent", "DRAM", percentText),
        figure("occupancy_percent", "Occupancy", percentText),
    ];
    // What was measured of no kernel has no column.
    const columns = shown.filter((column) =>
        doc.kernels.some((row) => ![null, undefined, "-"].includes(column.value(row))),
    );
    return new DataTable({
        name: "counters",
        rows: doc.kernels,
        sort: ["time", true],
        search: (row) => [row.summary, row.kernel, row.name_in_run].join(" "),
        columns,
    }).element;
}
