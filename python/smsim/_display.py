"""Rich display in notebooks: plain HTML that keeps the notebook's own colours, light or dark."""

from __future__ import annotations

from html import escape
from typing import Any, Iterable, List, Sequence

COLOURS = {
    "compute": "#4c78a8",
    "recompute": "#9ecae9",
    "bubble": "#bab0ac",
    "tensor_parallel": "#f58518",
    "pipeline": "#ffbf79",
    "data_parallel": "#54a24b",
    "sharding": "#88d27a",
    "expert": "#b279a2",
    "offload": "#d6a5c9",
    "optimizer": "#e45756",
    "host": "#ff9d98",
}


#: Seconds below which a time is a rounding error of sums.
NOTHING = 1e-10


def number(value: Any) -> str:
    """Three significant digits, thousands apart; nothing for what is not known."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return escape(str(value))


def seconds(value: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns" if value >= NOTHING else "0 s"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{cell if isinstance(cell, Html) else number(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class Html(str):
    """Text that is HTML already."""


def bar(parts: Sequence[tuple], total: float, label: str) -> str:
    pieces = "".join(
        f"<span title='{escape(name)}: {escape(shown)}' style='display:inline-block;height:14px;"
        f"width:{max(0.0, 100 * value / total):.3f}%;background:{colour}'></span>"
        for name, value, shown, colour in parts
        if total > 0 and value >= NOTHING
    )
    return f"<div role='img' aria-label='{escape(label)}' style='width:100%;max-width:40em;line-height:0;white-space:nowrap'>{pieces}</div>"


def details(title: str, lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<details><summary>{escape(title)}</summary><ul>{items}</ul></details>" if items else ""


def diagnostics_html(diagnostics) -> str:
    return details("diagnostics", (str(entry) for entry in diagnostics)).replace("<details>", "<details open>")


def warnings_html(answer) -> str:
    return details("warnings", (str(entry) for entry in answer.warnings))


def prediction_html(prediction) -> str:
    parts = [
        (name, value, seconds(value), COLOURS.get(name, "#777"))
        for name, value in prediction.breakdown_s.items()
    ]
    low, high = prediction.step_time_s_80
    spent = ", ".join(
        f"{name.replace('_', ' ')} {100 * value / prediction.step_time_s:.1f} %"
        for name, value, _, _ in sorted(parts, key=lambda part: -part[1])
        if prediction.step_time_s > 0 and value >= 0.001 * prediction.step_time_s
    )
    figures = table(
        ["step", "80 %", "samples/s", "MFU", "peak memory", "of", "fits", "USD/h"],
        [
            [
                seconds(prediction.step_time_s),
                f"{seconds(low)} to {seconds(high)}",
                prediction.samples_per_s,
                f"{100 * prediction.mfu:.1f} %",
                f"{prediction.peak_memory_gib:.2f} GiB",
                f"{prediction.available_memory_gib:.2f} GiB",
                prediction.fits,
                prediction.usd_per_hour,
            ]
        ],
    )
    return (
        f"<div><b>{escape(prediction.model)}</b> on {number(prediction.ranks)} ranks, global batch "
        f"{number(prediction.global_batch)}{figures}{bar(parts, prediction.step_time_s, 'where the step goes: ' + spent)}"
        f"<small>{escape(spent)}</small>{details('assumptions', prediction.assumptions)}{warnings_html(prediction)}</div>"
    )


def plans_html(result) -> str:
    of_offer = [("purchase", "bought"), ("hours_mean", "hours, mean"), ("usd_mean", "USD, mean"), ("risk", "risk")] if result.offers else []
    rows = [
        [
            plan.rank,
            f"{plan.nodes} x {plan.target}",
            f"{plan.tensor_parallel} / {plan.pipeline_parallel} / {plan.data_parallel}",
            plan.schedule,
            plan.sharding,
            f"{plan.micro_batch} x {plan.micro_batches}",
            plan.recompute
            + (f" ({plan.recompute_layers})" if plan.recompute_layers else "")
            + (f" ({', '.join(plan.recompute_modules)})" if plan.recompute_modules else ""),
            seconds(plan.step_time_s),
            f"{100 * plan.mfu:.1f} %",
            f"{plan.peak_memory_gib:.2f} GiB",
            plan.usd_per_hour,
            plan.bound_by,
            *(getattr(plan, key) for key, _ in of_offer),
        ]
        for plan in result.rows
    ]
    search = result.search
    said = f"{search.space:,} plans, {search.evaluated:,} simulated"
    said += ", the first proven best" if search.proven_optimal else ""
    said += ", stopped before the end" if result.interrupted else ""
    header = ["#", "target", "TP / PP / DP", "schedule", "sharding", "batch", "recompute", "step", "MFU", "peak", "USD/h", "bound by", *(title for _, title in of_offer)]
    return (
        f"<div><b>{escape(result.model)}</b>, global batch {number(result.global_batch)}{table(header, rows)}"
        f"<small>{escape(said)}</small>{details('assumptions', result.assumptions)}{warnings_html(result)}</div>"
    )


def partition_html(partition) -> str:
    rows = [
        [i, len(stage.nodes), stage.load, stage.memory / 2**30]
        for i, stage in enumerate(partition.stages)
    ]
    proof = "proven optimal" if partition.proven_optimal else f"lower bound {number(partition.lower_bound)}"
    head = f"largest load {number(partition.objective)} {escape(partition.unit)}, {proof}"
    head += ", stopped before the end" if partition.interrupted else ""
    return f"<div>{head}{table(['stage', 'nodes', 'load, ' + partition.unit, 'memory, GiB'], rows)}</div>"


def _signed(difference: float) -> str:
    sign = "" if abs(difference) < NOTHING else "+" if difference > 0 else "-"
    return sign + seconds(abs(difference))


def comparison_html(comparison) -> str:
    steps: List[str] = [seconds(step) for step in comparison.step_time_s]
    rows = [[part.key, _signed(part.seconds)] for part in comparison.parts]
    return f"<div>{escape(' to '.join(steps))} a step{table(['key', 'adds'], rows)}</div>"


def export_html(exported) -> str:
    files = "".join(f"<p>{escape(one['name'])}</p><pre>{escape(one['text'])}</pre>" for one in exported.companions)
    return (
        f"<div><b>{escape(exported.target)}</b><pre>{escape(exported.text)}</pre>{files}"
        f"{details('notes', exported.notes)}{warnings_html(exported)}</div>"
    )


def hardware_html(instances) -> str:
    return "<div>" + table(
        ["name", "device", "devices", "memory, GiB", "inside", "network, Gbps", "USD/h"],
        [[one.name, one.device, one.devices, one.memory_gib, one.inside, one.network_gbps, one.usd_per_hour] for one in instances],
    ) + "</div>"


def validation_html(validation) -> str:
    rows = [
        [group["group"], group["rows"], group["mape_pct"], group["median_ape_pct"], group["bias_pct"]]
        for group in validation.groups
    ]
    left_out = f", {validation.rows_left_out:,} rows left out" if validation.interrupted else ""
    return (
        f"<div>macro MAPE {number(validation.macro_mape_pct)} %{left_out}"
        + table(["group", "rows", "MAPE %", "median %", "bias %"], rows)
        + "</div>"
    )
