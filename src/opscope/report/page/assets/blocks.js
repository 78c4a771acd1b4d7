// Sections of reports, which Python wrote: paragraphs, lists, plain tables and code. No sentence is made here.
import { el, nameOf, section } from "./dom.js";
import { tableOf } from "./table.js";

export const partsOf = (parts) => parts.map((part) => (typeof part === "string" ? part : nameOf(part.name)));

// A section with its blocks and those inside it; `more` come after the blocks.
export function sectionOf(entry, ...more) {
    return section(partsOf(entry.title), blocksOf(entry.blocks), more, entry.sections.map(innerOf));
}

const innerOf = (entry) => [
    el("h3", null, partsOf(entry.title)),
    blocksOf(entry.blocks),
    entry.sections.map((inner) => innerOf(inner)),
];

export const blocksOf = (blocks) => blocks.map((block) => BLOCKS[block.kind](block));

const BLOCKS = {
    paragraph: ({ items, tone }) => el("p", { class: tone ? `block ${tone}` : "block" }, partsOf(items[0])),
    bullets: ({ items }) =>
        el(
            "ul",
            { class: "block" },
            items.map((parts) => el("li", null, partsOf(parts))),
        ),
    table: blockTable,
    code: ({ lines, language }) => listing(lines, language === "diff" ? DIFF : {}),
};
const DIFF = { "+": "added", "-": "removed", "@": "place" };

function blockTable({ columns, rows, numeric }) {
    const cells = (row, tag, attributes) =>
        row.map((part, column) =>
            el(tag, { class: numeric.includes(column) ? "number" : "text", ...attributes }, partsOf([part])),
        );
    return tableOf(
        { class: "data plain", "aria-label": columns.filter(Boolean).join(", ") },
        cells(columns, "th", { scope: "col" }),
        rows.map((row) => cells(row, "td")),
    );
}

const listing = (lines, kinds) =>
    el(
        "pre",
        { class: "action" },
        lines.map((line, place) => [
            place ? document.createTextNode("\n") : null,
            el("span", { class: kinds[line[0]] }, line),
        ]),
    );
