// Points of two figures, each a mark to point at and to reach by keyboard.
// options.kind "plans" (default): data is what `smplan --json` answers: step time against cost of a million samples, as large as the
// memory; the front (no other is both faster and cheaper) is a line. "validation": what `smsim validate --json` answers: measured
// against predicted time by group, with lines at equality and 10 % beside it. options.choose(row): a point was chosen.
import { axisBottom, axisLeft } from "d3-axis";
import { extent } from "d3-array";
import { scaleLinear, scaleLog, scaleSqrt } from "d3-scale";
import { select } from "d3-selection";
import { line } from "d3-shape";
import { on } from "./events.js";
import { figure, legend, tips } from "./figure.js";
import { context_degree, gib, number, percent, seconds, told_apart, usd } from "./format.js";

// A million samples of a plan; nothing where the price is not known.
export function usd_per_million_samples(plan) {
  if (plan.usd_per_million_samples != null) return plan.usd_per_million_samples;
  if (plan.usd_per_hour == null || !plan.samples_per_s) return null;
  return (plan.usd_per_hour / 3600 / plan.samples_per_s) * 1e6;
}

export function plan_name(plan) {
  const parts = [`${plan.nodes} × ${plan.target}`];
  for (const [letters, key] of [
    ["TP", "tensor_parallel"],
    ["PP", "pipeline_parallel"],
    ["DP", "data_parallel"],
    ["CP", "context_parallel"],
    ["EP", "expert_parallel"],
  ])
    if (plan[key] > 1) parts.push(letters + (key === "context_parallel" ? context_degree(plan) : plan[key]));
  parts.push(`micro-batch ${plan.micro_batch} × ${plan.micro_batches}`);
  if (plan.pipeline_parallel > 1) parts.push(plan.schedule.length > 24 ? "searched order" : plan.schedule);
  if (plan.sharding !== "none") parts.push(`${plan.sharding} sharded`);
  if (plan.recompute !== "none") parts.push(`${plan.recompute} recompute${plan.recompute_layers ? ` of ${plan.recompute_layers} layers` : ""}`);
  if (plan.offload && plan.offload !== "none") parts.push(`offload to ${plan.offload}`);
  return parts.join(", ");
}

// Those that no other beats in both figures, in the order of x.
export function front_of(points) {
  const sorted = [...points].sort((a, b) => a.x - b.x || a.y - b.y);
  let least = Infinity;
  return sorted.filter((point) => {
    if (point.y >= least) return false;
    least = point.y;
    return true;
  });
}

function of_plans(data) {
  const plans = data.plans ?? data.front ?? [];
  const is_priced = plans.some((plan) => usd_per_million_samples(plan) !== null);
  const points = plans
    .map((plan) => ({
      row: plan,
      x: plan.step_time_s,
      y: is_priced ? usd_per_million_samples(plan) : plan.peak_memory_gib,
      size: plan.peak_memory_gib,
      name: plan_name(plan),
      label: String(plan.rank),
    }))
    .filter((point) => point.y !== null);
  return {
    points,
    front: front_of(points),
    x_name: "step",
    y_name: is_priced ? "USD a million samples" : "peak memory, GiB",
    x_text: seconds,
    y_text: is_priced ? usd : gib,
    text: (point) =>
      `${point.row.rank}. ${point.name}: ${seconds(point.x)}, ${is_priced ? usd(point.y) : ""} a million samples, ${gib(point.size)}`,
    note: is_priced
      ? "Faster is to the left, cheaper is below; as large as its memory. The line joins plans that no other one beats in both."
      : "Faster is to the left; prices are not known.",
    columns: [
      { key: "name", label: "Plan" },
      { key: "x", label: "Step", is_number: true, text: (value) => seconds(value) },
      { key: "y", label: is_priced ? "USD a million samples" : "Peak", is_number: true },
      { key: "size", label: "Peak memory", is_number: true, text: gib },
    ],
    colour: () => "var(--accent)",
    is_log: false,
  };
}

const group_colours = Array.from({ length: 10 }, (_, i) => `var(--category-${i})`);

function of_validation(data) {
  const groups = [...new Set((data.rows ?? []).map((row) => row.group))];
  const points = (data.rows ?? [])
    .filter((row) => row.status === "ok" && row.measured_step_s > 0 && row.predicted_step_s > 0)
    .map((row) => ({
      row,
      x: row.measured_step_s,
      y: row.predicted_step_s,
      size: 1,
      name: row.id,
      group: row.group,
      error: row.predicted_step_s / row.measured_step_s - 1,
    }));
  return {
    points,
    groups,
    x_name: "measured step",
    y_name: "predicted step",
    x_text: seconds,
    y_text: seconds,
    text: (point) =>
      `${point.name} (${point.group}): measured ${seconds(point.x)}, predicted ${seconds(point.y)}, ${percent(point.error)} off`,
    note: "On the line the prediction is right; the band is 10 % to either side.",
    columns: [
      { key: "name", label: "Run" },
      { key: "group", label: "Group" },
      { key: "x", label: "Measured", is_number: true, text: (value) => seconds(value) },
      { key: "y", label: "Predicted", is_number: true, text: (value) => seconds(value) },
      { key: "error", label: "Off by", is_number: true, text: percent },
    ],
    colour: (point) => group_colours[groups.indexOf(point.group) % group_colours.length],
    is_log: true,
  };
}

export function render(root, data, options = {}) {
  const chart = (options.kind ?? "plans") === "validation" ? of_validation(data) : of_plans(data);
  const left_out = (data.rows ?? []).filter((row) => row.status !== "ok").length;
  const note = left_out > 0 ? `${chart.note} ${left_out} rows have no prediction.` : chart.note;
  figure(
    root,
    {
      title: options.title ?? (chart.is_log ? "Predicted against measured" : "Time, cost and memory of the candidates"),
      note: chart.points.length > 0 ? note : "There is nothing to draw.",
      summary: `${chart.points.length} points of ${chart.x_name} against ${chart.y_name}`,
      table: { columns: chart.columns, rows: chart.points, caption: `${chart.x_name} against ${chart.y_name}` },
    },
    (place, width) => draw(place, width, chart, options),
  );
}

function widened(ends, by, is_log) {
  const [low, high] = ends;
  if (is_log) return [low / by, high * by];
  const room = high > low ? (high - low) * (by - 1) : high * 0.05 || 1;
  return [Math.max(0, low - room), high + room];
}

// At most about `most` of 1, 2, 5, 10, 20, ... within the ends of a logarithmic axis.
function round_values([low, high], most) {
  const values = (steps) => {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); ++power)
      for (const step of steps) found.push(step * 10 ** power);
    return found.filter((value) => value >= low && value <= high);
  };
  const fine = values([1, 2, 5]);
  return fine.length <= most ? fine : values([1]);
}

function draw(place, width, chart, options) {
  if (chart.points.length === 0) return;
  place.setAttribute("role", "group");
  const height = Math.min(460, Math.max(300, width * 0.62));
  const margin = { left: 62, right: 18, top: 14, bottom: 44 };
  const scale = chart.is_log ? scaleLog : scaleLinear;
  const ends = chart.is_log
    ? [extent(chart.points.flatMap((p) => [p.x, p.y])), extent(chart.points.flatMap((p) => [p.x, p.y]))]
    : [extent(chart.points, (p) => p.x), extent(chart.points, (p) => p.y)];
  const x = scale(widened(ends[0], chart.is_log ? 1.3 : 1.12, chart.is_log), [margin.left, width - margin.right]);
  const y = scale(widened(ends[1], chart.is_log ? 1.3 : 1.15, chart.is_log), [height - margin.bottom, margin.top]);
  const radius = scaleSqrt([0, Math.max(...chart.points.map((p) => p.size))], [0, chart.is_log ? 4.5 : 13]);
  const svg = select(place).append("svg").attr("width", width).attr("height", height);

  const [across, up] = chart.is_log
    ? [round_values(x.domain(), width / 90), round_values(y.domain(), height / 40)]
    : [x.ticks(Math.max(3, Math.floor(width / 140))), y.ticks(5)];
  const bottom = axisBottom(x).tickValues(across).tickFormat(told_apart(across, seconds));
  const side = axisLeft(y).tickValues(up).tickFormat(told_apart(up, chart.is_log ? seconds : number));
  bottom.tickSizeInner(-(height - margin.top - margin.bottom));
  side.tickSizeInner(-(width - margin.left - margin.right));
  svg.append("g").attr("class", "axis").attr("transform", `translate(0,${height - margin.bottom})`).call(bottom);
  svg.append("g").attr("class", "axis").attr("transform", `translate(${margin.left},0)`).call(side);
  svg.append("text").attr("class", "axis-name").attr("x", width - margin.right).attr("y", height - 6).text(chart.x_name);
  svg
    .append("text")
    .attr("class", "axis-name")
    .attr("transform", "rotate(-90)")
    .attr("x", -margin.top)
    .attr("y", 12)
    .text(chart.y_name);
  if (chart.is_log) {
    const [low, high] = x.domain();
    const corners = [
      [low, low * 0.9],
      [low, low * 1.1],
      [high, high * 1.1],
      [high, high * 0.9],
    ];
    const clip = `clip-${Math.random().toString(36).slice(2)}`;
    const frame = svg.append("clipPath").attr("id", clip).append("rect").attr("x", margin.left).attr("y", margin.top);
    frame.attr("width", width - margin.left - margin.right).attr("height", height - margin.top - margin.bottom);
    const inside = svg.append("g").attr("clip-path", `url(#${clip})`);
    const path = line()
      .x((d) => x(d[0]))
      .y((d) => y(d[1]));
    inside.append("path").attr("class", "band").attr("d", `${path(corners)}Z`);
    inside.append("path").attr("class", "equality").attr("d", path([[low, low], [high, high]]));
  } else if (chart.front.length > 1) {
    const path = line()
      .x((d) => x(d.x))
      .y((d) => y(d.y));
    svg.append("path").attr("class", "front").attr("d", path(chart.front));
  }
  const marks = svg.append("g").selectAll("circle").data(chart.points).join("circle");
  marks
    .attr("class", (d) => (chart.front?.includes(d) ? "point on-front" : "point"))
    .attr("cx", (d) => x(d.x))
    .attr("cy", (d) => y(d.y))
    .attr("r", (d) => Math.max(3, radius(d.size)))
    .style("fill", chart.colour)
    .attr("tabindex", (_, i) => (chart.is_log && i > 0 ? -1 : 0))
    .attr("role", "img")
    .attr("aria-label", chart.text);
  on(marks, "click", (_, d) => options.choose?.(d.row));
  on(marks, "keydown", (event, d) => {
    const at = chart.points.indexOf(d);
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      marks.nodes()[(at + step + chart.points.length) % chart.points.length].focus();
    }
    if (event.key === "Enter") options.choose?.(d.row);
  });
  if (!chart.is_log)
    svg
      .append("g")
      .selectAll("text")
      .data(chart.points)
      .join("text")
      .attr("class", "point-name")
      .attr("x", (d) => x(d.x))
      .attr("y", (d) => y(d.y) + 4)
      .text((d) => d.label);
  else
    legend(place, chart.groups.map((name, i) => ({ name, colour: group_colours[i % group_colours.length] })));
  tips(place, marks, chart.text);
}
