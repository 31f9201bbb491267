// Key figures: what an answer says first, each with its 80 % interval where one is known.
// data: the JSON document of a tool; options.kind: step (default), plans, job, execution, validation.
import { select } from "d3-selection";
import { clear } from "./figure.js";
import { usd_per_million_samples } from "./scatter.js";
import { gib, interval, interval_of_gib, interval_of_seconds, number, percent, seconds, usd, words } from "./format.js";

// A card: {key, label, value, text, interval?, note?, state? (good, bad), share? (0 to 1: drawn as a bar)}
const is_known = (card) => card && card.text !== "";

function step(answer) {
  const available = answer.available_memory_gib;
  const share = available ? answer.peak_memory_gib / available : null;
  return [
    {
      key: "step_time_s",
      label: "Step",
      value: answer.step_time_s,
      text: seconds(answer.step_time_s),
      interval: interval_of_seconds(answer.step_time_s_80),
    },
    {
      key: "samples_per_s",
      label: "Throughput",
      value: answer.samples_per_s,
      text: `${number(answer.samples_per_s)} samples/s`,
      note: answer.tokens_per_s ? `${number(answer.tokens_per_s)} tokens/s` : "",
    },
    {
      key: "peak_memory_gib",
      label: "Peak memory of a device",
      value: answer.peak_memory_gib,
      text: gib(answer.peak_memory_gib),
      interval: interval_of_gib(answer.peak_memory_gib_80),
      note: available ? `of ${gib(available)}: ${answer.fits ? "fits" : "does not fit"}` : "",
      state: answer.fits === false ? "bad" : "good",
      share,
    },
    {
      key: "mfu",
      label: "Model FLOP utilisation",
      value: answer.mfu,
      text: percent(answer.mfu),
      note: answer.model_tflops_per_gpu ? `${number(answer.model_tflops_per_gpu)} TFLOP/s a device` : "",
      share: answer.mfu,
    },
    {
      key: "usd_per_million_samples",
      label: "A million samples",
      value: answer.usd_per_million_samples,
      text: usd(answer.usd_per_million_samples),
      interval: interval(answer.usd_per_million_samples_80, usd),
      note: answer.usd_per_hour ? `${usd(answer.usd_per_hour)} an hour` : "",
    },
  ];
}

function plans(answer) {
  const best = (answer.plans ?? answer.front)?.[0];
  const found = best ? step({ ...best, fits: true, usd_per_million_samples: usd_per_million_samples(best) }) : [];
  if (best?.usd_total)
    found.push({ key: "usd_total", label: "The training", value: best.usd_total, text: usd(best.usd_total) });
  const { search } = answer;
  if (!search) return found;
  const counted = `${number(search.space)} plans in ${seconds(search.seconds)}`;
  found.push({
    key: "gap_pct",
    label: "Searched",
    value: search.gap_pct,
    text: search.proven_optimal ? "best proven" : search.gap_pct != null ? `gap ${number(search.gap_pct)} %` : "done",
    note: counted,
  });
  return found;
}

function quantiles(answer, key, label, text) {
  const low = answer[`${key}_p10`];
  const high = answer[`${key}_p90`];
  return {
    key: `${key}_mean`,
    label,
    value: answer[`${key}_mean`],
    text: text(answer[`${key}_mean`]),
    interval: low === undefined ? "" : interval([low, high], text),
  };
}

function job(answer) {
  const hours = (value) => seconds(value * 3600);
  const found = [
    quantiles(answer, "hours", "Takes (mean)", hours),
    quantiles(answer, "usd", "Costs (mean)", usd),
    { ...quantiles(answer, "goodput", "Goodput", percent), share: answer.goodput_mean },
    quantiles(answer, "interruptions", "Interruptions", number),
  ];
  if (answer.probability_both != null)
    found.push({
      key: "probability_both",
      label: "In time and within budget",
      value: answer.probability_both,
      text: percent(answer.probability_both),
      share: answer.probability_both,
    });
  return found;
}

function execution(answer) {
  const signed = (value) => (value > 0 ? `+${number(value)} %` : `${number(value)} %`);
  return [
    {
      key: "measured_step_s.median",
      label: "Measured step (median)",
      value: answer.measured_step_s?.median,
      text: seconds(answer.measured_step_s?.median),
      interval: interval_of_seconds([answer.measured_step_s?.min, answer.measured_step_s?.p95]),
      interval_name: "from the least to the 95th percentile",
    },
    {
      key: "predicted_step_s",
      label: "Predicted step",
      value: answer.predicted_step_s,
      text: seconds(answer.predicted_step_s),
      note: answer.error_pct != null ? `${signed(answer.error_pct)} of the measured one` : "",
    },
    {
      key: "measured_peak_gib",
      label: "Measured peak memory",
      value: answer.measured_peak_gib,
      text: gib(answer.measured_peak_gib),
      note: answer.predicted_peak_gib != null ? `${gib(answer.predicted_peak_gib)} predicted` : "",
    },
    {
      key: "samples_per_s",
      label: "Throughput",
      value: answer.samples_per_s,
      text: answer.samples_per_s ? `${number(answer.samples_per_s)} samples/s` : "",
      note: answer.tokens_per_s ? `${number(answer.tokens_per_s)} tokens/s` : "",
    },
  ];
}

function validation(answer) {
  const rows = answer.rows ?? [];
  const good = rows.filter((row) => row.status === "ok").length;
  const pct = (value) => (value == null ? "" : `${number(value)} %`);
  return [
    {
      key: "macro_mape_pct",
      label: "Step times are off by",
      value: answer.macro_mape_pct,
      text: pct(answer.macro_mape_pct),
      note: "mean over groups of the mean absolute error",
    },
    {
      key: "memory_mape_pct",
      label: "Peak memory is off by",
      value: answer.memory_mape_pct,
      text: pct(answer.memory_mape_pct),
    },
    {
      key: "coverage_80_pct",
      label: "Within the 80 % interval",
      value: answer.coverage_80_pct,
      text: pct(answer.coverage_80_pct),
      share: answer.coverage_80_pct != null ? answer.coverage_80_pct / 100 : null,
    },
    { key: "rows", label: "Predicted", value: good, text: `${number(good)} of ${number(rows.length)} rows` },
  ];
}

const cards_of = { step, plans, job, execution, validation };

export function cards(answer, kind = "step") {
  return cards_of[kind](answer).filter(is_known);
}

export function render(root, data, options = {}) {
  clear(root);
  const list = select(root).append("ul").attr("class", "cards");
  const card = list.selectAll("li").data(cards(data, options.kind)).join("li");
  card.attr("class", (d) => (d.state ? `card ${d.state}` : "card"));
  card.append("div").attr("class", "card-label").text((d) => d.label);
  card
    .append("div")
    .attr("class", "card-figure")
    .attr("data-key", (d) => d.key)
    .attr("data-value", (d) => String(d.value))
    .attr("title", (d) => `${words(d.key)} = ${d.value}`)
    .text((d) => d.text);
  const bar = card.filter((d) => Number.isFinite(d.share)).append("div").attr("class", "card-bar");
  bar.attr("aria-hidden", "true").append("span").style("width", (d) => `${100 * Math.min(1, d.share)}%`);
  card
    .filter((d) => d.interval)
    .append("div")
    .attr("class", "card-interval")
    .attr("title", (d) => d.interval_name ?? "eight of ten such figures lie in this interval")
    .text((d) => (d.interval_name ? d.interval : `${d.interval} (80\u00a0%)`));
  card.filter((d) => d.note).append("div").attr("class", "card-note").text((d) => d.note);
}
