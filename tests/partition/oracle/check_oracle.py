#!/usr/bin/env python3
"""Compares `smplan partition` with an oracle that shares nothing with it: the placement problem as a mixed-integer program, solved by HiGHS.

  check_oracle.py SMPLAN BUILD_DIRECTORY SHARED_DIRECTORY [--can-fail]

Random graphs of both formats and the small public ones; contiguous and not. A placement that smplan calls proven must be the program's optimum; its bound must not exceed it; its
stages must be a placement of the load it states, and "no placement" must be the program's answer too. --can-fail makes every comparison with an answer or a program that was spoilt
on purpose and expects each kind of damage to be found.

HiGHS comes from PyPI (highspy) into a virtual environment under the build directory. Exit code 77, "skipped: ...", where it is not to be had.
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

HIGHSPY = "highspy==1.15.1"
SECONDS_OF_A_PROGRAM = 8.0  # for one sequence of devices of a public graph: bounds are compared where it does not end
OPTIMUM, BRACKET = "optimum", "bracket"


def with_highs(build):
    """Goes on in an interpreter that has highspy, or skips."""
    try:
        import highspy  # noqa: F401
        return
    except ImportError:
        pass
    environment = build / "partition_oracle"
    python = environment / "bin" / "python"
    if pathlib.Path(sys.executable).parent == python.parent:
        skip(f"{HIGHSPY} is installed and cannot be imported")
    if subprocess.run([python, "-c", "import highspy"], capture_output=True).returncode if python.exists() else True:
        for command in ([sys.executable, "-m", "venv", environment], [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--timeout", "15", "--retries", "1", HIGHSPY]):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                skip(f"{HIGHSPY} cannot be had: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    os.execv(python, [python, *sys.argv])


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def random_order(rng, nodes):
    """Edges of a random graph that is connected enough to be interesting: every node but the first reads one or two before it."""
    return sorted({(rng.randrange(max(0, b - 4), b), b) for b in range(1, nodes) for _ in range(rng.choice((1, 1, 2)))})


def random_dnn(rng, trains):
    """Costs are whole numbers of milliseconds and bytes, so that no two different objectives lie within a tolerance."""
    count = rng.randint(5, 8) if trains else rng.randint(6, 11)
    edges, nodes = random_order(rng, count), []
    for i in range(count):
        nodes.append({"id": i, "supportedOnFpga": int(rng.random() > 0.08), "cpuLatency": rng.randint(2, 80), "fpgaLatency": rng.choice((0, 1)) * rng.randint(1, 20), "isBackwardNode": 0, "size": rng.randint(0, 9)})
        if trains or rng.random() < 0.15:
            nodes[-1]["colorClass"] = i if trains else 100 + rng.randrange(2)
    if trains:
        orphans = 1 if rng.random() < 0.5 else 0
        for i in range(count):
            nodes.append({"id": 50 + i, "supportedOnFpga": nodes[i]["supportedOnFpga"], "cpuLatency": rng.randint(2, 80), "fpgaLatency": rng.randint(0, 30), "isBackwardNode": 1, "size": rng.randint(0, 9), "colorClass": i})
        edges += [(50 + b, 50 + a) for a, b in edges] + [(count - 1, 50 + count - 1)]
        for i in range(orphans):  # of the way back alone, between two others
            nodes.append({"id": 90 + i, "supportedOnFpga": 1, "cpuLatency": 30, "fpgaLatency": rng.randint(1, 9), "isBackwardNode": 1, "size": 1})
            edges += [(50 + count - 1, 90 + i), (90 + i, 50)]
    cost = {node["id"]: rng.randint(0, 8) for node in nodes}
    size = sum(node["size"] for node in nodes)
    devices = rng.randint(2, 4)
    limit = rng.choice((size, -(-size // devices) + rng.randint(0, 3)))
    return {"maxSizePerFPGA": limit, "maxFPGAs": devices, "maxCPUs": rng.choice((0, 0, 1)), "nodes": nodes,
            "edges": [{"sourceId": a, "destId": b, "cost": cost[a]} for a, b in edges]}


def random_costed(rng, is_contiguous):
    count, kinds = rng.randint(5, 9), rng.random() < 0.5
    text = ["version = 1", "[graph]", 'bandwidth = "1GB/s"', f"training = {rng.choice(('true', 'false'))}"]
    if is_contiguous and rng.random() < 0.6:
        text.append(f"micro_batches = {rng.randint(2, 4)}")
    if not kinds:
        text += [f"devices = {rng.randint(2, 4)}", f'memory = "{rng.randint(20, 60)}MB"', f"cpus = {rng.choice((0, 1))}"]
    else:
        text += ["[[device]]", 'name = "fast"', "speed = 2.0", f'memory = "{rng.randint(15, 40)}MB"', 'bandwidth = "2GB/s"']
        text += ["[[device]]", 'name = "slow"', f"count = {rng.randint(1, 2)}", f'memory = "{rng.randint(30, 60)}MB"']
    names, inputs = [f"n{i}" for i in range(count)], {}
    for a, b in random_order(rng, count):
        inputs.setdefault(b, []).append(names[a])
    for i, name in enumerate(names):
        text += ["[[node]]", f'name = "{name}"', f'time = "{rng.choice((0, 1, 1)) * rng.randint(1, 20)}ms"', f'memory = "{rng.randint(0, 9)}MB"', f'activations = "{rng.randint(0, 4)}MB"', f'output = "{rng.randint(0, 6)}MB"']
        if i in inputs:
            text.append(f"inputs = {json.dumps(inputs[i])}")
        if rng.random() < 0.2:
            text.append(f'colocate = "c{rng.randrange(2)}"')
        if not kinds and rng.random() < 0.3:
            text.append(f'cpu_time = "{rng.randint(1, 60)}ms"')
    return "\n".join(text) + "\n"


class Damage:
    """What --can-fail does to one side of the comparison."""

    ANSWERS = {"objective a thousandth too low": 0.999, "objective a thousandth too high": 1.001}
    PROGRAMS = ("receivers pay nothing", "no memory limits", "no order", "one device more")

    def __init__(self, kind=None):
        self.kind = kind

    def answer(self, document):
        factor = self.ANSWERS.get(self.kind)
        if factor and "objective" in document:
            document = document | {"objective": document["objective"] * factor, "lower_bound": document["lower_bound"] * factor}
        return document

    def problem(self, problem):
        if self.kind == "receivers pay nothing":
            problem.outputs.clear()
        elif self.kind == "no memory limits":
            for device in problem.devices:
                device.memory = float("inf")
        elif self.kind == "no order":
            problem.before.clear()
        elif self.kind == "one device more":
            problem.devices[0].count += 1
        return problem


def ask(smplan, path, options):
    done = subprocess.run([smplan, "partition", "--graph", path, "--json", *map(str, options)], capture_output=True, text=True, timeout=300)
    if done.returncode not in (0, 3):
        return None, f"exit {done.returncode}: {done.stderr.strip()[:200]}"
    return (json.loads(done.stdout), None) if done.returncode == 0 else (None, None)


def compare(smplan, path, options, problem, is_contiguous, damage, seconds=60.0):
    """(what was wrong or None, how far the program came)."""
    from placement_model import INFINITY, TOLERANCE, loads_of, optimum, violation

    answer, failure = ask(smplan, path, options)
    if failure:
        return failure, OPTIMUM
    scale = 1.0
    if answer is not None:
        answer = damage.answer(answer)
        # The stages themselves, before anything is solved.
        group_of = {node: g for g, group in enumerate(problem.groups) for node in group.nodes}
        by_name = {device.name: device for device in problem.devices}
        stages = [(by_name[stage["device"]], {group_of[node] for node in stage["nodes"]}) for stage in answer["stages"]]
        if sum(len(stage["nodes"]) for stage in answer["stages"]) != len(group_of):
            return "the stages do not hold every node once", OPTIMUM
        loads = loads_of(problem, stages)
        scale = max(load for load, _ in loads) or 1.0
        for (load, memory), stage in zip(loads, answer["stages"]):
            if abs(load - stage["load"]) > TOLERANCE * scale or (is_contiguous and abs(memory - stage["memory"]) > TOLERANCE * (memory + 1)):
                return f"a stage of {len(stage['nodes'])} nodes has load {load} and {memory} bytes, stated are {stage['load']} and {stage['memory']}", OPTIMUM
        if abs(max(load for load, _ in loads) - answer["objective"]) > TOLERANCE * scale:
            return f"objective {answer['objective']}, of its stages {max(load for load, _ in loads)}", OPTIMUM
    problem = damage.problem(problem)
    best, bound, _ = optimum(problem, is_contiguous, seconds)
    reach = OPTIMUM if best == bound or best - bound <= TOLERANCE * best else BRACKET
    if answer is None:
        return (None if best == INFINITY else f"no placement, the program has one of {best}"), reach
    if best == INFINITY and reach == OPTIMUM:
        return f"objective {answer['objective']}, the program has no placement", reach
    if not damage.kind:
        wrong = violation(problem, stages, is_contiguous)
        if wrong:
            return wrong, reach
    if answer["objective"] < bound - TOLERANCE * scale:
        return f"objective {answer['objective']} below the program's bound {bound}", reach
    if answer["lower_bound"] > best + TOLERANCE * scale:
        return f"bound {answer['lower_bound']} above the program's placement {best}", reach
    if answer["proven_optimal"] and answer["objective"] > best + TOLERANCE * scale:
        return f"called optimal at {answer['objective']}, the program has {best}", reach
    return None, reach


def random_cases(folder, count):
    """(name, file, options, reader, contiguous)."""
    from placement_model import read_costed_graph, read_dnn_partitioning

    for seed in range(count):
        rng = random.Random(seed)
        kind = ("inference", "training", "costed")[seed % 3]
        is_contiguous = seed % 4 != 3
        path = folder / f"random{seed}.{'toml' if kind == 'costed' else 'json'}"
        path.write_text(random_costed(rng, is_contiguous) if kind == "costed" else json.dumps(random_dnn(rng, kind == "training")), encoding="utf-8")
        reader = read_costed_graph if kind == "costed" else read_dnn_partitioning
        yield f"random {kind} {seed}", path, [] if is_contiguous else ["--non-contiguous"], lambda path=path, reader=reader: reader(path), is_contiguous


def public_cases(shared):
    from placement_model import read_dnn_partitioning

    graphs = shared / "reference" / "partitioning" / "graphs" / "dnn-partitioning" / "throughput-inputs"
    if not graphs.is_dir():
        print(f"  the public graphs are left out: {graphs} is missing")
        return
    for name, devices, cpus in (("LayerGraphs/bert24_inference", 2, 0), ("LayerGraphs/bert24_inference", 3, 1), ("LayerGraphs/bert24_training", 2, 0), ("LayerGraphs/bert24_training", 3, 0),
                                ("LayerGraphs/resnet50_inference", 2, 0)):
        path = graphs / f"{name}.json"
        yield (f"{name} on {devices} devices and {cpus} CPUs", path, ["--devices", devices, "--cpus", cpus],
               lambda path=path, devices=devices, cpus=cpus: read_dnn_partitioning(path, devices, cpus), True)


def check_all(smplan, shared):
    wrong, reached, begin = [], {OPTIMUM: 0, BRACKET: 0}, time.time()
    with tempfile.TemporaryDirectory() as folder:
        cases = [(case, 60.0) for case in random_cases(pathlib.Path(folder), 48)] + [(case, SECONDS_OF_A_PROGRAM) for case in public_cases(shared)]
        infeasible = 0
        for (name, path, options, read, is_contiguous), seconds in cases:
            start = time.time()
            found, reach = compare(smplan, path, options, read(), is_contiguous, Damage(), seconds)
            reached[reach] += 1
            if found:
                wrong.append(f"{name} {' '.join(map(str, options))}: {found}")
                sys.stdout.write(path.read_text(encoding="utf-8")[:4000] + "\n" if name.startswith("random") else "")
            if not name.startswith("random"):
                print(f"  {name}: {reach}, {time.time() - start:.1f} s")
    for line in wrong:
        print(f"wrong: {line}")
    print(f"{len(cases)} problems in {time.time() - begin:.1f} s: {reached[OPTIMUM]} solved to the optimum, {reached[BRACKET]} enclosed, {len(wrong)} wrong")
    return 1 if wrong else 0


def check_can_fail(smplan):
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        cases = list(random_cases(pathlib.Path(folder), 24))
        for kind in (*Damage.ANSWERS, *Damage.PROGRAMS):
            found = sum(compare(smplan, path, options, read(), is_contiguous, Damage(kind))[0] is not None for _, path, options, read, is_contiguous in cases)
            print(f"  {kind}: found in {found} of {len(cases)} problems")
            if found == 0:
                missed.append(kind)
    for kind in missed:
        print(f"wrong: nobody noticed: {kind}")
    return 1 if missed else 0


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--can-fail"]
    if len(arguments) != 3:
        sys.exit(__doc__)
    smplan, build, shared = arguments[0], pathlib.Path(arguments[1]), pathlib.Path(arguments[2])
    with_highs(build)
    return check_can_fail(smplan) if "--can-fail" in sys.argv else check_all(smplan, shared)


if __name__ == "__main__":
    sys.exit(main())
