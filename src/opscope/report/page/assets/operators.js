// Operators and kernels: tables whose rows open.
import { app } from "./app.js";
import { categoryColor } from "./data.js";
import { howOf, KERNEL_SOURCE, operatorDetail, sourceLink, toTimeline } from "./details.js";
import { el, facts, nameOf, note, printable, section } from "./dom.js";
import {
    colouredName,
    countColumn,
    DataTable,
    nameColumn,
    plainTable,
    shareColumn,
    sizeColumn,
    textColumn,
    timeColumn,
} from "./table.js";

export function operatorTable(data) {
    const key = data.hasDevice ? "self_device_ns" : "self_cpu_ns";
    const whole = data.hasDevice ? data.deviceSum : data.cpuSum;
    const table = new DataTable({
        name: "operators",
        rows: data.document.operators,
        sort: [key, true],
        id: (row) => row.name,
        search: (row) => [
            row.name,
            row.category,
            row.native_function,
            row.cpp_function,
            ...(row.detail
                ? [
                      ...row.detail.kernels.map((one) => one.name),
                      ...row.detail.shapes.map((one) => one.input_dims),
                      ...(row.detail.called_from || []).map((one) => one.place),
                      row.detail.source.file,
                  ]
                : []),
        ],
        groups: { label: "category", of: (row) => row.category },
        open: (row) => operatorDetail(data, row),
        columns: [
            textColumn(
                "name",
                "Operator",
                (row) => row.name,
                (row) => colouredName(categoryColor(row.category), row.name),
            ),
            ...(data.hasDevice
                ? [
                      timeColumn("self_device_ns", "Device self", {
                          bar: true,
                          title: "durations of what it launched itself, over the whole recording",
                      }),
                      shareColumn("share", "of device sum", { value: (row) => row.self_device_ns / (whole || 1) }),
                  ]
                : []),
            countColumn("calls", "Calls"),
            ...(data.hasDevice
                ? [
                      timeColumn("total_device_ns", "Device total", {
                          title: "with what it calls; totals must not be added up",
                      }),
                  ]
                : []),
            timeColumn("self_cpu_ns", "CPU self", { bar: !data.hasDevice }),
            timeColumn("total_cpu_ns", "CPU total"),
            textColumn(
                "source",
                "Source",
                (row) => sourceText(row),
                (row) =>
                    row.detail && row.detail.source.file ? sourceLink(row.detail.source) : nameOf(sourceText(row)),
            ),
        ],
    });
    data.operatorTable = table;
    return [table.element, data.leftOutNote("operators", "operators")];
}

const sourceText = (row) => (row.detail && row.detail.source.file) || row.cpp_function || "-";

export function kernelTable(data) {
    if (!data.hasDevice) return [note(`No kernels: ${data.document.device_times_reason}.`)];
    const users = usersOf(data);
    const devices = data.document.devices.length > 1;
    const table = new DataTable({
        name: "kernels",
        rows: data.document.kernels,
        sort: ["total_ns", true],
        id: (row) => row.name,
        search: (row) => [
            row.name,
            row.summary,
            row.library,
            row.source_file,
            ...(users.get(row.name) || []).map((one) => one.operator),
        ],
        groups: { label: "kind", of: (row) => row.kind },
        open: (row) => kernelDetail(data, row, users.get(row.name) || []),
        columns: [
            textColumn(
                "name",
                "Kernel",
                (row) => row.summary || row.name,
                (row) =>
                    colouredName(categoryColor(kernelCategory(data, row, users)), row.summary || row.name, {
                        title: printable(row.name).slice(0, 2000),
                    }),
            ),
            timeColumn("total_ns", "Total", { bar: true }),
            shareColumn("share", "of device sum", { value: (row) => row.total_ns / (data.deviceSum || 1) }),
            countColumn("calls", "Calls"),
            timeColumn("mean_ns", "Mean"),
            timeColumn("min_ns", "Min"),
            timeColumn("max_ns", "Max"),
            timeColumn("std_ns", "Std. dev."),
            ...(devices ? [{ key: "device", label: "Device", value: (row) => row.device }] : []),
            KERNEL_SOURCE,
        ],
    });
    data.kernelTable = table;
    return [table.element, data.leftOutNote("kernels", "kernels"), graphNodes(data)];
}

// The operators that launch each kernel, by its name; in the order of the operators' table.
export function usersOf(data) {
    const users = new Map();
    for (const operator of data.document.operators) {
        for (const kernel of operator.detail ? operator.detail.kernels : []) {
            if (!users.has(kernel.name)) users.set(kernel.name, []);
            users.get(kernel.name).push({ operator: operator.name, ...kernel });
        }
    }
    return users;
}

export const kernelCategory = (data, row, users) => {
    const found = users.get(row.name);
    return found ? data.categoryOf.get(found[0].operator) : row.kind === "kernel" ? "Unlinked" : "Memory";
};

function kernelDetail(data, row, users) {
    return [
        facts([
            ["name", el("code", { class: "whole" }, row.name)],
            row.summary && ["in short", row.summary],
            row.library && ["library", nameOf(row.library)],
            row.source_file && ["source", [nameOf(row.source_file), howOf(row.source_how)]],
        ]),
        toTimeline(data, "runs", row.name),
        users.length
            ? [
                  el("h3", null, data.document.devices.length > 1 ? "Launched by, on all devices" : "Launched by"),
                  plainTable(
                      "operators",
                      [
                          textColumn(
                              "operator",
                              "Operator",
                              (one) => one.operator,
                              (one) => app.operatorLink(data, one.operator),
                          ),
                          countColumn("calls", "Launches"),
                          timeColumn("total_ns", "Total"),
                          timeColumn("mean_ns", "Mean"),
                          textColumn("grid", "Grid × block", (one) => (one.grid ? `${one.grid} × ${one.block}` : "-")),
                          countColumn("registers", "Registers", { value: (one) => one.registers_per_thread }),
                          sizeColumn("shared", "Shared memory", { value: (one) => one.shared_memory_bytes }),
                      ],
                      users,
                  ),
              ]
            : note("The operators that launched it are not known, or it is not among their most expensive kernels."),
    ];
}

function graphNodes(data) {
    const rows = data.document.graph_nodes;
    if (!rows.length) return null;
    const table = new DataTable({
        name: "nodes of CUDA graphs",
        rows,
        sort: ["total_ns", true],
        search: (row) => [row.name, row.captured_operator],
        columns: [
            nameColumn("name", "Kernel"),
            { key: "graph", label: "Graph", value: (row) => row.graph },
            { key: "node", label: "Node", value: (row) => row.node },
            countColumn("replays", "Replays"),
            timeColumn("total_ns", "Total", { bar: true }),
            timeColumn("mean_ns", "Mean"),
            textColumn(
                "operator",
                "Captured from",
                (row) => row.captured_operator || "-",
                (row) => [nameOf(row.captured_operator || "-"), el("span", { class: "how" }, row.captured_how)],
            ),
        ],
    });
    return section("Nodes of replayed CUDA graphs", table.element, data.leftOutNote("graph_nodes", "nodes"));
}
