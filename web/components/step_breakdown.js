// Where the step goes: seconds by cause on the critical rank, the parts add up to the step.
// data: a prediction (`smsim SCENARIO --json`: breakdown_s), or several to set beside each other; options.names: of
// several; options.colours: by cause.
import { max, sum } from "d3-array";
import { scaleLinear } from "d3-scale";
import { select } from "d3-selection";
import { figure, legend, tips } from "./figure.js";
import { percent, seconds, words } from "./format.js";

const colour_of = (options) => (cause) =>
  options.colours?.[cause] ?? `var(--cause-${cause.replaceAll("_", "-")})`;
// Less than a millionth of the step is the rounding of a sum.
const least_share = 1e-6;

export function render(root, data, options = {}) {
  const answers = (Array.isArray(data) ? data : [data]).map((answer, i) => ({
    name: options.names?.[i] ?? (Array.isArray(data) ? `step ${i + 1}` : "step"),
    parts: answer.breakdown_s,
    all: answer.step_time_s ?? sum(Object.values(answer.breakdown_s)),
  }));
  const causes = Object.keys(answers[0].parts)
    .filter((cause) => answers.some((answer) => answer.parts[cause] > least_share * answer.all))
    .sort((a, b) => max(answers, (answer) => answer.parts[b]) - max(answers, (answer) => answer.parts[a]));
  const rows = causes.map((cause) => {
    const row = { cause: words(cause), key: cause };
    answers.forEach((answer, i) => {
      row[`seconds_${i}`] = answer.parts[cause];
      row[`share_${i}`] = answer.parts[cause] / answer.all;
    });
    return row;
  });
  const columns = [{ key: "cause", label: "Cause" }];
  answers.forEach((answer, i) => {
    const of = answers.length > 1 ? `, ${answer.name}` : "";
    columns.push({ key: `seconds_${i}`, label: `Time${of}`, is_number: true, text: (value) => seconds(value) });
    columns.push({ key: `share_${i}`, label: `Share${of}`, is_number: true, text: percent });
  });
  const first = rows[0];
  figure(
    root,
    {
      title: options.title ?? "Where the step goes",
      note: options.note ?? "On the rank whose work ends last; the parts add up to the step.",
      summary: first ? `Bars of time by cause, the longest: ${first.cause}, ${percent(first.share_0)} of the step` : "",
      table: { columns, rows, caption: "Time of a step by cause" },
    },
    (place, width) => draw(place, width, answers, causes, colour_of(options)),
  );
}

function draw(place, width, answers, causes, colour) {
  if (answers.length > 1) draw_stacked(place, width, answers, causes, colour);
  else draw_rows(place, width, answers[0], causes, colour);
}

// One answer: a row for each cause.
function draw_rows(place, width, answer, causes, colour) {
  const narrow = width < 520;
  const row_height = 28;
  const left = narrow ? 104 : 130;
  const right = narrow ? 104 : 130;
  const svg = select(place).append("svg").attr("width", width).attr("height", causes.length * row_height + 4);
  const x = scaleLinear([0, max(causes, (cause) => answer.parts[cause]) || 1], [0, width - left - right]);
  const row = svg.selectAll("g").data(causes).join("g");
  row.attr("transform", (_, i) => `translate(0,${i * row_height})`);
  row.append("text").attr("class", "row-name").attr("x", left - 8).attr("y", 19).attr("text-anchor", "end").text(words);
  const bars = row.append("rect").attr("class", "bar").attr("x", left).attr("y", 5).attr("height", 20).attr("rx", 2);
  bars.attr("width", (cause) => Math.max(1, x(answer.parts[cause]))).style("fill", colour);
  row
    .append("text")
    .attr("class", "bar-figure")
    .attr("x", (cause) => left + Math.max(1, x(answer.parts[cause])) + 6)
    .attr("y", 19)
    .attr("data-key", (cause) => `breakdown_s.${cause}`)
    .attr("data-value", (cause) => String(answer.parts[cause]))
    .text((cause) => `${seconds(answer.parts[cause])}, ${percent(answer.parts[cause] / answer.all)}`);
  tips(place, bars, (cause) => `${words(cause)}: ${seconds(answer.parts[cause], 4)}`);
}

// Several: a stacked bar for each, to one scale.
function draw_stacked(place, width, answers, causes, colour) {
  legend(place, causes.map((cause) => ({ name: words(cause), colour: colour(cause) })));
  const row_height = 48;
  const svg = select(place).append("svg").attr("width", width).attr("height", answers.length * row_height + 4);
  const x = scaleLinear([0, max(answers, (answer) => answer.all)], [0, width - 90]);
  answers.forEach((answer, i) => {
    const row = svg.append("g").attr("transform", `translate(0,${i * row_height})`);
    row.append("text").attr("class", "row-name").attr("x", 0).attr("y", 14).text(answer.name);
    let from = 0;
    const pieces = causes.map((cause) => {
      const piece = { cause, from, seconds: answer.parts[cause], name: answer.name };
      from += Math.max(0, piece.seconds);
      return piece;
    });
    const bars = row.selectAll("rect").data(pieces.filter((piece) => piece.seconds > 0)).join("rect");
    bars.attr("class", "bar").attr("x", (d) => x(d.from)).attr("y", 20).attr("height", 20);
    bars.attr("width", (d) => Math.max(0.5, x(d.seconds))).style("fill", (d) => colour(d.cause));
    row.append("text").attr("class", "bar-figure").attr("x", x(from) + 6).attr("y", 34).text(seconds(answer.all));
    tips(place, bars, (d) => `${d.name}: ${words(d.cause)} ${seconds(d.seconds, 4)}`);
  });
}
