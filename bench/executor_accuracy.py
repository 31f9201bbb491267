#!/usr/bin/env python3
"""Is what smexec predicts what it measures? Runs plans on this machine and writes tables and curves into docs/accuracy.md, with machine and date.

  bench/executor_accuracy.py plans     30 and more plans on two ranks: predicted and measured step time (some five minutes)
  bench/executor_accuracy.py ranking   12 plans of one model: does the prediction order them as the measurement does (two minutes)
  bench/executor_accuracy.py hosts     plans whose time is communication, on emulated hosts with links of 100 and 200 Mbit/s (five minutes; root)
  bench/executor_accuracy.py train     a GPT of 10 million parameters for 300 steps on real text: one rank, four ranks, four ranks killed and resumed (ten minutes)

Nothing else should run meanwhile: a measured step is as slow as its slowest rank. As root, ranks have real-time priority (chrt -r 1), so that other
processes get a core only while a rank sleeps. Every plan is profiled and run --repetitions times, in rounds over all plans: what is compared are medians over rounds, because
the speed of a virtual machine drifts. A run in which a fixed product took another time than while the machine was profiled (by more than a tenth: somebody else's work beside this
virtual machine), or in which others had more than 5 % of the ranks' computing time, is repeated by `plans` and `ranking`, at most three times, whatever was predicted; the text says how many were.

A plan's noise is what its own repetitions differ by: the largest distance between two rounds' measured or predicted steps, or half of what four of five steps of a run span, whichever is
more. The table sets it beside the error, and tells how many errors exceed it.

Options: --smexec PATH (build/smexec), --steps N, --rounds N, --tries N (1: no run is repeated), --dry-run (names of the plans).
In parts: --store FILE keeps every run as it ends, and a later call with the same file does those that are missing; --minutes M begins no run after M minutes; --part K/N takes every N-th
plan from the K-th on. The table is written when the file has all runs, or with --write from those that it has."""
import argparse, datetime, glob, json, os, platform, shutil, signal, statistics, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ACCURACY = os.path.join(ROOT, "docs", "accuracy.md")

MODELS = {
    "gpt": 'family = "gpt"\nname = "gpt"\nhidden = 128\nlayers = 4\nheads = 4\nvocabulary = 256\nmax_positions = 128\nsequence_length = 128',
    "gpt-wide": 'family = "gpt"\nname = "gpt-wide"\nhidden = 256\nlayers = 4\nheads = 8\nvocabulary = 256\nmax_positions = 64\nsequence_length = 64',
    "llama": 'family = "llama"\nname = "llama"\nhidden = 128\nffn = 352\nlayers = 4\nheads = 4\nkv_heads = 2\nvocabulary = 256\nmax_positions = 128\nsequence_length = 128',
    "bert": 'family = "bert"\nname = "bert"\nhidden = 128\nlayers = 4\nheads = 4\nvocabulary = 1000\nmax_positions = 128\nsequence_length = 128\nmasked_positions = 20',
    "convnet": 'name = "mnist-convnet"',
}

STEADY = 0.1  # a run counts when the machine kept the speed at which it was profiled, to this share
LOST = 5  # ... and others (processes, or the host of a virtual machine) had no more of the ranks' computing time, in percent


def plan_text(model, plan, seed=1234, training=""):
    keys = {"micro_batch": 1, "precision": "fp32"} | plan
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())
    return f'version = 1\n[model]\n{MODELS[model]}\n[cluster]\ninstance = "local-cpu"\nnodes = 1\n[plan]\n{lines}\n[training]\noptimizer = "adamw"\nlearning_rate = 3e-4\nseed = {seed}\n{training}'


def words(plan):
    degrees = [f"{short}{plan[key]}" for key, short in (("pipeline_parallel", "p"), ("data_parallel", "d"), ("tensor_parallel", "t"), ("context_parallel", "c")) if plan.get(key, 1) > 1]
    rest = [plan[key] for key in ("schedule", "sharding") if key in plan]
    rest += [f"{plan['segments']} segments"] if "segments" in plan else []
    rest += [f"recompute {plan['recompute']}"] if "recompute" in plan else []
    rest += ["sequence parallel"] if plan.get("sequence_parallel") else []
    return " ".join(degrees + rest) + f", {plan.get('micro_batches', 1)} x {plan.get('micro_batch', 1)}"


def many_plans():
    plans = []
    for model in ("gpt", "gpt-wide", "llama", "bert"):
        for schedule, chunks, count in (("gpipe", 1, 8), ("1f1b", 1, 8), ("interleaved-1f1b", 2, 8), ("zb-h1", 1, 8)):
            plans.append((model, {"pipeline_parallel": 2, "schedule": schedule, "virtual_stages": chunks, "micro_batches": count}))
        for sharding in ("none", "optimizer", "parameters"):
            plans.append((model, {"data_parallel": 2, "sharding": sharding, "micro_batch": 2, "micro_batches": 4}))
        plans.append((model, {"tensor_parallel": 2, "micro_batch": 2, "micro_batches": 4}))
        plans.append((model, {"pipeline_parallel": 2, "schedule": "1f1b", "micro_batches": 8, "recompute": "full"}))
    for model in ("gpt", "gpt-wide", "llama"):  # attention that is causal, which segments of a sequence need
        for segments in (2, 4):
            plans.append((model, {"pipeline_parallel": 2, "schedule": "seq1f1b", "segments": segments, "micro_batches": 8}))
        plans.append((model, {"context_parallel": 2, "micro_batch": 2, "micro_batches": 4}))
    for micro_batch, count in ((64, 3), (32, 4)):
        plans.append(("convnet", {"data_parallel": 2, "micro_batch": micro_batch, "micro_batches": count}))
    return plans


def ranked_plans():
    batch = [{"pipeline_parallel": 2, "schedule": "gpipe", "micro_batches": 4, "micro_batch": 4}, {"pipeline_parallel": 2, "schedule": "gpipe", "micro_batches": 16},
             {"pipeline_parallel": 2, "schedule": "1f1b", "micro_batches": 2, "micro_batch": 8}, {"pipeline_parallel": 2, "schedule": "1f1b", "micro_batches": 4, "micro_batch": 4},
             {"pipeline_parallel": 2, "schedule": "1f1b", "micro_batches": 16}, {"pipeline_parallel": 2, "schedule": "1f1b", "micro_batches": 8, "micro_batch": 2, "recompute": "full"},
             {"pipeline_parallel": 2, "schedule": "interleaved-1f1b", "virtual_stages": 2, "micro_batches": 8, "micro_batch": 2},
             {"data_parallel": 2, "micro_batches": 8}, {"data_parallel": 2, "micro_batches": 2, "micro_batch": 4}, {"data_parallel": 2, "sharding": "parameters", "micro_batches": 8},
             {"tensor_parallel": 2, "micro_batches": 16}, {"tensor_parallel": 2, "micro_batches": 4, "micro_batch": 4}, {"micro_batches": 16}, {"micro_batches": 4, "micro_batch": 4, "recompute": "full"}]
    return [("gpt", plan) for plan in batch]


def host_plans(ranks=4):
    return [("gpt", {"data_parallel": ranks, "micro_batches": 1}), ("gpt", {"data_parallel": ranks, "micro_batches": 1, "sharding": "optimizer"}),
            ("gpt", {"data_parallel": ranks, "micro_batches": 1, "sharding": "parameters"}), ("gpt-wide", {"data_parallel": ranks, "micro_batches": 1}),
            ("gpt-wide", {"data_parallel": ranks // 2, "pipeline_parallel": 2, "order": "DPT", "micro_batches": 2}), ("llama", {"data_parallel": ranks, "micro_batches": 1})]


def machine():
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    return f"{model}, {len(os.sched_getaffinity(0))} cores, Linux {platform.release()}, {datetime.date.today()}"


def run(command, limit=300):
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    begin = done.stdout.find("{")
    if begin < 0: raise RuntimeError(f"exit {done.returncode}: {(done.stderr or done.stdout).strip()[:300]}")
    document = json.JSONDecoder().raw_decode(done.stdout[begin:])[0]
    if "errors" in document: raise RuntimeError(document["errors"][0]["message"])
    return document


def urgent():
    """What a command begins with so that other processes cannot take its cores; nothing where that is not allowed."""
    if not shutil.which("chrt") or subprocess.run(["chrt", "-r", "1", "true"], capture_output=True).returncode: return []
    return ["chrt", "-r", "1"]


class Store:
    """Runs by what, plan and round, in a file of JSON lines; of a program that was built anew since then none counts."""
    def __init__(self, path, smexec):
        self.path, self.found = path, {}
        version = subprocess.run([smexec, "--version"], capture_output=True, text=True).stdout.strip() if path else ""
        self.program = f"{version}, {os.path.getmtime(smexec):.0f}" if path else ""
        if path and os.path.exists(path):
            for line in open(path):
                entry = json.loads(line)
                if entry["program"] == self.program: self.found[entry["key"]] = entry["row"]

    def keep(self, key, row):
        self.found[key] = row
        if not self.path: return
        with open(self.path, "a") as file: file.write(json.dumps({"program": self.program, "key": key, "row": row}) + "\n")


def noise(own):
    """Of one plan's rounds, in percent of the measured step."""
    measured, predicted = [r["measured"] for r in own], [r["predicted"] for r in own]
    typical = statistics.median(measured)
    between = max(max(measured) - min(measured), max(predicted) - min(predicted))
    within = statistics.median(max(r["spread"], r["predicted_spread"]) for r in own)
    return 100 * max(between, within) / typical


def measure(options, plans, launcher=(), tries=1, name=""):
    rounds = [measure_once(options, plans, launcher, tries, f"{name} {' '.join(launcher)} round {number}") for number in range(options.repetitions)]
    rows = []
    for number in range(len(plans)):
        own = [found[number] for found in rounds if found[number]]
        if not own: continue
        row = {key: own[0][key] for key in ("model", "plan")}
        for key in ("predicted", "measured", "error", "at_speed", "ratio", "lost", "memory"):
            values = [r[key] for r in own if r[key] is not None]
            row[key] = statistics.median(values) if values else None
        row["errors"] = [r["error"] for r in own]
        row["noise"] = noise(own)
        row["repeated"] = sum(r["repeated"] for r in own)
        rows.append(row)
    return rows


def half(interval): return (interval[1] - interval[0]) / 2


def measure_once(options, plans, launcher, tries, name):
    rows = [None] * len(plans)
    tries = options.tries or tries
    with tempfile.TemporaryDirectory() as folder:
        for number, (model, plan) in enumerate(plans):
            path = os.path.join(folder, "plan.toml")
            key = f"{name}: {model} {words(plan)}"
            if key in options.runs.found:
                rows[number] = options.runs.found[key]
                continue
            if number % options.parts != options.part or time.monotonic() > options.deadline:
                options.missing += 1
                continue
            with open(path, "w") as file: file.write(plan_text(model, plan))
            try:
                for attempt in range(tries):
                    result = run([*launcher, options.smexec, path, "--steps", str(options.steps), "--json"])
                    comparison = result["comparison"]
                    is_whole = result["ranks"] > os.cpu_count() or result["lost_to_others_pct"] <= LOST
                    if is_whole and abs((comparison.get("speed_ratio") or 1) - 1) <= STEADY: break
            except (RuntimeError, subprocess.TimeoutExpired) as failure:
                print(f"{model} {words(plan)}: {failure}", file=sys.stderr)
                continue
            row = {"model": model, "plan": words(plan), "predicted": result["predicted_step_s"], "measured": result["measured_step_s"]["median"], "error": result["error_pct"],
                   "at_speed": comparison.get("error_at_profiled_speed_pct"), "ratio": comparison.get("speed_ratio"), "lost": result["lost_to_others_pct"], "repeated": attempt,
                   "memory": 100 * (result["predicted_peak_gib"] / result["measured_peak_gib"] - 1),
                   "spread": half(comparison["measured_interval_s"]), "predicted_spread": half(comparison["predicted_interval_s"])}
            rows[number] = row
            options.runs.keep(key, row)
            print(f"{number + 1:3}/{len(plans)} {model:9} {row['plan']:44} {1e3 * row['predicted']:8.1f} {1e3 * row['measured']:8.1f} ms {row['error']:+7.1f} %", file=sys.stderr)
    return rows


def table(rows):
    text = "| model | plan | predicted | measured | error | of the rounds | own noise | machine's speed since the profile | error at that speed | peak memory |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n"
    for r in rows:
        text += (f"| {r['model']} | {r['plan']} | {1e3 * r['predicted']:.1f} ms | {1e3 * r['measured']:.1f} ms | {r['error']:+.1f} % | {min(r['errors']):+.1f} to {max(r['errors']):+.1f} | {r['noise']:.1f} % | "
                 + (f"{r['ratio']:.2f} | {r['at_speed']:+.1f} % |" if r["ratio"] else "– | – |") + f" {r['memory']:+.1f} % |\n")
    return text


def summary(rows):
    def of(name): return sorted(abs(r[name]) for r in rows if r[name] is not None)
    raw, at_speed, memory = of("error"), of("at_speed"), of("memory")
    text = f"{len(rows)} plans: median error {statistics.median(raw):.1f} %, worst {raw[-1]:.1f} %"
    beyond = [r for r in rows if abs(r["error"]) > r["noise"]]
    text += f"; {len(beyond)} errors are more than the plan's own noise, of these the median {statistics.median([abs(r['error']) for r in beyond]) if beyond else 0:.1f} %"
    if at_speed: text += f"; at the speed at which the machine was profiled {statistics.median(at_speed):.1f} %, worst {at_speed[-1]:.1f} %"
    return text + f"; peak memory worst {memory[-1]:.1f} %. Other processes took at most {max(r['lost'] for r in rows):.0f} % of the ranks' computing time."


def conditions(options, rows):
    repeated = sum(r["repeated"] for r in rows)
    return (f"{repeated} runs were repeated because the machine's speed had moved by more than {STEADY:.0%} since it was profiled, or others had over {LOST} % of the ranks' computing time. " if repeated else "") + f"{options.repetitions} rounds over all plans, each profiled anew before it ran" + (", at real-time priority; " if urgent() else "; ") + f"load average {os.getloadavg()[1]:.0f}."


def rank_correlation(a, b):
    def ranks(values):
        order = sorted(range(len(values)), key=lambda i: values[i])
        return [order.index(i) for i in range(len(values))]
    x, y, n = ranks(a), ranks(b), len(a)
    return 1 - 6 * sum((i - j) ** 2 for i, j in zip(x, y)) / (n * (n * n - 1))


def write_section(name, title, body, command=None):
    begin, end = f"<!-- bench/executor_accuracy.py {name} -->", f"<!-- end of {name} -->"
    section = f"{begin}\n### {title}\n\n{machine()}; `{command or 'bench/executor_accuracy.py ' + name}`.\n\n{body}\n{end}\n"
    text = open(ACCURACY).read()
    if begin in text: text = text[:text.index(begin)] + section + text[text.index(end) + len(end) + 1:]
    else: text = text.rstrip("\n") + "\n\n" + section
    with open(ACCURACY, "w") as file: file.write(text)
    print(f"written to {os.path.relpath(ACCURACY)}")


def is_whole(options, rows):
    """Whether a table is to be written; says what is missing."""
    if options.missing: print(f"{options.missing} runs are missing: call again with the same --store" if options.store else f"{options.missing} runs were left out")
    if rows and options.missing and not options.write: print(f"so far: {summary(rows)}")
    return bool(rows) and (not options.missing or options.write)


def plans(options):
    rows = measure(options, many_plans(), urgent(), tries=4, name="plans")
    if not is_whole(options, rows): return
    print(summary(rows))
    write_section("plans", "Plans on two ranks of this kind of machine", f"{summary(rows)} {conditions(options, rows)}\n\n{table(rows)}")


def ranking(options):
    rows = measure(options, ranked_plans(), urgent(), tries=4, name="ranking")
    if not is_whole(options, rows): return
    predicted, measured = [r["predicted"] for r in rows], [r["measured"] for r in rows]
    choice = measured[predicted.index(min(predicted))]
    told = (f"{len(rows)} plans of one model and batch: rank correlation (Spearman) of predicted with measured step time {rank_correlation(predicted, measured):.3f}; "
            f"the plan predicted fastest takes {100 * (choice / min(measured) - 1):.1f} % longer than the measured best.")
    print(told)
    write_section("ranking", "Order of plans by prediction", f"{told} {conditions(options, rows)}" + "\n\n" + table(sorted(rows, key=lambda r: r["measured"])))


def hosts(options):
    script = os.path.join(ROOT, "bench", "emulated_hosts.sh")
    can = subprocess.run([script, "can"], capture_output=True, text=True)
    if can.returncode: sys.exit(f"skipped: {can.stdout.strip()}")
    body = ""
    everything = []
    for count, ranks, rate in ((2, 2, "100mbit"), (2, 2, "200mbit"), (4, 2, "100mbit"), (4, 2, "200mbit"), (3, 2, "200mbit,200mbit,50mbit")):
        rows = measure(options, host_plans(count * ranks), [*urgent(), script, "run", str(count), str(ranks), rate], name="hosts")
        if not rows: continue
        everything += rows
        body += f"{count} hosts of {ranks} ranks, {rate.replace('mbit', ' Mbit/s').replace(',', ', ')}: {summary(rows)}\n\n{table(rows)}\n"
    if not is_whole(options, everything): return
    print(summary(everything))
    write_section("hosts", "Emulated hosts with shaped links, communication dominating", f"{summary(everything)} {conditions(options, everything)}" + "\n\n" + body)


def train(options):
    text = "".join(open(path, encoding="utf-8", errors="ignore").read() for path in sorted({os.path.realpath(p) for p in glob.glob("/usr/share/common-licenses/*")}))
    text = text.encode("ascii", "ignore")
    if len(text) < 200000: sys.exit("skipped: the licences of Debian (/usr/share/common-licenses), which are the text, are not on this machine")
    MODELS["gpt-10m"] = 'family = "gpt"\nname = "gpt-10m"\nhidden = 320\nlayers = 8\nheads = 8\nvocabulary = 256\nmax_positions = 128\nsequence_length = 128'
    steps = 300
    curves = {}
    with tempfile.TemporaryDirectory() as folder:
        data, single, parallel, states = (os.path.join(folder, name) for name in ("text", "single.toml", "parallel.toml", "states"))
        open(data, "wb").write(text)
        open(single, "w").write(plan_text("gpt-10m", {"micro_batches": 4}, training="gradient_clipping = 1.0\n"))
        open(parallel, "w").write(plan_text("gpt-10m", {"pipeline_parallel": 2, "data_parallel": 2, "micro_batches": 2, "schedule": "1f1b"}, training="gradient_clipping = 1.0\n"))
        common = ["--data", data, "--steps", str(steps), "--json"]
        four = run([*urgent(), options.smexec, parallel, *common], 3000)
        curves["pipeline 2 x data 2"] = four["losses"]
        print(f"four ranks: {four['tokens_per_s']:.0f} tokens/s, {100 * four['mfu']:.0f} % of the matrix-product rate", file=sys.stderr)
        # Killed once half is committed, then resumed.
        killed = subprocess.Popen([options.smexec, parallel, *common, "--no-compare", "--checkpoint", states, "--every", "25"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while killed.poll() is None and not os.path.exists(f"{states}/step-{steps // 2:08}"): time.sleep(0.2)
        time.sleep(1)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        resumed = run([options.smexec, parallel, *common, "--no-compare", "--checkpoint", states, "--every", "100", "--resume"], 3000)
        first = resumed["first_step"]
        is_equal = resumed["losses"] == four["losses"][first:]
        print(f"killed and resumed from step {first}: losses are {'equal to the last bit' if is_equal else 'DIFFERENT'}", file=sys.stderr)
        if not options.skip_single:
            one = run([options.smexec, single, *common, "--no-compare"], 3000)
            curves["one rank"] = one["losses"]
    folder = os.path.join(ROOT, "docs", "curves")
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/gpt_10m.csv", "w") as file:
        file.write("step," + ",".join(curves) + ",resumed after a kill\n")
        for step in range(steps):
            cells = [f"{curve[step]:.6f}" for curve in curves.values()] + [f"{resumed['losses'][step - first]:.6f}" if step >= first else ""]
            file.write(f"{step}," + ",".join(cells) + "\n")
    draw(f"{folder}/gpt_10m.svg", curves)
    worst = max(abs(a - b) / b for a, b in zip(*curves.values())) if len(curves) == 2 else float("nan")
    early = max(abs(a - b) / b for a, b in list(zip(*curves.values()))[:steps // 2]) if len(curves) == 2 else float("nan")
    told = (f"A GPT of 10 million parameters, {steps} steps of 512 bytes of licence texts: loss {four['losses'][0]:.3f} at the first step, {four['losses'][-1]:.3f} at the last; pipeline 2 x data 2 and "
            f"one rank differ by at most {worst:.1e} at any step ({early:.1e} in the first half). {four['tokens_per_s']:.0f} tokens/s on four ranks, {100 * four['mfu']:.0f} % of the matrix-product rate of the cores. Killed after step {steps // 2} "
            f"and resumed from step {first}, the losses are {'equal to the last bit' if is_equal else 'NOT those of the unbroken run'}.")
    print(told)
    write_section("train", "Training for real", told + "\n\n![loss curves](curves/gpt_10m.svg) Data: [curves/gpt_10m.csv](curves/gpt_10m.csv).")
    if not is_equal or worst > 1e-2: sys.exit(1)


def draw(path, curves):
    width, height, margin = 720, 360, 48
    most = max(max(curve) for curve in curves.values())
    colours = ("#1f77b4", "#d62728")
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">', f'<rect width="{width}" height="{height}" fill="white"/>']
    for i in range(6):
        y = margin + (height - 2 * margin) * i / 5
        lines.append(f'<path d="M{margin} {y:.1f}H{width - margin}" stroke="#ddd"/><text x="{margin - 6}" y="{y + 4:.1f}" text-anchor="end">{most * (1 - i / 5):.1f}</text>')
    for number, (name, curve) in enumerate(curves.items()):
        points = " ".join(f"{margin + (width - 2 * margin) * i / (len(curve) - 1):.1f},{margin + (height - 2 * margin) * (1 - loss / most):.1f}" for i, loss in enumerate(curve))
        dash = ' stroke-dasharray="5 4"' if number else ""
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colours[number]}" stroke-width="1.5"{dash}/>')
        lines.append(f'<text x="{width - margin - 160}" y="{margin + 16 * (number + 1)}" fill="{colours[number]}">{name}</text>')
    lines.append(f'<text x="{width / 2}" y="{height - 12}" text-anchor="middle">step</text><text x="12" y="{margin - 16}">loss</text></svg>')
    with open(path, "w") as file: file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("plans", "ranking", "hosts", "train"))
    parser.add_argument("--smexec", default=os.path.join(ROOT, "build", "smexec"))
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", "--repetitions", dest="repetitions", type=int, default=3)
    parser.add_argument("--tries", type=int, default=0, help="runs of a plan in a round at most; 0: as the section says")
    parser.add_argument("--store", help="file of runs, gone on with")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run later")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="every N-th plan from the K-th on")
    parser.add_argument("--write", action="store_true", help="write the table although runs are missing")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--skip-single", action="store_true", help="train: leave out the single-rank run")
    chosen = parser.parse_args()
    first, parts = chosen.part.split("/")
    chosen.part, chosen.parts, chosen.missing = int(first) - 1, int(parts), 0
    if not 0 <= chosen.part < chosen.parts: parser.error("--part K/N: K is from 1 to N")
    chosen.deadline = time.monotonic() + 60 * chosen.minutes
    chosen.runs = Store(chosen.store, chosen.smexec)
    if chosen.dry_run:
        for model, plan in {"plans": many_plans, "ranking": ranked_plans, "hosts": host_plans, "train": list}[chosen.what](): print(model, words(plan))
    else:
        {"plans": plans, "ranking": ranking, "hosts": hosts, "train": train}[chosen.what](chosen)
