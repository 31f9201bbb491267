// Parts of the page: elements, and figures shown short that hold the whole figure for machines and for who points at it.
import { context_degree, number } from "../components/format.js";

// An element with attributes and children; children that are text stay text, never markup.
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// data-value is the shortest text that reads back as the figure, as the tools' JSON has it; text(value) is what is read.
export function figure(key, value, text = number) {
  if (value === null || value === undefined) return "unknown";
  return element("data", { value: String(value), "data-key": key, "data-value": String(value), title: `${key} = ${value}` },
    text(value));
}

// "TP1 PP2 DP16": degrees of tensors, pipeline and data always, of the rest where they are above one.
export function layout(row) {
  const parts = [`TP${row.tensor_parallel}`, `PP${row.pipeline_parallel}`, `DP${row.data_parallel}`];
  if (row.context_parallel > 1) parts.push(`CP${context_degree(row)}`);
  if (row.expert_parallel > 1) parts.push(`EP${row.expert_parallel}`);
  if (row.expert_tensor_parallel === 1) parts.push("ETP1");
  return parts.join(" ");
}

export const schedule = (row) => (row.virtual_stages > 1 ? `${row.schedule} × ${row.virtual_stages}` : row.schedule);

export const sharding = (row) => (row.sharding === "none" ? "none" : `${row.sharding} over ${row.shard_degree}`);

// What becomes of activations.
export function keeping(row) {
  const parts = [];
  if (row.recompute !== "none") parts.push(`${row.recompute} recomputation${row.recompute_layers ? ` of ${row.recompute_layers} layers` : ""}`);
  if (row.offload !== "none") parts.push(`offload to ${row.offload}`);
  return parts.join(", ") || "kept";
}
