#!/usr/bin/env python3
"""What could any function of the plan reach on the sweeps? Prints Markdown for docs/accuracy.md.

    smsim validate RUNS.csv --clusters CLUSTERS.csv --json > predictions.json
    bench/sweep_ceiling.py RUNS.csv SWEEPS.csv predictions.json

Three answers for every sweep, beside the simulator's own score:
  left out    the best of a family of smooth functions of the plan (Gaussian processes over tensor, pipeline, micro-batch, accumulation and recomputation, with and
              without the simulator's prediction as their mean), told the measured times of all other plans of the sweep, for the plan left out. Length and noise are
              chosen on the same times, so it is flattered.
  noise       the measured times themselves, blurred by independent errors of so many per cent: how exact a prediction must be.
"""
import collections
import csv
import json
import math
import random
import statistics
import sys

PLAN = ("model layers hidden cluster nodes tensor_parallel pipeline_parallel virtual_stages data_parallel sharding shard_degree micro_batch grad_accumulation recompute "
        "schedule sequence_parallel attention precision").split()
FEATURES = ("tensor_parallel", "pipeline_parallel", "micro_batch", "grad_accumulation")


def ranks(values):
    order = sorted(range(len(values)), key=lambda i: values[i])
    result, begin = [0.0] * len(values), 0
    while begin < len(order):
        end = begin
        while end + 1 < len(order) and values[order[end + 1]] == values[order[begin]]:
            end += 1
        for place in range(begin, end + 1):
            result[order[place]] = (begin + end) / 2
        begin = end + 1
    return result


def spearman(a, b):
    a, b = ranks(a), ranks(b)
    mean_a, mean_b = statistics.mean(a), statistics.mean(b)
    spread = math.sqrt(sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b))
    return sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b)) / spread if spread else 0.0


def regret(predicted, measured):
    return measured[min(range(len(predicted)), key=lambda i: predicted[i])] / min(measured) - 1


def solve(matrix, right):
    rows = [row[:] + [value] for row, value in zip(matrix, right)]
    size = len(rows)
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(rows[k][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for k in range(i + 1, size):
            factor = rows[k][i] / rows[i][i]
            rows[k] = [x - factor * y for x, y in zip(rows[k], rows[i])]
    result = [0.0] * size
    for i in reversed(range(size)):
        result[i] = (rows[i][size] - sum(rows[i][c] * result[c] for c in range(i + 1, size))) / rows[i][i]
    return result


def left_out(points, values, length, noise):
    def kernel(a, b):
        return math.exp(-0.5 * sum((x - y) ** 2 for x, y in zip(a, b)) / length ** 2)

    result = []
    for out in range(len(values)):
        known = [i for i in range(len(values)) if i != out]
        mean = statistics.mean(values[i] for i in known)
        gram = [[kernel(points[i], points[j]) + (noise if i == j else 0) for j in known] for i in known]
        weights = solve(gram, [values[i] - mean for i in known])
        result.append(mean + sum(w * kernel(points[i], points[out]) for w, i in zip(weights, known)))
    return result


def best_left_out(points, measured, predicted):
    best = None
    for length in (1, 2, 4, 8):
        for noise in (0.01, 0.1, 0.5):
            for prior in ([0.0] * len(measured), [math.log(p) for p in predicted]):
                values = [math.log(m) - q for m, q in zip(measured, prior)]
                guess = [v + q for v, q in zip(left_out(points, values, length, noise), prior)]
                error = statistics.mean((g - math.log(m)) ** 2 for g, m in zip(guess, measured))
                if best is None or error < best[0]:
                    best = (error, guess)
    return best[1], math.sqrt(best[0])


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    runs = {row["id"]: row for row in csv.DictReader(open(sys.argv[1]))}
    sweeps = list(csv.DictReader(open(sys.argv[2])))
    predictions = {row["id"]: row["predicted_step_s"] for row in json.load(open(sys.argv[3]))["rows"]}

    print("| sweep | plans | simulator | | left out | | its error % |\n|---|--:|--:|--:|--:|--:|--:|")
    scores, times = collections.defaultdict(list), []
    for sweep in sweeps:
        plans = collections.defaultdict(list)
        for run in sweep["ids"].split():
            plans[tuple(runs[run][key] for key in PLAN)].append(run)
        measured = [statistics.mean(float(runs[r]["measured_step_s"]) for r in group) for group in plans.values()]
        predicted = [statistics.mean(predictions[r] for r in group) for group in plans.values()]
        points = [[math.log2(float(runs[g[0]][key] or 1)) for key in FEATURES] + [float(runs[g[0]]["recompute"] == "full")] for g in plans.values()]
        guess, error = best_left_out(points, measured, predicted)
        times.append(measured)
        own, other = (spearman(predicted, measured), 100 * regret(predicted, measured)), (spearman(guess, measured), 100 * regret(guess, measured))
        scores["own"].append(own)
        scores["other"].append(other)
        print(f"| {sweep['sweep_id']} | {len(measured)} | {own[0]:.2f} | {own[1]:.1f} % | {other[0]:.2f} | {other[1]:.1f} % | {100 * error:.0f} |")
    mean = {key: [statistics.mean(column) for column in zip(*values)] for key, values in scores.items()}
    print(f"| **mean** | | **{mean['own'][0]:.2f}** | **{mean['own'][1]:.1f} %** | **{mean['other'][0]:.2f}** | **{mean['other'][1]:.1f} %** | |")

    print("\n| independent error of every plan | mean Spearman | mean regret |\n|--:|--:|--:|")
    random.seed(1)
    for spread in (0.02, 0.03, 0.05, 0.08):
        tries = [([m * math.exp(random.gauss(0, spread)) for m in measured], measured) for measured in times for _ in range(100)]
        print(f"| {100 * spread:.0f} % | {statistics.mean(spearman(*t) for t in tries):.2f} | {100 * statistics.mean(regret(*t) for t in tries):.1f} % |")


if __name__ == "__main__":
    main()
