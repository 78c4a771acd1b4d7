// A canvas as sharp as the screen, drawn anew at most once a frame, in the page's colours.
import { el, printable } from "./dom.js";

export class Surface {
    constructor(label, draw) {
        this.draw = draw;
        this.canvas = el("canvas", { tabindex: 0, role: "application", "aria-label": label });
        this.context = this.canvas.getContext("2d");
        this.frameTimes = [];
        new ResizeObserver(() => this.resize()).observe(this.canvas);
    }

    resize() {
        const { clientWidth, clientHeight } = this.canvas;
        const ratio = devicePixelRatio || 1;
        if (!clientWidth || !clientHeight) return;
        this.width = clientWidth;
        this.height = clientHeight;
        this.canvas.width = Math.round(clientWidth * ratio);
        this.canvas.height = Math.round(clientHeight * ratio);
        this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
        this.drawNow();
    }

    redraw() {
        if (this.pending) return;
        this.pending = true;
        requestAnimationFrame(() => {
            this.pending = false;
            this.drawNow();
        });
    }

    drawNow() {
        if (!this.width) return;
        const began = performance.now();
        this.colors = themeColors();
        this.context.font = "11px system-ui, sans-serif";
        this.context.textBaseline = "middle";
        this.context.clearRect(0, 0, this.width, this.height);
        this.draw(this.context, this.width, this.height, this.colors);
        this.frameTimes.push(performance.now() - began);
        if (this.frameTimes.length > 1000) this.frameTimes.shift();
    }

    // Write as much of a text as fits.
    text(text, x, y, width, color) {
        const fits = Math.floor((width - 6) / 5.8);
        if (fits < 2) return;
        this.context.fillStyle = color;
        const shown = printable(text.length > fits ? `${text.slice(0, Math.max(1, fits - 1))}…` : text);
        this.context.fillText(shown, x + 3, y);
    }
}

export function themeColors() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    return {
        text: read("--text"),
        soft: read("--soft"),
        line: read("--line"),
        back: read("--back"),
        panel: read("--panel"),
        accent: read("--accent"),
        faint: read("--faint"),
        more: read("--more"),
    };
}

const darkText = (color) => {
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
    return 0.299 * red + 0.587 * green + 0.114 * blue > 140;
};
export const onColor = (color) => (darkText(color) ? "#111418" : "#ffffff");
