// Charts of the library, in the page's colours, with this page's tooltip: the library's own is made of markup.
import { themeColors } from "./canvas.js";
import { PALETTE } from "./data.js";
import { el, facts, printable, tooltip } from "./dom.js";
import { withoutZeros } from "./ticks.js";

export const drawnCharts = new Set();

export function chart(label, height, option, onClick) {
    const element = el("div", { class: "chart", role: "img", "aria-label": label, style: { height: `${height}px` } });
    const entry = { element, option, instance: null };
    // A chart needs its place in the page before it can be drawn.
    const start = () => {
        if (!element.isConnected || !element.clientWidth) return;
        if (!entry.instance) {
            entry.instance = echarts.init(element, null, { renderer: "canvas" });
            entry.instance.on("mouseover", (event) => {
                if (event.data && event.data.tip) entry.tip = event.data.tip;
            });
            entry.instance.on("mouseout", () => {
                entry.tip = null;
                tooltip.hide();
            });
            if (onClick) entry.instance.on("click", onClick);
            entry.draw();
        } else {
            entry.instance.resize();
        }
    };
    element.addEventListener("mousemove", (event) => {
        if (entry.tip) tooltip.show(event.clientX, event.clientY, entry.tip());
    });
    element.addEventListener("mouseleave", () => {
        entry.tip = null;
        tooltip.hide();
    });
    entry.draw = () => entry.instance && entry.instance.setOption(option(themeColors()), true);
    drawnCharts.add(entry);
    new ResizeObserver(start).observe(element);
    return element;
}

export function redrawCharts() {
    for (const entry of drawnCharts) {
        if (!entry.element.isConnected) {
            // Its view may be shown again: then it is made anew, in the colours of then.
            if (entry.instance) entry.instance.dispose();
            entry.instance = null;
        } else {
            entry.draw();
        }
    }
}

export function axis(colors, name, format, more) {
    return {
        type: "value",
        name,
        nameLocation: "middle",
        nameGap: 40,
        nameTextStyle: { color: colors.soft },
        axisLabel: {
            color: colors.soft,
            formatter: format ? (value) => withoutZeros(format(value)) : format,
            hideOverlap: true,
        },
        axisLine: { show: true, lineStyle: { color: colors.line } },
        splitLine: { lineStyle: { color: colors.faint } },
        ...more,
    };
}

export const plain = (colors, more) => ({
    animation: false,
    textStyle: { color: colors.text, fontFamily: "system-ui, sans-serif" },
    color: PALETTE,
    grid: { left: 86, right: 28, top: 40, bottom: 58 },
    legend: { top: 0, type: "plain", textStyle: { color: colors.text }, inactiveColor: colors.line },
    ...more,
});

// Lines of a tooltip: a name, then facts.
export const tip = (title, pairs) => [el("strong", null, printable(title).slice(0, 300)), facts(pairs)];

// Medians with their intervals, one line each: { name, low, high, median, about }.
export function intervalChart(label, found, format) {
    return chart(`medians and intervals: ${label}`, 50 + 26 * found.length + 36, (colors) =>
        plain(colors, {
            grid: { left: 170, right: 30, top: 10, bottom: 44 },
            legend: { show: false },
            xAxis: axis(colors, label, format, { min: 0, nameGap: 26 }),
            yAxis: {
                type: "category",
                inverse: true,
                data: found.map((one) => printable(one.name)),
                axisLabel: { color: colors.text, width: 160, overflow: "truncate" },
            },
            series: [
                {
                    type: "custom",
                    encode: { x: [0, 1, 2], y: 3 },
                    data: found.map((one, place) => ({
                        value: [one.low, one.high, one.median, place],
                        tip: () => tip(one.name, one.about),
                    })),
                    renderItem: (params, api) => {
                        const at = (value) => api.coord([api.value(value), api.value(3)]);
                        const [low, high, median] = [at(0), at(1), at(2)];
                        const color = PALETTE[params.dataIndex % PALETTE.length];
                        return {
                            type: "group",
                            children: [
                                {
                                    type: "line",
                                    shape: { x1: low[0], y1: low[1], x2: high[0], y2: high[1] },
                                    style: { stroke: color, lineWidth: 5, opacity: 0.5 },
                                },
                                {
                                    type: "circle",
                                    shape: { cx: median[0], cy: median[1], r: 5 },
                                    style: { fill: color },
                                },
                            ],
                        };
                    },
                },
            ],
        }),
    );
}
