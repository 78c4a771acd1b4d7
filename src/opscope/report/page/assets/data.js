// The browser's own function, where it has one, takes a hundredth of the time; a callback for each byte takes ten times it.
import { note } from "./dom.js";
import { formatCount, formatNs } from "./units.js";

/** @returns {Uint8Array<ArrayBuffer>} */
function fromBase64(text) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    const binary = atob(text);
    const bytes = new Uint8Array(binary.length);
    for (let place = 0; place < binary.length; place += 1) bytes[place] = binary.charCodeAt(place);
    return bytes;
}

// The document, unpacked.
export async function unpacked() {
    const text = document.getElementById("data").textContent;
    const stream = new Blob([fromBase64(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
}

export function takeColors(page) {
    causeColors = page.cause_colors;
}
export const licenses = () => document.getElementById("licenses").textContent;
export const sum = (values) => values.reduce((total, value) => total + value, 0);

// Colours by what something is: the same everywhere on the page, told apart in light and dark.
export const PALETTE = [
    "#4e79a7",
    "#f28e2b",
    "#59a14f",
    "#e15759",
    "#76b7b2",
    "#b07aa1",
    "#edc948",
    "#9c755f",
    "#ff9da7",
    "#86a35b",
    "#a0cbe8",
    "#d37295",
];
const CATEGORY_COLORS = {
    "Matrix Operations": "#4e79a7",
    Convolution: "#2f6690",
    Attention: "#b07aa1",
    Normalization: "#76b7b2",
    Activation: "#f28e2b",
    Elementwise: "#edc948",
    Reduction: "#9c755f",
    Memory: "#e15759",
    Indexing: "#d37295",
    Communication: "#59a14f",
    Embedding: "#6a994e",
    Loss: "#86a35b",
    Optimizer: "#8175aa",
    Pooling: "#a0cbe8",
    "Compiled (Inductor)": "#ff9da7",
    Framework: "#98a4ae",
    Other: "#8f98a3",
    Unlinked: "#b5bcc4",
};
let causeColors = {}; // by the words of the causes of idle time, as the document has them
const PART_COLORS = { compute: "#4e79a7", "exposed communication": "#59a14f", "exposed memcpy": "#e15759" };

export function hashed(text) {
    let hash = 2166136261;
    for (let place = 0; place < Math.min(text.length, 200); place += 1)
        hash = Math.imul(hash ^ text.charCodeAt(place), 16777619);
    return PALETTE[(hash >>> 0) % PALETTE.length];
}
// Names come from traces: only the tables' own entries count.
const own = (table, name) => (Object.hasOwn(table, name) ? table[name] : null);
export const categoryColor = (category) => own(CATEGORY_COLORS, category || "Other") || hashed(category || "Other");
export const causeColor = (cause) => own(causeColors, cause) || "#888888";
export const partColor = (name) =>
    own(PART_COLORS, name) || (name.startsWith("idle: ") ? causeColor(name.slice(6)) : hashed(name));

// What is asked of one trace often, looked up once.
export class TraceData {
    constructor(trace) {
        this.trace = trace;
        this.document = trace.document;
        this.categoryOf = new Map(this.document.operators.map((row) => [row.name, row.category]));
        this.shortOf = new Map(
            this.document.kernels.filter((row) => row.summary).map((row) => [row.name, row.summary]),
        );
        this.hasDevice = this.document.kernels.length > 0;
        this.deviceSum = trace.device_sum_ns;
        this.cpuSum = trace.cpu_self_ns;
        this.steps = this.document.step_count || 1;
    }

    // Whether the timeline has work of a device that is, or was launched by, something of this name.
    ranOnDevice(name) {
        if (!this.deviceNames) {
            const streams = this.trace.timeline.tracks.filter((track) => track.kind === "stream");
            const numbers = new Set(streams.flatMap((track) => [...new Set([...track.name, ...track.operator])]));
            this.deviceNames = new Set([...numbers].filter((one) => one >= 0).map((one) => this.trace.names[one]));
        }
        return this.deviceNames.has(name);
    }

    leftOutNote(table, what) {
        const found = this.trace.left_out.find((one) => one.table === table);
        return found
            ? note(
                  `${formatCount(found.rows)} more ${what} (${formatNs(found.ns || found.cpu_ns)} together) are left out of this page; opscope analyze has them all.`,
              )
            : null;
    }
}
