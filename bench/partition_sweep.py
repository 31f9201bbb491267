#!/usr/bin/env python3
"""Does every partition problem get its proof? Runs `smplan partition` on all graphs of the public collections with many device counts, CPU counts, memory limits,
levels of bandwidth: one row a case with objective, verdict (optimal, infeasible, open with its gap, none), processor and wall-clock seconds and memory.

  bench/partition_sweep.py GRAPHS [SET...] [--only TEXT] [--time-limit S] [--all] [--smplan PATH]

GRAPHS holds dnn-partitioning/, piper/, pipedream/ and dapple/ (github msr-fiddle/dnn-partitioning, msr-fiddle/piper, msr-fiddle/pipedream, AlibabaPAI/DAPPLE).
SET: throughput, memory, latency, latency-memory, piper, pipedream, levels (default: all). Rows without a verdict and slow ones (over 3 s of processor time) are
printed as they come, with --all every row; then a summary a set. Exit code 1 when a case has no verdict."""
import argparse, collections, glob, json, os, resource, subprocess, sys, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GIB = 2**30
SLOW = 3.0
SETS = ("throughput", "memory", "latency", "latency-memory", "piper", "pipedream", "levels")


def cases(graphs, name):
    dnn = os.path.join(graphs, "dnn-partitioning")
    if name in ("throughput", "memory", "latency", "latency-memory"):
        for path in sorted(glob.glob(f"{dnn}/{'latency' if name.startswith('latency') else 'throughput'}-inputs/*/*.json")):
            with open(path) as file: graph = json.load(file)
            total, limit, given = sum(node["size"] for node in graph["nodes"]), graph["maxSizePerFPGA"], graph["maxFPGAs"]
            label = "/".join(path.split("/")[-2:])[:-5]
            if not name.endswith("memory"):
                for devices in sorted({*range(1, 9), given}):
                    for cpus in (0, 1, 2): yield label, path, ["--devices", devices, "--cpus", cpus]
                continue
            # Memory of a device: all nodes over the devices, by these factors; and around the file's own limit.
            amounts = [(devices, factor * total / devices) for devices in (2, given) for factor in (0.98, 1.02, 1.1, 1.3, 2)]
            if name == "latency-memory": amounts += [(given, factor * limit) for factor in (0.7, 0.85, 1.2, 2)]
            for devices, memory in amounts:
                for cpus in (0, 1): yield label, path, ["--devices", devices, "--cpus", cpus, "--memory", int(memory)]
    elif name == "piper":
        table = {"bert32a100": ((8, 16, 32, 64, 128, 256, 512, 1024, 2048), (1, 2, 4, 8, 16, 80)), "resnet": ((8, 16, 32, 64, 128), (1, 1.5, 2, 4, 8, 16)),
                 "gnmt": ((2, 4, 8, 16, 32, 64), (0.3, 0.6, 0.8, 1.2, 2.4, 2.5, 3.5))}
        for label, (counts, amounts) in table.items():
            for devices in counts:
                for memory in amounts:
                    yield label, f"{graphs}/piper/inputs/{label}.json", ["--devices", devices, "--memory", int(memory * GIB), "--bandwidth", 25 * GIB]
    else:
        levels = [(str(n), [rate]) for n in (2, 3, 4, 8, 16) for rate in (1e9, 1.25e9)] if name == "pipedream" else \
                 [("4x4", [1e10, 1.25e9]), ("8x2", [1e10, 1.25e9]), ("2x8", [1e10, 1.25e9]), ("4x2", [1e10, 1e9]), ("2x2x2", [1e10, 5e9, 1.25e9])]
        for path in sorted(glob.glob(f"{graphs}/pipedream/*.graph.txt") + glob.glob(f"{graphs}/dapple/*-*.txt") + glob.glob(f"{graphs}/dapple/vgg16.txt")):
            if os.path.basename(path) in ("README-SOURCE.txt",): continue
            for devices, rates in levels: yield "/".join(path.split("/")[-2:]), path, ["--devices", devices, "--bandwidth", ",".join(f"{rate:g}" for rate in rates)]


def answer(tool, path, options, limit):
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    run = subprocess.run([tool, "partition", "--graph", path, "--time-limit", str(limit), "--json", *map(str, options)], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    row = {"processor_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, "wall_s": time.time() - start, "objective": "", "verdict": f"exit {run.returncode}", "mib": ""}
    try: document = json.loads(run.stdout)
    except ValueError: return row | {"verdict": f"exit {run.returncode}: {run.stderr.strip()[:60]}"}
    if run.returncode == 0:
        best, bound = document["objective"], document["lower_bound"]
        row |= {"objective": f"{best:.9g}", "mib": f"{document['peak_rss_mib']:.0f}", "verdict": "optimal" if document["proven_optimal"] else f"gap {100 * (best - bound) / best:.2f} %"}
    elif run.returncode == 3:
        reason = document["errors"][0]["message"]
        row["verdict"] = "none" if "time limit" in reason or "only those of one" in reason else "infeasible"
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs")
    parser.add_argument("sets", nargs="*", choices=[*SETS, []], default=[])
    parser.add_argument("--only", default="", help="cases whose graph or options contain this text")
    parser.add_argument("--time-limit", type=float, default=60)
    parser.add_argument("--all", action="store_true", help="print every row")
    parser.add_argument("--smplan", default=os.path.join(ROOT, "build", "smplan"))
    arguments = parser.parse_args()
    summary = []
    print(f"{'graph':<40} {'options':<52} {'objective':>14} {'verdict':>14} {'processor s':>11} {'wall s':>7} {'MiB':>6}")
    for name in arguments.sets or SETS:
        count, slowest, seconds = collections.Counter(), 0.0, 0.0
        for label, path, options in cases(arguments.graphs, name):
            words = " ".join(map(str, options))
            if arguments.only not in f"{label} {words}": continue
            row = answer(arguments.smplan, path, options, arguments.time_limit)
            is_proven = row["verdict"] in ("optimal", "infeasible")
            count[row["verdict"] if is_proven else "open"] += 1
            slowest, seconds = max(slowest, row["processor_s"]), seconds + row["processor_s"]
            if arguments.all or not is_proven or row["processor_s"] > SLOW:
                print(f"{label:<40} {words:<52} {row['objective']:>14} {row['verdict']:>14} {row['processor_s']:>11.2f} {row['wall_s']:>7.2f} {row['mib']:>6}", flush=True)
        summary.append((name, count, slowest, seconds))
    print(f"\n{'set':<16} {'cases':>6} {'optimal':>8} {'infeasible':>11} {'open':>5} {'slowest s':>10} {'all s':>8}")
    for name, count, slowest, seconds in summary:
        print(f"{name:<16} {sum(count.values()):>6} {count['optimal']:>8} {count['infeasible']:>11} {count['open']:>5} {slowest:>10.2f} {seconds:>8.1f}")
    return int(any(count["open"] for _, count, _, _ in summary))


if __name__ == "__main__": sys.exit(main())
