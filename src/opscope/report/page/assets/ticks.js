// Ticks of axes: round numbers, with as many digits as it takes to tell neighbours apart.
import { least, most, withThousands } from "./units.js";

const NICE = [1, 2, 5, 10];

// The round step that is at least a size, by tens; or by powers of 1,024 for bytes.
function roundStep(rough, base = 10) {
    if (!(rough > 0)) return 1;
    if (base === 10) {
        const power = 10 ** Math.floor(Math.log10(rough) + 1e-9);
        return NICE.map((factor) => factor * power).find((one) => one >= rough * (1 - 1e-9));
    }
    const unit = 1024 ** Math.max(0, Math.floor(Math.log2(rough) / 10));
    for (let step = unit; ; step *= 2) if (step >= rough * (1 - 1e-9)) return step;
}

// A formatted number without zeros that say nothing: 10.00 ms is 10 ms.
export const withoutZeros = (text) => text.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");

// An axis from 0 to at least a number, with round steps.
export function roundScale(most, base = 10, about = 6) {
    const interval = roundStep(most / about, base);
    return { min: 0, max: interval * Math.max(1, Math.ceil(most / interval - 1e-9)), interval };
}

// An axis around numbers that lie close together: labels have as many digits as it takes to tell them apart.
export function closeTimes(values, about = 6) {
    const [low, high] = [least(values), most(-Infinity, values)];
    const interval = Math.max(1, roundStep((high - low || high / 10 || 1) / about));
    const min = Math.max(0, Math.floor(low / interval) * interval);
    const max = Math.max(min + interval, Math.ceil(high / interval) * interval);
    return { min, max, interval, axisLabel: (value) => timeLabel(value, interval, max) };
}

// Bounds of a logarithmic axis around some numbers: 1, 2 or 5 times a power of ten, or powers of 32 for bytes.
export function roundPowers(low, high, base = 10) {
    if (base !== 10) {
        const power = (value, round) => base ** round(Math.log(value) / Math.log(base));
        return { min: power(low, Math.floor), max: power(high, Math.ceil) };
    }
    const below = (value) => {
        const power = 10 ** Math.floor(Math.log10(value));
        return [5, 2, 1].map((factor) => factor * power).find((one) => one <= value);
    };
    return { min: below(low), max: roundStep(high) };
}

/** @type {[number, string][]} */
const TIME_UNITS = [
    [1e9, "s"],
    [1e6, "ms"],
    [1e3, "us"],
    [1, "ns"],
];
const timeUnit = (size) => TIME_UNITS.find(([unit]) => size >= unit) || TIME_UNITS[3];

// A time with the digits that a step of an axis needs.
function timeLabel(time, step, largest) {
    const [unit, name] = timeUnit(largest);
    const digits = Math.max(0, Math.min(9, Math.ceil(Math.log10(unit / step) - 1e-9)));
    return `${withThousands((time / unit).toFixed(digits))} ${name}`;
}

// The ticks of a range of time. Where it is short beside the time that passed before it, ticks count from an anchor, a
// round time before the range; else from 0.
export function timeTicks(start, end, width) {
    const span = end - start;
    const step = Math.max(1, roundStep(span / Math.max(2, width / 110)));
    let major = 1000;
    while (major < span) major *= 1000;
    const anchor = start > 20 * span ? Math.floor(start / major) * major : 0;
    const ticks = [];
    const largest = Math.max(Math.abs(start - anchor), Math.abs(end - anchor), step);
    for (let time = Math.ceil((start - anchor) / step) * step; anchor + time <= end; time += step)
        ticks.push({
            time: anchor + time,
            label: `${anchor ? "+" : ""}${timeLabel(Math.abs(time) < step / 2 ? 0 : time, step, largest)}`,
        });
    return { ticks, anchor, anchorLabel: anchor ? timeLabel(anchor, major, anchor) : "" };
}
