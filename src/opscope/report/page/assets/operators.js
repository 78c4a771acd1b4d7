// Operators and kernels: tables whose rows open.
import { app } from "./app.js";
import { categoryColor } from "./data.js";
import { count, HOW_WORDS, operatorDetail, sourceLink, time } from "./details.js";
import { button, el, facts, nameOf, note, printable, section } from "./dom.js";
import { DataTable, plainTable } from "./table.js";
import { formatBytes, formatCount, formatNs, formatShare } from "./units.js";

export function operatorTable(data) {
    const key = data.hasDevice ? "self_device_ns" : "self_cpu_ns";
    const whole = data.hasDevice ? data.deviceSum : data.cpuSum;
    const table = new DataTable({
        name: "operators",
        rows: data.document.operators,
        sort: [key, true],
        id: (row) => row.name,
        search: (row) =>
            [
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
            ]
                .filter(Boolean)
                .join(" "),
        groups: { label: "category", of: (row) => row.category },
        open: (row) => operatorDetail(data, row),
        columns: [
            {
                key: "name",
                label: "Operator",
                text: true,
                value: (row) => row.name,
                show: (row) => [
                    el("span", { class: "swatch", style: { "background-color": categoryColor(row.category) } }),
                    nameOf(row.name),
                ],
            },
            ...(data.hasDevice
                ? [
                      {
                          key: "self_device_ns",
                          label: "Device self",
                          value: (row) => row.self_device_ns,
                          format: formatNs,
                          bar: true,
                          title: "durations of what it launched itself, over the whole recording",
                      },
                      {
                          key: "share",
                          label: "of device sum",
                          value: (row) => row.self_device_ns / (whole || 1),
                          format: (value) => formatShare(value, 1),
                      },
                  ]
                : []),
            { key: "calls", label: "Calls", value: (row) => row.calls, format: formatCount },
            ...(data.hasDevice
                ? [
                      {
                          key: "total_device_ns",
                          label: "Device total",
                          value: (row) => row.total_device_ns,
                          format: formatNs,
                          title: "with what it calls; totals must not be added up",
                      },
                  ]
                : []),
            {
                key: "self_cpu_ns",
                label: "CPU self",
                value: (row) => row.self_cpu_ns,
                format: formatNs,
                bar: !data.hasDevice,
            },
            { key: "total_cpu_ns", label: "CPU total", value: (row) => row.total_cpu_ns, format: formatNs },
            {
                key: "source",
                label: "Source",
                text: true,
                value: (row) => sourceText(row),
                show: (row) =>
                    row.detail && row.detail.source.file ? sourceLink(row.detail.source) : nameOf(sourceText(row)),
            },
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
        search: (row) =>
            [
                row.name,
                row.summary,
                row.library,
                row.source_file,
                ...(users.get(row.name) || []).map((one) => one.operator),
            ]
                .filter(Boolean)
                .join(" "),
        groups: { label: "kind", of: (row) => kindOf(row) },
        open: (row) => kernelDetail(data, row, users.get(row.name) || []),
        columns: [
            {
                key: "name",
                label: "Kernel",
                text: true,
                value: (row) => row.summary || row.name,
                show: (row) => [
                    el("span", {
                        class: "swatch",
                        style: { "background-color": categoryColor(kernelCategory(data, row, users)) },
                    }),
                    nameOf(row.summary || row.name, { title: printable(row.name).slice(0, 2000) }),
                ],
            },
            { key: "total_ns", label: "Total", value: (row) => row.total_ns, format: formatNs, bar: true },
            {
                key: "share",
                label: "of device sum",
                value: (row) => row.total_ns / (data.deviceSum || 1),
                format: (value) => formatShare(value, 1),
            },
            { key: "calls", label: "Calls", value: (row) => row.calls, format: formatCount },
            { key: "mean_ns", label: "Mean", value: (row) => row.mean_ns, format: formatNs },
            { key: "min_ns", label: "Min", value: (row) => row.min_ns, format: formatNs },
            { key: "max_ns", label: "Max", value: (row) => row.max_ns, format: formatNs },
            { key: "std_ns", label: "Std. dev.", value: (row) => row.std_ns, format: formatNs },
            ...(devices ? [{ key: "device", label: "Device", value: (row) => row.device }] : []),
            {
                key: "source",
                label: "Source",
                text: true,
                value: (row) => row.source_file || row.library || "-",
                show: (row) => [
                    nameOf(row.source_file || row.library || "-"),
                    row.source_how
                        ? el("span", { class: `how ${row.source_how}` }, HOW_WORDS[row.source_how] || row.source_how)
                        : null,
                ],
            },
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

const kindOf = (row) => row.kind;
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
            row.source_file && [
                "source",
                [
                    nameOf(row.source_file),
                    el("span", { class: `how ${row.source_how}` }, HOW_WORDS[row.source_how] || row.source_how),
                ],
            ],
        ]),
        data.trace.timeline
            ? el(
                  "p",
                  { class: "actions" },
                  button("show its runs in the timeline", () => app.showInTimeline(row.name)),
              )
            : null,
        users.length
            ? [
                  el("h3", null, data.document.devices.length > 1 ? "Launched by, on all devices" : "Launched by"),
                  plainTable(
                      "operators",
                      [
                          {
                              key: "operator",
                              label: "Operator",
                              text: true,
                              value: (one) => one.operator,
                              show: (one) => app.operatorLink(data, one.operator),
                          },
                          count("calls", "Launches"),
                          time("total_ns", "Total"),
                          time("mean_ns", "Mean"),
                          {
                              key: "grid",
                              label: "Grid × block",
                              text: true,
                              value: (one) => (one.grid ? `${one.grid} × ${one.block}` : "-"),
                          },
                          {
                              key: "registers",
                              label: "Registers",
                              value: (one) => one.registers_per_thread,
                              format: formatCount,
                          },
                          {
                              key: "shared",
                              label: "Shared memory",
                              value: (one) => one.shared_memory_bytes,
                              format: formatBytes,
                          },
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
        search: (row) => `${row.name} ${row.captured_operator || ""}`,
        columns: [
            { key: "name", label: "Kernel", text: true, value: (row) => row.name, show: (row) => nameOf(row.name) },
            { key: "graph", label: "Graph", value: (row) => row.graph },
            { key: "node", label: "Node", value: (row) => row.node },
            { key: "replays", label: "Replays", value: (row) => row.replays, format: formatCount },
            { key: "total_ns", label: "Total", value: (row) => row.total_ns, format: formatNs, bar: true },
            { key: "mean_ns", label: "Mean", value: (row) => row.mean_ns, format: formatNs },
            {
                key: "operator",
                label: "Captured from",
                text: true,
                value: (row) => row.captured_operator || "-",
                show: (row) => [nameOf(row.captured_operator || "-"), el("span", { class: "how" }, row.captured_how)],
            },
        ],
    });
    return section("Nodes of replayed CUDA graphs", table.element, data.leftOutNote("graph_nodes", "nodes"));
}
