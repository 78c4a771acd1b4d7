// Elements are made of text, never of markup: nothing that a trace contains can become part of the page's structure.
const HIDING = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
export const printable = (text) => String(text).replace(HIDING, " ");

export function el(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
        if (value === null || value === undefined || value === false) continue;
        if (name === "on") {
            for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
        } else if (name === "style") {
            for (const [property, set] of Object.entries(value)) element.style.setProperty(property, set);
        } else if (name === "data") {
            for (const [key, set] of Object.entries(value))
                if (set !== null && set !== undefined) element.dataset[key] = set;
        } else {
            element.setAttribute(name, value === true ? "" : String(value));
        }
    }
    add(element, children);
    return element;
}

export function add(element, children) {
    for (const child of children.flat(Infinity)) {
        if (child === null || child === undefined || child === false) continue;
        element.append(child instanceof Node ? child : document.createTextNode(printable(child)));
    }
    return element;
}

export const clear = (element) => {
    element.replaceChildren();
    return element;
};

// A figure with the number that it stands for.
export function figure(value, format, attributes) {
    return el(
        "span",
        { class: "figure", ...attributes, data: { value: value ?? "", ...(attributes || {}).data } },
        format(value),
    );
}

// A name: whole in the title, bent to its place by the style.
export const nameOf = (text, attributes) =>
    el("span", { class: "name", title: printable(text).slice(0, 2000), dir: "ltr", ...attributes }, text);

// A sentence of a document in which names stand between backticks.
export const sentenceOf = (text) => text.split("`").map((part, place) => (place % 2 ? el("code", null, part) : part));

// Links lead to source on the web only: nothing else that stands in a document is taken for an address.
export function link(url, text, title) {
    let address = null;
    try {
        address = new URL(url);
    } catch {
        return nameOf(text);
    }
    if (address.protocol !== "https:") return nameOf(text);
    return el(
        "a",
        { href: address.href, target: "_blank", rel: "noopener noreferrer", title: title || printable(address.href) },
        text,
    );
}

export function section(title, ...children) {
    return el("section", { class: "part" }, title ? el("h2", null, title) : null, ...children);
}

export const note = (...children) => el("p", { class: "note" }, ...children);
export const facts = (pairs) =>
    el(
        "dl",
        { class: "facts" },
        pairs.filter(Boolean).map(([name, value]) => [el("dt", null, name), el("dd", null, value)]),
    );

export function button(text, onClick, attributes) {
    return el("button", { type: "button", ...attributes, on: { click: onClick } }, text);
}

// Buttons of which one is chosen.
export function choice(label, options, chosen, onChange) {
    const group = el("span", { class: "choice", role: "radiogroup", "aria-label": label });
    const buttons = options.map(([value, text]) =>
        button(text, () => choose(value), { role: "radio", data: { value } }),
    );
    function choose(value, quiet) {
        buttons.forEach((one) => {
            const mine = one.dataset.value === String(value);
            one.setAttribute("aria-checked", mine);
            one.tabIndex = mine ? 0 : -1;
        });
        if (!quiet) onChange(value);
    }
    group.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        if (!step) return;
        event.preventDefault();
        event.stopPropagation();
        const next = buttons[(buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length];
        next.focus();
        next.click();
    });
    add(group, buttons);
    choose(chosen, true);
    return group;
}

export const tooltip = (() => {
    const box = el("div", { id: "tooltip", role: "tooltip", hidden: true });
    return {
        box,
        show(x, y, ...children) {
            add(clear(box), children);
            box.hidden = false;
            const { width, height } = box.getBoundingClientRect();
            box.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 8))}px`;
            box.style.top = `${y + 18 + height > innerHeight ? Math.max(4, y - height - 10) : y + 18}px`;
        },
        hide() {
            box.hidden = true;
        },
    };
})();

// What of an operator's inputs is a shape, as text: [8,128,768], [768]. Of a long list of tensors, as optimizers have
// them, the first ones and how many there are.
export function shapes(dims) {
    const written = (shape) =>
        Array.isArray(shape[0]) && shape.length > 3
            ? `[${shape.slice(0, 3).map(written).join(",")}, ... ${shape.length.toLocaleString("en")} tensors]`
            : JSON.stringify(shape);
    if (!dims) return "";
    try {
        return JSON.parse(dims)
            .filter((shape) => Array.isArray(shape) && shape.length)
            .map(written)
            .join(" ");
    } catch {
        return dims;
    }
}
