// Numbers as people read them: the same rules as opscope/units.py, which tests hold this to.
const TIME_STEPS = [
    [1e9, "s"],
    [1e6, "ms"],
    [1e3, "us"],
];
const SIZE_STEPS = [
    [2 ** 40, "TiB"],
    [2 ** 30, "GiB"],
    [2 ** 20, "MiB"],
    [2 ** 10, "KiB"],
];
/** @type {[number, string][]} */
const RATE_STEPS = [
    [1e15, "P"],
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
];

// The largest and the least of many numbers: a call cannot take a hundred thousand arguments.
export const most = (start, values) => values.reduce((found, value) => Math.max(found, value), start);
// The largest that rows have of something; at least `start`, so that shares of it are finite.
export const largestOf = (rows, of, start = 1) => most(start, rows.map(of));
export const least = (values) => values.reduce((found, value) => Math.min(found, value), Infinity);

// As Python rounds: of two numbers that are equally near, the even one. Only the exact digits tell that they are.
export function fixed(value, digits) {
    const scaled = Math.abs(value) * 10 ** digits;
    const below = Math.floor(scaled);
    if (scaled - below !== 0.5) return value.toFixed(digits);
    const exact = Math.abs(value).toFixed(digits + 60);
    if (!/^50*$/.test(exact.slice(-60)) || below % 2) return value.toFixed(digits);
    return `${value < 0 ? "-" : ""}${exact.slice(0, digits ? -60 : -61)}`;
}

export function threeDigits(value) {
    const size = Math.abs(value);
    return fixed(value, size >= 100 ? 1 : size >= 10 ? 2 : 3);
}

function stepped(value, steps, unit) {
    if (value === null || value === undefined) return "-";
    for (const [size, name] of steps) {
        if (Math.abs(value) >= size) return `${threeDigits(value / size)} ${name}`;
    }
    return `${fixed(value, 0)} ${unit}`;
}

export const formatNs = (value) => stepped(value, TIME_STEPS, "ns");
export const formatBytes = (value) => stepped(value, SIZE_STEPS, "B");
export const formatShare = (part, whole) =>
    part === null || part === undefined || !whole ? "-" : `${fixed((100 * part) / whole, 1)} %`;
export const withThousands = (text) => text.replace(/^(-?\d+)/, (digits) => digits.replace(/\B(?=(\d{3})+$)/g, ","));

export function formatCount(value) {
    if (value === null || value === undefined) return "-";
    if (Math.abs(value) >= 100) return withThousands(fixed(value, 0));
    return String(Number(fourDigits(value)));
}

function fourDigits(value) {
    const exact = Math.abs(value).toExponential(60);
    const even = /^\d\.\d\d[02468]50+e/.test(exact);
    return even
        ? `${value < 0 ? "-" : ""}${exact.slice(0, 5)}${exact.slice(exact.indexOf("e"))}`
        : value.toPrecision(4);
}

export function formatRate(value, unit) {
    if (value === null || value === undefined) return "-";
    for (const [size, prefix] of RATE_STEPS) {
        if (Math.abs(value) >= size) return `${threeDigits(value / size)} ${prefix}${unit}`;
    }
    return `${threeDigits(value)} ${unit}`;
}

// A change says which way it goes; 0 goes neither way.
const signed = (format) => (value) => (value > 0 ? `+${format(value)}` : format(value));
export const formatChange = signed(formatNs);
