// What kernels did by the counters of Nsight Compute: operations and bytes below the roofs of the device.
import { nameOf, note, printable, section, sentenceOf } from "./dom.js";
import { roofsOf } from "./roofline.js";
import { countColumn, DataTable, sizeColumn, textColumn, timeColumn } from "./table.js";
import { formatNs, formatRate, formatShare, threeDigits } from "./units.js";

export function countersView(page) {
    const doc = page.counters;
    return [
        section(
            `Counters of ${doc.files.map((file) => file.split("/").pop()).join(", ")}`,
            ...roofsOf(null, page.counted),
            ...doc.notes.map((text) => note(sentenceOf(text))),
        ),
        section("Kernels", countedKernels(doc)),
    ];
}

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
        search: (row) => [row.summary, row.kernel, row.name_in_run],
        columns,
    }).element;
}
