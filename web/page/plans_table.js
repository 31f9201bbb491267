// The best plans as a table. Two columns of radio buttons choose plan A and plan B.
import { gib, interval_of_seconds, number, percent, seconds, usd } from "../components/format.js";
import { usd_per_million_samples } from "../components/scatter.js";
import { element, figure, keeping, layout, schedule, sharding } from "./figures.js";

const columns = [
  ["Plan", (row) => String(row.rank)],
  ["Cluster", (row) => `${row.nodes} × ${row.target}`],
  ["Degrees", layout],
  ["Schedule", schedule],
  ["Micro-batch", (row) => `${row.micro_batch} × ${row.micro_batches}`],
  ["Sharding", sharding],
  ["Activations", keeping],
  ["Step", (row) => figure("step_time_s", row.step_time_s, seconds), "number"],
  ["80 % of steps", (row) => interval_of_seconds(row.step_time_s_80), "number"],
  ["Samples/s", (row) => figure("samples_per_s", row.samples_per_s), "number"],
  ["MFU", (row) => figure("mfu", row.mfu, percent), "number"],
  ["Peak memory", (row) => figure("peak_memory_gib", row.peak_memory_gib, gib), "number"],
  ["A million samples", (row) => figure("usd_per_million_samples", usd_per_million_samples(row), usd), "number"],
];

// Calls choose("a" | "b", index) when a plan is picked.
export function render(root, plans, { chosen, choose }) {
  const radio = (name, index) => element("td", { class: "picks", "data-title": name.toUpperCase() }, element("label", { class: "pick" },
    element("input", { type: "radio", name: `pick-${name}`, value: index, checked: chosen[name] === index,
      "aria-label": `Plan ${plans[index].rank} is plan ${name.toUpperCase()}`, onchange: () => choose(name, index) })));
  const heading = (title, kind) => element("th", { scope: "col", class: kind }, title);
  const rows = plans.map((row, index) => element("tr", { "data-plan": index }, radio("a", index), radio("b", index),
    ...columns.map(([title, cell, kind], i) =>
      element(i === 0 ? "th" : "td", { scope: i === 0 ? "row" : null, class: kind, "data-title": title }, cell(row)))));
  root.replaceChildren(element("caption", {}, "Best first. A is shown from close by below, B is set beside it."),
    element("thead", {}, element("tr", {}, heading("A"), heading("B"), ...columns.map(([title, , kind]) => heading(title, kind)))),
    element("tbody", {}, ...rows));
}

const sum = (counts) => Object.values(counts).reduce((all, count) => all + count, 0);
const count = (value) => value.toLocaleString("en");

export const account_of = (search) =>
  `${search.proven_optimal ? "Proven to be the best" : `Within ${number(search.gap_pct)} % of the best`} of ` +
  `${count(search.space)} plans: ${count(search.pruned)} excluded by bounds, ${count(sum(search.rejected))} do not fit, ` +
  `${count(search.evaluated)} simulated, in ${seconds(search.seconds)}.`;
