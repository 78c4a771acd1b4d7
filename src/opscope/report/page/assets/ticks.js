// Ticks of axes: round numbers, with as many digits as it takes to tell neighbours apart.
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
function timeTicks(start, end, width) {
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
