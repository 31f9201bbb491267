// What a job does when: a row for each kind of activity.
// data: what `smsim job --json` answers; options.spans: of its median run, [{activity, from_s, to_s}] in order,
// where seconds and times are given as well, a span of several. Spans that are less than a pixel apart are drawn as one.
import { axisBottom } from "d3-axis";
import { max } from "d3-array";
import { scaleLinear } from "d3-scale";
import { select } from "d3-selection";
import { figure, tips } from "./figure.js";
import { number, percent, seconds, words } from "./format.js";

const colour = (activity) => `var(--activity-${activity.replaceAll("_", "-")}, var(--category-0))`;

export function render(root, data, options = {}) {
  const spans = options.spans ?? [];
  const activities = [...new Set(spans.map((span) => span.activity))];
  const end = max(spans, (span) => span.to_s) ?? 0;
  const rows = activities.map((activity) => {
    const own = spans.filter((span) => span.activity === activity);
    const total = own.reduce((all, span) => all + (span.seconds ?? span.to_s - span.from_s), 0);
    const times = own.reduce((all, span) => all + (span.times ?? 1), 0);
    return { activity, name: words(activity), times, total, share: end > 0 ? total / end : 0, spans: own };
  });
  const columns = [
    { key: "name", label: "Activity" },
    { key: "times", label: "Times", is_number: true },
    { key: "total", label: "In all", is_number: true, text: (value) => seconds(value) },
    { key: "share", label: "Share", is_number: true, text: percent },
  ];
  figure(
    root,
    {
      title: options.title ?? "The median run",
      note: options.note ?? `From its start to its end: ${seconds(end)}.`,
      summary: `Chart of ${rows.length} activities over ${seconds(end)}`,
      table: { columns, rows, caption: "Time of the median run by activity" },
    },
    (place, width) => draw(place, width, rows, end),
  );
}

function merged(spans, least) {
  const found = [];
  for (const span of spans) {
    const last = found.at(-1);
    if (last && span.from_s - last.to_s < least) {
      last.to_s = Math.max(last.to_s, span.to_s);
      last.count += span.times ?? 1;
    } else found.push({ ...span, count: span.times ?? 1 });
  }
  return found;
}

function draw(place, width, rows, end) {
  if (rows.length === 0) return;
  const narrow = width < 520;
  const margin = { left: narrow ? 84 : 120, right: narrow ? 8 : 110, top: 4, bottom: 30 };
  const row_height = 26;
  const height = margin.top + rows.length * row_height + margin.bottom;
  const svg = select(place).append("svg").attr("width", width).attr("height", height);
  const unit = [86400, 3600, 60, 1].find((size) => end >= 2 * size) ?? 1;
  const name = { 86400: "days", 3600: "hours", 60: "minutes", 1: "seconds" }[unit];
  const x = scaleLinear([0, end / unit], [margin.left, width - margin.right]);
  const axis = axisBottom(x).ticks(narrow ? 4 : 10).tickSizeInner(-(height - margin.top - margin.bottom));
  svg.append("g").attr("class", "axis").attr("transform", `translate(0,${height - margin.bottom})`).call(axis);
  svg.append("text").attr("class", "axis-name").attr("x", width - 4).attr("y", height - 12).text(name);
  const least = (end / (x.range()[1] - x.range()[0])) * 1;
  const row = svg.selectAll("g.row").data(rows).join("g").attr("class", "row");
  row.attr("transform", (_, i) => `translate(0,${margin.top + i * row_height})`);
  row.append("text").attr("class", "row-name").attr("x", margin.left - 8).attr("y", 17).attr("text-anchor", "end");
  row.select("text").text((d) => d.name);
  const bars = row.selectAll("rect").data((d) => merged(d.spans, least)).join("rect");
  bars
    .attr("class", "bar")
    .attr("x", (d) => x(d.from_s / unit))
    .attr("width", (d) => Math.max(1, x(d.to_s / unit) - x(d.from_s / unit)))
    .attr("y", 4)
    .attr("height", 18)
    .style("fill", (d) => colour(d.activity));
  if (!narrow)
    row.append("text").attr("class", "bar-figure").attr("x", width - margin.right + 8).attr("y", 17).text((d) => seconds(d.total));
  tips(
    place,
    bars,
    (d) => `${words(d.activity)}: from ${seconds(d.from_s)} to ${seconds(d.to_s)}${d.count > 1 ? `, ${number(d.count)} times` : ""}`,
  );
}
