// Peak memory of each kind of rank, by what holds it, against what a device has.
// data: a prediction (`smsim SCENARIO --json`): memory[], available_memory_gib, peak_memory_gib_80.
import { axisBottom } from "d3-axis";
import { max } from "d3-array";
import { scaleLinear } from "d3-scale";
import { select } from "d3-selection";
import { stack } from "d3-shape";
import { figure, legend, tips } from "./figure.js";
import { gib, words } from "./format.js";

const kinds = ["parameters", "gradients", "optimizer", "activations", "workspace", "overhead"];
const colour = (kind) => `var(--memory-${kind})`;

function name_of(row, rows) {
  const pipeline = row.pipeline_rank ?? row.stage;
  if (rows.length === 1) return "every rank";
  return pipeline === undefined ? `class ${row.rank_class}` : `pipeline rank ${pipeline}`;
}

export function render(root, data, options = {}) {
  const rows = (data.memory ?? []).map((row) => ({ ...row, name: name_of(row, data.memory) }));
  const available = data.available_memory_gib;
  const peak = data.peak_memory_gib ?? max(rows, (row) => row.peak_gib);
  const fits = available == null || peak <= available;
  const note =
    available == null
      ? `Peak ${gib(peak)}.`
      : `Peak ${gib(peak)} of ${gib(available)} that a device has: ${fits ? "fits" : "does not fit"}.`;
  const columns = [
    { key: "name", label: "Rank" },
    { key: "peak_gib", label: "Peak", is_number: true, text: gib },
    ...kinds.map((kind) => ({ key: `${kind}_gib`, label: words(kind), is_number: true, text: gib })),
  ];
  figure(
    root,
    {
      title: options.title ?? "Memory",
      note,
      summary: `Bars of peak memory by kind for ${rows.length} kinds of ranks. ${note}`,
      table: { columns, rows, caption: "Peak memory by kind of rank, GiB" },
    },
    (place, width) => draw(place, width, rows, available, data.peak_memory_gib_80),
  );
}

function draw(place, width, rows, available, interval) {
  legend(place, kinds.map((kind) => ({ name: kind, colour: colour(kind) })));
  const narrow = width < 520;
  const margin = { left: narrow ? 4 : 116, right: 16, top: 22, bottom: 34 };
  const row_height = rows.length > 24 ? 12 : narrow ? 40 : 30;
  const bar_height = rows.length > 24 ? 10 : 20;
  const height = margin.top + rows.length * row_height + margin.bottom;
  const tightest = rows.reduce((a, b) => (b.peak_gib > a.peak_gib ? b : a), rows[0]);
  const most = Math.max(available ?? 0, interval?.[1] ?? 0, max(rows, (row) => row.peak_gib) ?? 0);
  const x = scaleLinear([0, most * 1.04], [margin.left, width - margin.right]);
  const svg = select(place).append("svg").attr("width", width).attr("height", height);
  const axis = axisBottom(x).ticks(narrow ? 4 : 8).tickSizeInner(-(height - margin.top - margin.bottom));
  svg.append("g").attr("class", "axis").attr("transform", `translate(0,${height - margin.bottom})`).call(axis);
  svg.append("text").attr("class", "axis-name").attr("x", width - margin.right).attr("y", height - 4).text("GiB");

  const top = (i) => margin.top + i * row_height + (narrow && rows.length <= 24 ? row_height - bar_height - 2 : 5);
  const layers = stack()
    .keys(kinds)
    .value((row, kind) => row[`${kind}_gib`] ?? 0)(rows);
  const pieces = layers.flatMap((layer) =>
    layer.map((ends, i) => ({ kind: layer.key, row: rows[i], i, from: ends[0], to: ends[1] })),
  );
  const bars = svg.append("g").selectAll("rect").data(pieces.filter((piece) => piece.to > piece.from)).join("rect");
  bars
    .attr("class", "bar")
    .attr("x", (d) => x(d.from))
    .attr("width", (d) => Math.max(0.5, x(d.to) - x(d.from)))
    .attr("y", (d) => top(d.i))
    .attr("height", bar_height)
    .style("fill", (d) => colour(d.kind));
  if (rows.length <= 24 || narrow === false) {
    const names = svg.append("g").selectAll("text").data(rows).join("text").attr("class", "row-name");
    names
      .attr("x", narrow ? margin.left : margin.left - 8)
      .attr("text-anchor", narrow ? "start" : "end")
      .attr("y", (_, i) => (narrow ? top(i) - 4 : top(i) + bar_height / 2 + 4))
      .text((row, i) => (rows.length <= 24 || i % 4 === 0 ? row.name : ""));
  }
  if (rows.length <= 24)
    svg
      .append("g")
      .selectAll("text")
      .data(rows)
      .join("text")
      .attr("class", "bar-figure")
      .attr("data-key", "peak_gib")
      .attr("data-value", (row) => String(row.peak_gib))
      .attr("x", (row) => (x(row.peak_gib) + 70 < x.range()[1] ? x(row.peak_gib) + 6 : x(row.peak_gib) - 6))
      .attr("text-anchor", (row) => (x(row.peak_gib) + 70 < x.range()[1] ? "start" : "end"))
      .classed("inside", (row) => x(row.peak_gib) + 70 >= x.range()[1])
      .attr("y", (_, i) => top(i) + bar_height / 2 + 4)
      .text((row) => gib(row.peak_gib));
  if (interval && tightest) {
    const y = top(rows.indexOf(tightest)) + bar_height + 3;
    const whisker = svg.append("g").attr("class", "whisker");
    whisker.append("title").text(`80 % interval of the peak: ${gib(interval[0])} to ${gib(interval[1])}`);
    const [a, b] = interval.map(x);
    whisker.append("path").attr("d", `M${a},${y - 2}v4M${a},${y}H${b}M${b},${y - 2}v4`);
  }
  if (available != null) {
    const line = svg.append("g").attr("class", "limit").attr("data-key", "available_memory_gib");
    line.attr("data-value", String(available));
    const at = x(available);
    line.append("path").attr("d", `M${at},${margin.top - 4}V${height - margin.bottom}`);
    line
      .append("text")
      .attr("x", at + (at > width / 2 ? -4 : 4))
      .attr("y", 12)
      .attr("text-anchor", at > width / 2 ? "end" : "start")
      .text(`capacity ${gib(available)}`);
  }
  tips(place, bars, (d) => `${d.row.name}: ${d.kind} ${gib(d.to - d.from)} of ${gib(d.row.peak_gib)}`);
}
