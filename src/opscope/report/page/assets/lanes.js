// The slices of a track, sorted by row and start, and how they are found and drawn.
import { formatBytes, formatCount } from "./units.js";

export class Lanes {
    constructor(entry, first, colorOf) {
        this.kind = entry.kind;
        this.label = entry.label;
        this.device = entry.device;
        this.rowCount = entry.rows;
        this.first = first; // the number of its first slice, counted through all tracks
        const size = entry.start.length;
        this.size = size;
        this.start = new Float64Array(size);
        this.end = new Float64Array(size);
        let at = 0;
        for (let place = 0; place < size; place += 1) {
            at += entry.start[place];
            this.start[place] = at;
            this.end[place] = at + entry.duration[place];
        }
        // A column without any value is left out.
        const column = (values) => (values.length ? Int32Array.from(values) : new Int32Array(size).fill(-1));
        this.name = Int32Array.from(entry.name);
        this.operator = column(entry.operator);
        this.place = column(entry.place);
        this.link = column(entry.link);
        this.count = entry.count.length ? Int32Array.from(entry.count) : null;
        this.covered = entry.covered.length ? Float64Array.from(entry.covered) : null;
        this.row = Int32Array.from(entry.row);
        this.firstOfRow = new Int32Array(entry.rows + 1).fill(size);
        for (let place = size - 1; place >= 0; place -= 1) this.firstOfRow[entry.row[place]] = place;
        for (let row = entry.rows - 1; row >= 0; row -= 1)
            this.firstOfRow[row] = Math.min(this.firstOfRow[row], this.firstOfRow[row + 1]);
        // How far the slices of a row reach up to each: what began before a moment may still run then.
        this.reach = new Float64Array(size);
        for (let row = 0; row < entry.rows; row += 1) {
            let furthest = -Infinity;
            for (let place = this.firstOfRow[row]; place < this.firstOfRow[row + 1]; place += 1) {
                furthest = Math.max(furthest, this.end[place]);
                this.reach[place] = furthest;
            }
        }
        this.marked = null; // per slice whether it was searched for; null without a search
        this.paint(colorOf);
    }

    // Give every slice a number of its colour; slices of one colour share their part of a pixel.
    paint(colorOf) {
        const numbers = new Map();
        const byName = new Map();
        this.colors = [];
        this.color = new Int32Array(this.size);
        for (let place = 0; place < this.size; place += 1) {
            const [name, operator] = [this.name[place], this.kind === "stream" ? this.operator[place] : -1];
            const key = operator >= 0 ? -2 - operator : name;
            let number = byName.get(key);
            if (number === undefined) {
                const color = colorOf(this, name, operator);
                if (!numbers.has(color)) {
                    numbers.set(color, this.colors.length);
                    this.colors.push(color);
                }
                number = numbers.get(color);
                byName.set(key, number);
            }
            this.color[place] = number;
        }
        // As the bytes of an image: red, green, blue.
        this.bytes = this.colors.map((color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)));
    }

    duration(place) {
        return this.end[place] - this.start[place];
    }

    // How long what a slice stands for lasts within a range; of merged slices, its share of what they cover.
    within(place, start, end) {
        const whole = this.duration(place);
        const inside = Math.min(this.end[place], end) - Math.max(this.start[place], start);
        if (inside <= 0) return 0;
        return this.covered && this.count[place] > 1 ? (this.covered[place] * inside) / whole : inside;
    }

    // The first slice of a row after which something reaches beyond a time.
    reaching(row, time) {
        let [low, high] = [this.firstOfRow[row], this.firstOfRow[row + 1]];
        while (low < high) {
            const middle = (low + high) >> 1;
            if (this.reach[middle] <= time) low = middle + 1;
            else high = middle;
        }
        return low;
    }

    // The first slice of a row that begins at a time or later.
    from(row, time) {
        let [low, high] = [this.firstOfRow[row], this.firstOfRow[row + 1]];
        while (low < high) {
            const middle = (low + high) >> 1;
            if (this.start[middle] < time) low = middle + 1;
            else high = middle;
        }
        return low;
    }

    // The innermost slice of a row at a time; the shortest of those within the tolerance.
    at(row, time, tolerance) {
        let best = -1;
        for (
            let place = this.from(row, time + tolerance) - 1;
            place >= this.firstOfRow[row] && this.reach[place] + tolerance >= time;
            place -= 1
        ) {
            if (this.end[place] + tolerance >= time && (best < 0 || this.duration(place) < this.duration(best)))
                best = place;
        }
        return best;
    }

    // Go through the slices of a row that touch a range of time.
    *touching(row, start, end) {
        for (let place = this.reaching(row, start); place < this.firstOfRow[row + 1]; place += 1) {
            if (this.start[place] >= end) return;
            if (this.end[place] > start) yield place;
        }
    }
}

const WIDE = 3; // pixels from which on a slice is drawn by itself
export const FAINT = 0.16; // how strong what was not searched for is drawn
const SEARCHED = 1e6; // how much more than all else in a pixel what was searched for counts

// The short slices of rows as an image one pixel high for each row: a pixel has the colour that takes most of it, and is
// as strong as all of it is covered. So it costs as much for ten slices as for half a million, and hides nothing.
export class Strips {
    constructor() {
        this.canvas = document.createElement("canvas");
        this.context = this.canvas.getContext("2d", { willReadFrequently: true });
        this.width = 0;
        this.rows = 0;
    }

    begin(width, rows) {
        if (!this.image || this.width !== width || this.rows < rows) {
            this.width = width;
            this.rows = Math.max(rows, 16);
            this.canvas.width = width;
            this.canvas.height = this.rows;
            this.image = this.context.createImageData(width, this.rows);
        } else {
            this.image.data.fill(0);
        }
        this.used = 0;
    }

    // Add the short slices of a row; returns the number of its strip, and the wide slices. Times are scaled to pixels.
    add(lanes, row, begin, scale, strong) {
        const strip = this.used;
        this.used += 1;
        const [width, last, wide] = [this.width, lanes.firstOfRow[row + 1], []];
        const { start, end, color, marked, count, covered } = lanes;
        const shares = (this.shares =
            this.shares && this.shares.length >= lanes.colors.length
                ? this.shares
                : new Float64Array(lanes.colors.length));
        const touched = [];
        let [pixel, marks] = [-1, 0];
        const flush = () => {
            if (pixel >= 0 && pixel < width && touched.length) {
                let [best, whole] = [touched[0], 0];
                for (const number of touched) {
                    whole += shares[number];
                    if (shares[number] > shares[best]) best = number;
                }
                const at = 4 * (strip * width + pixel);
                const [red, green, blue] = lanes.bytes[best];
                this.image.data[at] = red;
                this.image.data[at + 1] = green;
                this.image.data[at + 2] = blue;
                const weight = marks ? whole / SEARCHED : whole;
                const shown = strong * (0.3 + 0.7 * (weight < 1 ? weight : 1));
                this.image.data[at + 3] = 255 * (marked && !marks ? FAINT : shown);
            }
            for (const number of touched) shares[number] = 0;
            touched.length = 0;
            marks = 0;
        };
        for (let place = lanes.reaching(row, begin); place < last; place += 1) {
            const x = (start[place] - begin) * scale;
            if (x > width) break;
            const until = (end[place] - begin) * scale;
            if (until < 0) continue;
            if (until - x >= WIDE) {
                wide.push(place);
                continue;
            }
            const number = color[place];
            let strength = 1;
            if (count !== null && count[place] > 1)
                strength = Math.min(1, covered[place] / (end[place] - start[place] || 1));
            // Where anything was searched for, only that decides a pixel's colour.
            const mine = marked !== null && marked[place] === 1;
            if (mine) strength *= SEARCHED;
            let at = x > 0 ? x | 0 : 0;
            let from = x > 0 ? x : 0;
            // Most slices lie within one pixel; the others reach into the next ones.
            do {
                if (at !== pixel) {
                    flush();
                    pixel = at;
                }
                if (mine) marks += 1;
                const stop = until < at + 1 ? until : at + 1;
                if (shares[number] === 0) touched.push(number);
                // A moment without length is a little of its pixel.
                shares[number] += stop > from ? (stop - from) * strength : 1e-9 * strength;
                at += 1;
                from = at;
            } while (at < until && at < width);
        }
        flush();
        return { strip, wide };
    }

    finish() {
        this.context.putImageData(this.image, 0, 0, 0, 0, this.width, this.used);
    }

    draw(context, strip, y, width, height) {
        context.drawImage(this.canvas, 0, strip, this.width, 1, 0, y, width, height);
    }
}

// A number over time, as an area; each pixel shows the highest value in it.
export class Curve {
    constructor(entry) {
        this.kind = entry.kind;
        this.label = entry.label;
        this.device = entry.device;
        this.changes = entry.change_count;
        this.time = new Float64Array(entry.time.length);
        let at = 0;
        entry.time.forEach((passed, place) => {
            at += passed;
            this.time[place] = at;
        });
        this.value = Float64Array.from(entry.value);
        this.most = this.value.reduce((found, value) => Math.max(found, value), 0);
        this.format = entry.kind === "memory" ? formatBytes : formatCount;
    }

    // The position of the value that holds at a time; -1 before the first.
    at(time) {
        let [low, high] = [0, this.time.length];
        while (low < high) {
            const middle = (low + high) >> 1;
            if (this.time[middle] <= time) low = middle + 1;
            else high = middle;
        }
        return low - 1;
    }

    draw(context, y, width, height, begin, scale, color) {
        const top = this.most || 1;
        let place = Math.max(0, this.at(begin));
        context.fillStyle = color;
        for (let pixel = 0; pixel < width; pixel += 1) {
            const until = begin + (pixel + 1) / scale;
            if (this.time[place] > until) continue;
            let high = this.value[place];
            while (place + 1 < this.time.length && this.time[place + 1] <= until) {
                place += 1;
                high = Math.max(high, this.value[place]);
            }
            const tall = (high / top) * height;
            if (tall > 0) context.fillRect(pixel, y + height - Math.max(tall, 1), 1, Math.max(tall, 1));
        }
    }

    highest(start, end) {
        let place = Math.max(0, this.at(start));
        let high = this.time.length && this.time[place] <= end ? this.value[place] : null;
        for (; place < this.time.length && this.time[place] <= end; place += 1)
            high = Math.max(high, this.value[place]);
        return high;
    }
}
