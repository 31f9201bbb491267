"""Rows and summaries of ./run gpu-check, one call a row so that what is measured is on paper before the next run begins. Standard library only."""
import json
import os
import statistics
import sys

# Dense bf16 (fp16 on a T4) by the instance type that has the card: NVIDIA's data sheets, read 2026-11; figures with sparsity halved.
PEAKS = {"p5en.48xlarge": 989, "p5.48xlarge": 989, "p4de.24xlarge": 312, "p4d.24xlarge": 312, "g5.12xlarge": 70, "g6e.12xlarge": 362, "g6.12xlarge": 121, "g4dn.12xlarge": 65}
PEAK_TFLOPS = PEAKS.get(os.environ.get("GPU_CHECK_INSTANCE", "p5en.48xlarge"), float("nan"))


def load(path):
    try:
        return json.load(open(path))
    except (OSError, ValueError) as problem:
        sys.exit(f"{path.rsplit('/', 1)[-1]}: no result ({problem})")


def speed_heading():
    print(f"\n| model | how | step, ms | tokens/s | MFU, % of {PEAK_TFLOPS} TFLOP/s, causal attention counted full (half) | peak, GiB |\n|---|---|---|---|---|---|", flush=True)


def speed(model, how, step, tokens, mfu, peak, mfu_half=None):
    half = f" ({mfu_half:.1f})" if mfu_half else ""
    print(f"| {model} | {how} | {1e3 * step:.2f} | {tokens:,.0f} | {mfu:.1f}{half} | {peak:.2f} |", flush=True)


def speed_row(model, how, path):
    r = load(path)
    if "errors" in r:
        sys.exit(f"{model} {how}: {r['errors'][0]['message']}")
    if "fp8" in how:
        r["mfu"] *= 2  # smexec's is of the fp8 peak, twice as high
        r["mfu_causal_half"] *= 2
    speed(model, how.replace(" --cuda-graph", ", CUDA graph").replace(" --cuda-tune", ", fastest kernels").strip(), r["measured_step_s"]["median"], r["tokens_per_s"], 100 * r["mfu"], r["measured_peak_gib"], 100 * r["mfu_causal_half"])


def torch_rows(path):
    rows = [json.loads(line) for line in open(path) if line.startswith("{")]
    for r in rows:
        if "error" in r:
            print(f"| {r['model']} | torch {r.get('mode', 'eager')}, {r['precision']} | {r['error']} | | | |", flush=True)
        else:
            speed(r["model"], f"{r['framework']} {r.get('mode', 'eager')}, {r['precision']}", r["step_s"], r["tokens_per_s"], 100 * r["model_tflops"] / PEAK_TFLOPS, r["peak_gib"])
    if not rows:
        sys.exit("PyTorch: no result")


def fused_attention(path):
    kernels = [k for k in load(path).get("kernels", []) if k["operation"] == "attention"]
    for k in kernels:
        print(f"attention: {k['implementation']}{': ' + k['reason'] if k['reason'] else ''}")
    if not kernels or any(k["implementation"] != "cuDNN" for k in kernels):
        sys.exit("attention did not run in cuDNN's kernels")


def prediction_heading():
    print("\n| plan, micro-batch, tokens, recompute, micro-batches, layers | predicted, ms | measured, ms | error, % | predicted, GiB | measured, GiB | error, % |"
          "\n|---|---|---|---|---|---|---|", flush=True)


def prediction_row(what, path, kept):
    r = load(path)
    if "errors" in r:
        sys.exit(f"{what}: {r['errors'][0]['message']}")
    p, m, a, b = r["predicted_step_s"], r["measured_step_s"]["median"], r["predicted_peak_gib"], r["measured_peak_gib"]
    print(f"| {what} | {1e3 * p:.2f} | {1e3 * m:.2f} | {100 * (p / m - 1):+.1f} | {a:.2f} | {b:.2f} | {100 * (a / b - 1):+.1f} |", flush=True)
    with open(kept, "a") as file:
        file.write(f"{p / m - 1} {a / b - 1}\n")


def prediction_summary(kept):
    errors = [[100 * abs(float(word)) for word in line.split()] for line in open(kept)]
    if not errors:
        return print("\nnothing was both predicted and measured")
    for name, values in (("step time", [e[0] for e in errors]), ("memory", [e[1] for e in errors])):
        print(f"{name}: median {statistics.median(values):.1f}%, worst {max(values):.1f}% over {len(values)}")


def losses(gpu, cpu, precision="bf16"):
    ours, reference = load(gpu)["losses"], load(cpu)["losses"]
    worst = 0
    print(f"\n| step | GPU, {precision} | CPU, fp32 | difference, % |\n|---|---|---|---|")
    for step, (a, b) in enumerate(zip(ours, reference, strict=True)):
        worst = max(worst, abs(a / b - 1))
        print(f"| {step} | {a:.5f} | {b:.5f} | {100 * (a / b - 1):+.3f} |")
    # The same allowances as smexec --check has.
    allowed = {"bf16": 1e-2, "fp8": 5e-2}[precision]
    print(f"largest difference {100 * worst:.3f}% ({f'equal within {precision}' if worst < allowed else 'TOO FAR'})")
    if not worst < allowed:
        sys.exit(1)


if __name__ == "__main__":
    commands = {"speed-heading": speed_heading, "speed-row": speed_row, "torch-rows": torch_rows, "prediction-heading": prediction_heading,
                "prediction-row": prediction_row, "prediction-summary": prediction_summary, "losses": losses, "fused-attention": fused_attention}
    commands[sys.argv[1]](*sys.argv[2:])
