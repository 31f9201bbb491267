#!/usr/bin/env python3
"""Imports the example files that frameworks publish and records which are read and why others are not.

    examples.py --smplan build/smplan --megatron CHECKOUT --deepspeed CHECKOUT --sagemaker CHECKOUT --torchtitan FOLDER [--write]

Megatron-LM: the scripts under examples/ that start training, through interop/capture/capture.py. DeepSpeedExamples: every
JSON file that names a batch or ZeRO. amazon-sagemaker-examples: the notebooks with model parallelism, through
interop/capture/estimator.py. torchtitan: what interop/capture/torchtitan_config.py wrote of configurations, a folder. A checkout may be a folder of those files alone; --names gives its commit and date. The
answers are examples.json; tests/interop/test_examples.py holds the table of docs/formats.md against it.
"""
import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
CAPTURE = os.path.join(HERE, "..", "capture")
RECORD = os.path.join(HERE, "examples.json")
# A file's batch fits some numbers of replicas alone: read on one of these is read.
CLUSTERS = (("p5.48xlarge", 16), ("p5.48xlarge", 8), ("p4d.24xlarge", 1), ("p3.8xlarge", 1), ("p3.2xlarge", 1))


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, **options)


def outcome(smplan, path, source, more):
    """What `smplan import` said: read, or refused with the keys and the first messages."""
    errors = []
    for instance, nodes in CLUSTERS:
        done = run([smplan, "import", path, "--from", source, *more, "--instance", instance, "--nodes", str(nodes), "--json"])
        if done.returncode == 0:
            return {"status": "read"}
        if done.returncode != 2:
            return {"status": f"exit {done.returncode}", "messages": [done.stderr[-200:]]}
        found = json.loads(done.stdout).get("errors", [])
        if not errors or len(found) < len(errors):
            errors = found
    return {"status": "refused", "keys": sorted({error.get("key", "") for error in errors} - {""}),
            "messages": [error["message"].replace(os.path.dirname(path), "")[:160] for error in errors[:3]]}


def captured(tool, arguments, smplan, source, more, cwd):
    done = run([sys.executable, os.path.join(CAPTURE, tool), *arguments], cwd=cwd)
    if done.returncode:
        return {"status": "not captured", "messages": [(done.stderr.strip().splitlines() or ["nothing said"])[-1][:160]]}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(done.stdout)
        file.flush()
        return outcome(smplan, file.name, source, more)


def files(root, ending):
    for folder, _, names in sorted(os.walk(root)):
        for name in sorted(names):
            if name.endswith(ending):
                yield os.path.join(folder, name)


def text_of(path):
    with open(path, errors="replace") as file:
        return file.read()


def megatron(root, smplan):
    found = {}
    for path in files(os.path.join(root, "examples"), ".sh"):
        name = os.path.relpath(path, root)
        # Training of language models from scratch: the programs that Megatron-LM itself has for it.
        if re.search(r"pretrain_(gpt|bert|t5|mamba|hybrid)\w*\.py", text_of(path)):
            with tempfile.TemporaryDirectory() as scratch:
                places = [os.path.join(scratch, part) for part in ("checkpoints", "logs", "tokenizer", "data")]
                # Scripts look for the program before they start it.
                for program in set(re.findall(r"\w+\.py", text_of(path))):
                    open(os.path.join(scratch, program), "w").close()
                for given in (places, [], ["--checkpoint-path", scratch]):
                    answer = captured("capture.py", ["script", path, *given], smplan, "megatron", [], scratch)
                    if answer["status"] != "not captured":
                        break
                found[name] = answer
    return found


def deepspeed(root, smplan):
    found = {}
    for path in files(root, ".json"):
        if re.search(r'"(train_batch_size|train_micro_batch_size_per_gpu|zero_optimization)"', text_of(path)):
            found[os.path.relpath(path, root)] = outcome(smplan, path, "deepspeed", ["--model", "gpt2"])
    return found


def sagemaker(root, smplan):
    found = {}
    for path in files(root, ".ipynb"):
        text = text_of(path)
        if not re.search(r"modelparallel|smdistributed\.modelparallel", text) or "instance_count" not in text:
            continue
        source = "sagemaker-smp-v2" if re.search(r"torch_distributed|tensor_parallel_degree.{0,80}hybrid_shard", text) \
            else "sagemaker-smp-v1"
        found[os.path.relpath(path, root)] = captured("estimator.py", [path], smplan, source, ["--model", "gpt2"], root)
    return found


def torchtitan(root, smplan):
    """A folder of what interop/capture/torchtitan_config.py wrote, a file a configuration."""
    return {os.path.basename(path).removesuffix(".json"): outcome(smplan, path, "torchtitan", []) for path in files(root, ".json")
            if os.path.getsize(path) > 0}


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--smplan", required=True)
    for source in ("megatron", "deepspeed", "sagemaker", "torchtitan"):
        options.add_argument(f"--{source}", help="its examples")
    options.add_argument("--names", nargs="*", default=[], metavar="SOURCE=COMMIT DATE")
    options.add_argument("--write", action="store_true")
    chosen = options.parse_args()
    names = dict(name.split("=", 1) for name in chosen.names)
    record = {}
    if os.path.exists(RECORD):
        with open(RECORD) as file:
            record = json.load(file)
    for source, reader in (("megatron", megatron), ("deepspeed", deepspeed), ("sagemaker", sagemaker), ("torchtitan", torchtitan)):
        root = getattr(chosen, source)
        if not root:
            continue
        found = reader(os.path.abspath(root), os.path.abspath(chosen.smplan))
        record[source] = {"commit": names.get(source, ""), "files": found}
        print(source, dict(collections.Counter(answer["status"] for answer in found.values())))
        for name, answer in found.items():
            if answer["status"] != "read":
                print(f"  {name}: {answer['status']} {', '.join(answer.get('keys', []))[:80]} {answer['messages'][:1]}")
    if chosen.write:
        with open(RECORD, "w") as file:
            json.dump(record, file, indent=1, sort_keys=True)
            file.write("\n")


if __name__ == "__main__":
    main()
