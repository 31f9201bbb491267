// Figures as people read them: three significant digits, separators of thousands, the unit beside.
import { format } from "d3-format";

const grouped = format(",.0f");

// 3 digits that count: 9.97, 12.8, 52,600 (1,234,567 stays whole from 1,000 on). Nothing for what is unknown.
export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1000) return format(`,.${Math.max(0, digits - Math.floor(Math.log10(size)) - 1)}~f`)(value);
  if (size < 1e-3) return value.toExponential(digits - 1);
  return String(Number(value.toPrecision(digits)));
}

const units = [
  [86400 * 2, 86400, "d"],
  [3600 * 2, 3600, "h"],
  [120, 60, "min"],
  [1, 1, "s"],
  [1e-3, 1e-3, "ms"],
  [1e-6, 1e-6, "µs"],
  [0, 1e-9, "ns"],
];

function unit_of(value) {
  return units.find(([least]) => Math.abs(value) >= least);
}

export function seconds(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "";
  if (value === 0) return "0 s";
  const [, size, name] = unit_of(value);
  return `${number(value / size, digits)} ${name}`;
}

// How to write the values of an axis: text(value, digits) with the fewest digits that tell each from the others.
export function told_apart(values, text) {
  const most = 9;
  let digits = 3;
  while (digits < most && new Set(values.map((value) => text(value, digits))).size < values.length) ++digits;
  return (value) => text(value, digits);
}

// Two decimals, as the tables of the command lines have them.
export function gib(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "";
  return Math.abs(value) < 0.1 && value !== 0 ? `${number(value * 1024)} MiB` : `${format(",.2f")(value)} GiB`;
}

export function usd(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "";
  return `$${Math.abs(value) >= 100 ? grouped(value) : number(value)}`;
}

export function percent(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "";
  return `${number(100 * value)} %`;
}

// "8.98 to 11.1 s": one unit for both ends.
export function interval(ends, of = number) {
  if (!ends || ends.length !== 2 || ends.some((end) => !Number.isFinite(end))) return "";
  return `${of(ends[0])} to ${of(ends[1])}`;
}

export function interval_of_gib(ends) {
  if (!ends || ends.length !== 2 || ends.some((end) => !Number.isFinite(end))) return "";
  return `${gib(ends[0]).replace(/ GiB$/, "")} to ${gib(ends[1])}`;
}

export function interval_of_seconds(ends) {
  if (!ends || ends.length !== 2 || ends.some((end) => !Number.isFinite(end))) return "";
  const [, size, name] = unit_of(ends[1]);
  return `${number(ends[0] / size)} to ${number(ends[1] / size)} ${name}`;
}

// "tensor_parallel" is "tensor parallel".
export const words = (key) => key.replaceAll("_", " ");

// A plan's degree of context parallelism, "8 a2a" where its ranks exchange heads, "8 ring" where keys pass on.
export function context_degree(plan) {
  const how = { all_to_all: " a2a", ring: " ring" };
  return plan.context_parallel + (how[plan.context_communication] ?? "");
}
