#!/usr/bin/env python3
"""Whether what `smplan --for TOOL` finds is what TOOL runs: winners of random questions, through the real packages.

    python3 interop/check/winners.py TOOL... --smplan build/smplan [--cases 30] [--seed 19] [--models NAME,...] [--write]

Every case is a model, an instance type, nodes and a global batch, drawn with the seed. The winner of `--for TOOL` is
exported and read by the package's own parser, as exports.py does with the plans of plans/ (same packages, README.md
beside this file). `--write` merges the answers into winners.json: of each case and tool the plan in a line, or why
there is none. tests/interop/test_winners.py exports winners again, without the packages.
"""
import argparse
import datetime
import json
import os
import random
import subprocess
import sys
import tempfile
import tomllib

import exports

HERE = os.path.dirname(os.path.abspath(__file__))
RECORD = os.path.join(HERE, "winners.json")
# As --for names them, and their exports.
TOOLS = {"megatron": "megatron", "megatron-bridge": "megatron-bridge", "nemo": "nemo", "torchtitan": "torchtitan",
         "deepspeed": "deepspeed", "accelerate": "accelerate", "smp-v1": "sagemaker-smp-v1",
         "smp-v2": "sagemaker-smp-v2", "smexec": None}
# Small enough that a search of each takes about a second.
MODELS = ["gpt2-xl", "llama-2-7b", "llama-2-13b", "llama-3-8b", "llama-3.2-1b", "llama-3.2-3b", "mixtral-8x7b"]
INSTANCES = ["p3dn.24xlarge", "p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge"]


def draw_cases(count, seed, models=MODELS):
    random_ = random.Random(seed)
    return [{"model": random_.choice(models), "instance": random_.choice(INSTANCES), "nodes": random_.choice([1, 2, 4]),
             "sequence_length": random_.choice([512, 1024]), "global_batch": random_.choice([32, 48, 64, 128, 256])}
            for _ in range(count)]


def winner(smplan, case, tool, path):
    """The path of the best plan, or the reason why there is none."""
    done = subprocess.run(
        [os.path.abspath(smplan), "--for", tool, "--target", case["instance"], "--nodes", str(case["nodes"]), "--model",
         case["model"], "--seq-len", str(case["sequence_length"]), "--global-batch", str(case["global_batch"]), "--top",
         "1", "--time-limit", "5", "--json", "--out", path], capture_output=True, text=True)
    document = json.loads(done.stdout)
    if done.returncode == 3:
        return None, document["errors"][0]["message"]
    if done.returncode != 0:
        raise SystemExit(f"{case} for {tool}: exit {done.returncode}: {done.stdout[:600]}{done.stderr[:600]}")
    return path, document["plans"][0]


def in_a_line(plan):
    keys = ("tensor_parallel", "pipeline_parallel", "virtual_stages", "data_parallel", "context_parallel", "context_communication",
            "expert_parallel", "expert_tensor_parallel", "schedule", "sharding", "shard_degree", "micro_batch", "micro_batches", "recompute",
            "recompute_layers", "recompute_modules", "precision", "offload", "optimizer_offload",
            "parameter_offload")
    return {key: plan[key] for key in keys if key in plan}


def export(smplan, path, tool):
    """The document of `smplan export`; what smexec runs needs none."""
    if TOOLS[tool] is None:
        return {}
    done = subprocess.run([os.path.abspath(smplan), "export", os.path.basename(path), "--to", TOOLS[tool], "--json"],
                          capture_output=True, text=True, cwd=os.path.dirname(path))
    return json.loads(done.stdout)


def facts_of(path):
    """The plan file completed by what smplan leaves to defaults."""
    with open(path, "rb") as file:
        document = tomllib.load(file)
    document["training"].setdefault("gradient_clipping", 0.0)
    facts = exports.expected_facts(document)
    del facts["gradient_clipping"]
    return document, facts


def check(smplan, case, tool, folder):
    path = os.path.join(folder, "plan.toml")
    found, answer = winner(smplan, case, tool, path)
    if not found:
        return {"status": "no plan", "reason": answer[:200]}
    document = export(smplan, path, tool)
    if "errors" in document:
        return {"status": "REFUSED", "keys": exports.refused_keys(document), "plan": in_a_line(answer)}
    record = {"status": "not checked", "plan": in_a_line(answer)}
    validator = exports.CHECKS.get(TOOLS[tool]) if TOOLS[tool] else None
    if validator is None:
        return record
    plan, facts = facts_of(path)
    plan["model"]["sequence_length"] = case["sequence_length"]
    try:
        _, seen = validator(document, facts, folder)
    except Exception as error:  # whatever the package raises is its refusal
        return {"status": "REJECTED", "reason": f"{type(error).__name__}: {str(error)[:400]}", "plan": in_a_line(answer)}
    wrong = {key: (value, facts[key]) for key, value in seen.items()
             if key in facts and value != facts[key]}
    return {"status": "DIFFERS", "wrong": str(wrong), "plan": in_a_line(answer)} if wrong else \
        {"status": "accepted", "plan": in_a_line(answer)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tools", nargs="+", choices=sorted(TOOLS))
    parser.add_argument("--smplan", default="build/smplan")
    parser.add_argument("--cases", type=int, default=30)
    parser.add_argument("--seed", type=int, default=19)
    parser.add_argument("--models", type=lambda text: text.split(","), default=MODELS, help="names of the catalogue, by commas")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    cases = draw_cases(options.cases, options.seed, options.models)
    record = {"seed": options.seed, "cases": cases, "winners": {}, "dates": {}}
    if os.path.exists(RECORD):
        with open(RECORD) as file:
            known = json.load(file)
        if known["cases"] == cases:
            record = known
    failures = 0
    for tool in options.tools:
        answers, counts = [], {}
        for number, case in enumerate(cases):
            with tempfile.TemporaryDirectory() as folder:
                answer = check(options.smplan, case, tool, folder)
            counts[answer["status"]] = counts.get(answer["status"], 0) + 1
            if answer["status"].isupper():
                failures += 1
                print(tool, number, case, answer)
            answers.append(answer)
        record["winners"][tool] = answers
        record["dates"][tool] = datetime.date.today().isoformat()
        print(f"{tool:16} " + ", ".join(f"{count} {status}" for status, count in sorted(counts.items())), flush=True)
    if options.write and not failures:
        with open(RECORD, "w") as file:
            json.dump(record, file, indent=1, sort_keys=True)
            file.write("\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
