// A report page: what a tool answered, from the data inside the page alone.
import { select } from "d3-selection";
import { cards, format, gantt, memory_bars, scatter, step_breakdown, table, timeline } from "../components/index.js";

const { gib, interval_of_seconds, number, percent, seconds, usd, words } = format;

function section(page, name) {
  return page.append("section").attr("id", name).node();
}

function titled(page, name, title) {
  const own = page.append("section").attr("id", name);
  own.append("h3").text(title);
  return own;
}

function list_of(page, name, title, lines) {
  if (!lines || lines.length === 0) return;
  const own = titled(page, name, title);
  own.append("ul").selectAll("li").data(lines).join("li").text((line) => line);
}

function text_of(page, text) {
  if (!text) return;
  const details = page.append("section").attr("id", "text").append("details");
  details.append("summary").text("The answer as the command line shows it");
  details.append("pre").attr("tabindex", 0).text(text);
}

function plan_of(page, plan) {
  if (!plan) return;
  const own = titled(page, "plan", "The plan");
  const rows = Object.entries(plan).map(([key, value]) => ({
    key: words(key),
    value: typeof value === "object" && value !== null ? JSON.stringify(value) : String(value),
  }));
  const columns = [
    { key: "key", label: "Key" },
    { key: "value", label: "Value" },
  ];
  const details = own.append("details");
  details.append("summary").text("Every key of it");
  table.render(details.append("div").node(), { columns, rows, caption: "The plan" });
}

function step(page, report) {
  const answer = report.answer;
  const two = page.append("div").attr("class", "columns");
  memory_bars.render(section(two, "memory"), answer);
  step_breakdown.render(section(two, "breakdown"), answer);
  if (report.timeline)
    timeline.render(section(page, "timeline"), report.timeline, { capacity_gib: answer.available_memory_gib });
  plan_of(page, answer.plan);
  list_of(page, "assumptions", "Assumptions", answer.assumptions);
}

function plans(page, report) {
  const answer = report.answer;
  const chosen = titled(page, "plans", "Candidates");
  const rows = (answer.plans ?? answer.front ?? []).map((plan) => ({
    ...plan,
    name: scatter.plan_name(plan),
    usd_per_million: scatter.usd_per_million_samples(plan),
  }));
  const columns = [
    { key: "rank", label: "#", is_number: true },
    { key: "name", label: "Plan" },
    { key: "step_time_s", label: "Step", is_number: true, text: (value) => seconds(value) },
    { key: "step_time_s_80", label: "80 %", text: interval_of_seconds },
    { key: "mfu", label: "MFU", is_number: true, text: percent },
    { key: "peak_memory_gib", label: "Peak", is_number: true, text: gib },
    { key: "usd_per_million", label: "USD a million samples", is_number: true, text: usd },
    { key: "usd_total", label: "USD in all", is_number: true, text: usd },
    { key: "training_hours", label: "Training", is_number: true, text: (value) => (value == null ? "" : seconds(3600 * value)) },
    { key: "bound_by", label: "Bound by" },
  ].filter((column) => column.key === "name" || rows.some((row) => row[column.key] != null));
  table.render(chosen.append("div").node(), { columns, rows, caption: "Candidates" });
  scatter.render(section(page, "scatter"), answer);
  if (rows.some((row) => row.why)) {
    const why = titled(page, "why", "Why");
    why.append("ol").selectAll("li").data(rows).join("li").text((row) => row.why);
  }
  if (answer.search) search_of(page, answer.search);
  list_of(page, "assumptions", "Assumptions", answer.assumptions);
}

function search_of(page, account) {
  const search = titled(page, "search", "The search");
  const { space, evaluated, pruned, unvisited, rejected, gap_pct, lower_bound_s, proven_optimal } = account;
  const said = proven_optimal
    ? "No plan of the space is better: proven."
    : gap_pct != null
      ? `At most ${number(gap_pct)} % better is possible.`
      : "";
  search.append("p").text(
    `${number(space)} plans: ${number(evaluated)} evaluated, ${number(pruned)} ruled out by bounds${unvisited ? `, ${number(unvisited)} not looked at` : ""}. ${said}`,
  );
  if (lower_bound_s != null) search.append("p").text(`No step is shorter than ${seconds(lower_bound_s, 4)}.`);
  const reasons = Object.entries(rejected ?? {}).map(([reason, count]) => ({ reason, count }));
  if (reasons.length > 0)
    table.render(search.append("div").node(), {
      columns: [
        { key: "reason", label: "Ruled out because" },
        { key: "count", label: "Plans", is_number: true },
      ],
      rows: reasons,
      caption: "Plans that were ruled out",
    });
}

function job(page, report) {
  const answer = report.answer;
  const rows = [
    ["hours", "Duration, hours"],
    ["usd", "Cost, USD"],
    ["goodput", "Goodput"],
    ["interruptions", "Interruptions"],
  ]
    .filter(([key]) => answer[`${key}_mean`] != null)
    .map(([key, name]) => ({
      name,
      mean: answer[`${key}_mean`],
      p10: answer[`${key}_p10`],
      p50: answer[`${key}_p50`],
      p90: answer[`${key}_p90`],
    }));
  const quantiles = titled(page, "quantiles", `${number(answer.runs)} runs`);
  table.render(quantiles.append("div").node(), {
    columns: [
      { key: "name", label: "Of a run" },
      { key: "mean", label: "Mean", is_number: true },
      { key: "p10", label: "10 %", is_number: true },
      { key: "p50", label: "Median", is_number: true },
      { key: "p90", label: "90 %", is_number: true },
    ],
    rows,
    caption: "Quantiles over the runs",
  });
  if (report.activities) gantt.render(section(page, "gantt"), answer, { spans: report.activities });
  list_of(page, "assumptions", "Assumptions", answer.assumptions);
}

function execution(page, report) {
  const answer = report.answer;
  const kinds = answer.comparison?.kinds ?? [];
  const beside = titled(page, "comparison", "Predicted beside measured");
  const rows = kinds.map((kind) => ({
    ...kind,
    name: words(kind.kind),
    error: kind.measured_s > 0 ? kind.predicted_s / kind.measured_s - 1 : null,
  }));
  table.render(beside.append("div").node(), {
    columns: [
      { key: "name", label: "Kind" },
      { key: "instructions", label: "Instructions", is_number: true },
      { key: "predicted_s", label: "Predicted", is_number: true, text: (value) => seconds(value) },
      { key: "measured_s", label: "Measured", is_number: true, text: (value) => seconds(value) },
      { key: "error", label: "Off by", is_number: true, text: percent },
    ],
    rows,
    caption: "Time by kind of instruction, predicted and measured",
  });
  if (rows.length > 0) {
    const of = (key) => Object.fromEntries(rows.map((row) => [row.kind, row[key]]));
    const all = (key) => rows.reduce((sum, row) => sum + row[key], 0);
    const named = (kind) =>
      ["forward", "recompute", "backward", "send", "receive", "copy", "optimizer"].find((name) => kind.startsWith(name));
    const colours = Object.fromEntries(rows.map((row, i) => [row.kind, named(row.kind) ? `var(--slice-${named(row.kind)})` : `var(--category-${(i + 4) % 10})`]));
    step_breakdown.render(
      section(page, "breakdown"),
      ["predicted_s", "measured_s"].map((key) => ({ breakdown_s: of(key), step_time_s: all(key) })),
      {
        names: ["predicted", "measured"],
        title: "Time by kind of instruction",
        note: "Summed over a rank, averaged over ranks; waiting included, and what runs beside other work counts too.",
        colours,
      },
    );
  }
  if (report.timeline) timeline.render(section(page, "timeline"), report.timeline, { title: "Predicted above measured" });
  list_of(page, "remarks", "Remarks", answer.remarks);
}

function validation(page, report) {
  const answer = report.answer;
  scatter.render(section(page, "scatter"), answer, { kind: "validation" });
  const pct = (value) => (value == null ? "" : `${number(value)} %`);
  const groups = titled(page, "groups", "Groups");
  table.render(groups.append("div").node(), {
    columns: [
      { key: "group", label: "Group" },
      { key: "rows", label: "Rows", is_number: true },
      { key: "mape_pct", label: "Mean error", is_number: true, text: pct },
      { key: "median_ape_pct", label: "Median error", is_number: true, text: pct },
      { key: "bias_pct", label: "Bias", is_number: true, text: pct },
      { key: "p95_ape_pct", label: "95 %", is_number: true, text: pct },
      { key: "worst_id", label: "Worst" },
    ],
    rows: answer.groups ?? [],
    caption: "Errors by group",
  });
  const rows = titled(page, "rows", "Rows");
  const columns = [
    { key: "id", label: "Run" },
    { key: "group", label: "Group" },
    { key: "status", label: "Status" },
    { key: "predicted_step_s", label: "Predicted", is_number: true, text: (value) => seconds(value) },
    { key: "measured_step_s", label: "Measured", is_number: true, text: (value) => seconds(value) },
    { key: "predicted_peak_gib", label: "Predicted peak", is_number: true, text: gib },
    { key: "measured_peak_gib", label: "Measured peak", is_number: true, text: gib },
    { key: "reason", label: "Reason" },
  ];
  table.render(rows.append("div").node(), { columns, rows: answer.rows ?? [], caption: "Rows" }, { filter: true });
}

const pages = { step, plans, job, execution, validation };

// One more key than the answer has tells which page it is.
export function show(root, report) {
  const page = select(root);
  const head = page.append("header");
  head.append("h1").text(report.title);
  if (report.subtitle) head.append("p").attr("class", "subtitle").text(report.subtitle);
  const warnings = report.answer.warnings ?? [];
  if (warnings.length > 0)
    page.append("ul").attr("class", "warnings").selectAll("li").data(warnings).join("li").text((line) => line);
  cards.render(section(page, "cards"), report.answer, { kind: report.kind });
  pages[report.kind](page, report);
  text_of(page, report.text);
  page.append("footer").text(report.made ?? "");
}

show(document.getElementById("report"), JSON.parse(document.getElementById("data").textContent));
