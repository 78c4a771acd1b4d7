// What kernels did by the counters of Nsight Compute: operations and bytes below the roofs of the device.
const COUNTED = {
    roofline: "roofline of counted operations",
    intensity: "operations a byte (both counted)",
    bandwidth: "bandwidth of kernels without arithmetic",
    bytes: "bytes that a launch moved",
    moved: "moved",
};

function countersView(page) {
    const doc = page.counters;
    return [
        section(
            `Counters of ${doc.files.map((file) => file.split("/").pop()).join(", ")}`,
            ...countedRoofs(doc),
            note(
                "Durations are medians. Nsight Compute sets the clocks to their base and empties the caches before each launch, unless it was told otherwise.",
            ),
            joinedNote(doc),
        ),
        section("Kernels", countedKernels(doc)),
    ];
}

const launchNs = (row) => row.run_ns ?? row.ncu_ns;

function countedRoofs(doc) {
    const { peaks } = doc;
    const counted = doc.kernels.filter((row) => row.operations !== null);
    if (!counted.length)
        return [
            note(
                doc.not_counted.length && doc.kernels.some((row) => Object.keys(row.operations_by_unit).length)
                    ? `No roofline: operations of ${doc.not_counted.join(", ")} were not counted.`
                    : "No roofline: Nsight Compute was not asked to count operations (ncu --set roofline does).",
            ),
        ];
    if (!peaks) return [note("No roofline: the peaks of the device are not known.")];
    const points = counted
        .filter((row) => row.dram_bytes && launchNs(row))
        .map((row) => {
            const unit = busiestUnit(row, peaks);
            return {
                name: row.kernel,
                operator: null,
                category: null,
                precision: unit && roofOf(unit, peaks),
                calls: row.measured,
                // A roof is that of one unit, so a point is of what that unit did.
                flop: unit ? row.operations_by_unit[unit] : 0,
                bytes: row.dram_bytes,
                ns: launchNs(row),
                lost: row.share === null ? null : row.joined * (row.run_ns - row.ideal_ns),
                area: row.measured * launchNs(row),
                share: row.share,
                limited: row.limited_by,
            };
        });
    return [
        ...[
            rooflineChart(
                null,
                peaks,
                points.filter((one) => one.flop > 0),
                COUNTED,
            ),
            bandwidthChart(
                null,
                peaks,
                points.filter((one) => !one.flop),
                COUNTED,
            ),
        ].filter(Boolean),
        note(
            `${peaks.name}: peaks ${peaks.origin}; memory ${formatRate(peaks.memory_bytes_per_s, "B/s")}. Areas are time. `,
            "A kernel's operations are those that the unit with most to do executed, a multiply-add counted as two; addresses, comparisons and special functions count none. ",
            doc.trace
                ? "Times are those of the run; bytes are those with empty caches, so caches can lift a point above the memory's line."
                : "Times are those under Nsight Compute, at its clocks, so points lie lower than in a run.",
        ),
    ];
}

// Where adding up in 16 bits has no rate of its own, it has that of the unit.
const roofOf = (unit, peaks) => (unit in peaks.flop_per_s ? unit : unit.replace(/_acc16$/, ""));

// The unit that needs most time at its peak; undefined without arithmetic.
function busiestUnit(row, peaks) {
    const needed = (unit) => row.operations_by_unit[unit] / peaks.flop_per_s[roofOf(unit, peaks)];
    return Object.keys(row.operations_by_unit)
        .filter((unit) => roofOf(unit, peaks) in peaks.flop_per_s)
        .sort((one, other) => needed(other) - needed(one))[0];
}

function joinedNote(doc) {
    if (!doc.trace) return null;
    const joined = doc.kernels.reduce((sum, row) => sum + row.joined, 0);
    const measured = doc.kernels.reduce((sum, row) => sum + row.measured, 0);
    return note(
        `${formatCount(joined)} of ${formatCount(measured)} measured launches are those of the run: the n-th of a name and geometry is taken for the n-th there. `,
        doc.kernels_of_run_without
            ? `${formatCount(doc.kernels_of_run_without)} kernels of the run were not measured.`
            : "",
    );
}

const percentText = (value) => formatShare(value, 100);

function countedKernels(doc) {
    const figure = (key, label, format) => ({ key, label, value: (row) => row[key], format });
    const shown = [
        {
            key: "kernel",
            label: "Kernel",
            text: true,
            value: (row) => row.kernel,
            show: (row) => nameOf(row.kernel),
        },
        { key: "grid", label: "Grid", text: true, value: (row) => row.grid || "-" },
        { key: "block", label: "Block", text: true, value: (row) => row.block || "-" },
        {
            key: "time",
            label: "Time",
            value: (row) => row.measured * (launchNs(row) ?? 0),
            format: formatNs,
            bar: true,
        },
        figure("measured", "Launches", formatCount),
        figure("run_ns", "In the run", formatNs),
        ...(doc.trace ? [] : [figure("ncu_ns", "Under ncu", formatNs)]),
        figure("operations_per_s", "Operations", (value) => formatRate(value, "FLOP/s")),
        figure("operations_per_byte", "FLOP a byte", (value) => (value === null ? "-" : threeDigits(value))),
        figure("dram_bytes", "Moved", formatBytes),
        figure("share", "of limit", (value) => formatShare(value, 1)),
        { key: "limited_by", label: "Limited by", text: true, value: (row) => row.limited_by || "-" },
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
        search: (row) => row.kernel,
        columns,
    }).element;
}
