// Plan A beside plan B: their figures, and what each difference between them costs.
import { gib, percent, seconds, usd } from "../components/format.js";
import { usd_per_million_samples } from "../components/scatter.js";
import { element, figure, keeping, layout, schedule, sharding } from "./figures.js";

const lines = [
  ["Cluster", (row) => `${row.nodes} × ${row.target}`],
  ["Degrees", layout],
  ["Schedule", schedule],
  ["Micro-batch", (row) => `${row.micro_batch} × ${row.micro_batches}`],
  ["Sharding", sharding],
  ["Activations", keeping],
  ["Step", (row) => figure("step_time_s", row.step_time_s, seconds)],
  ["Peak memory", (row) => figure("peak_memory_gib", row.peak_memory_gib, gib)],
  ["MFU", (row) => figure("mfu", row.mfu, percent)],
  ["A million samples", (row) => figure("usd_per_million_samples", usd_per_million_samples(row), usd)],
];

const said = (value) => (value === null || value === undefined ? "none" : Array.isArray(value) ? value.join(", ") : String(value));

function changed(change) {
  return element("span", { class: "change" }, `${change.key.replace(/^plan\./, "").replaceAll("_", " ")}: ${said(change.from)} → ${said(change.to)}`);
}

function table(caption, headings, rows) {
  const shown = element("table", {}, element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...headings.map((title) => element("th", { scope: "col" }, title)))), element("tbody", {}, ...rows));
  return element("div", { class: "wide", tabindex: 0, role: "region", "aria-label": caption }, shown);
}

// `document` is what `smsim compare` answers for both; null while it is computed.
export function render(root, { a, b, document }) {
  const figures = table(`Plans ${a.rank} and ${b.rank} of the table above`, ["", "A", "B"], lines.map(([title, cell]) =>
    element("tr", {}, element("th", { scope: "row" }, title), element("td", {}, cell(a)), element("td", {}, cell(b)))));
  const signed = (value) => `${value > 0 ? "+" : ""}${seconds(value)}`;
  const parts = (document?.parts ?? []).map((part) => element("tr", {},
    element("th", { scope: "row" }, ...part.changes.map(changed)),
    element("td", { class: "number" }, figure(`parts.${part.key}`, part.seconds, signed))));
  const why = parts.length > 0 ? table("What B does otherwise, and what that adds to the step", ["Change", "Seconds"], parts)
    : element("p", { class: "note" }, document ? "The plans do the same." : "Comparing …");
  root.replaceChildren(figures, why);
}
