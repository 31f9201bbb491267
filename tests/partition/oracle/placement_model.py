"""The placement problem as `smplan partition` documents it, read from the graph file alone, and its mixed-integer program.

Sources: docs/formats.md ("Graphs for smplan partition") and the published definition of Tarnawski et al. (NeurIPS 2020). No line here comes from the C++ search: nothing is
reduced, fused or ordered in advance, and a cycle of colours is left to the constraints.

A problem is a set of groups (nodes that stay together), pairs of groups in order, outputs with the groups that read them, and kinds of devices.
"""
import itertools
import json
import math
import tomllib
from dataclasses import dataclass, field

INFINITY = float("inf")
TOLERANCE = 1e-6  # relative, of objectives: HiGHS keeps integers and rows to 1e-6 of their values
BYTES = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SECONDS = {"s": 1, "ms": 1e-3, "us": 1e-6}


@dataclass
class Group:
    nodes: list = field(default_factory=list)  # as the answer names them
    time: float = 0
    cpu_time: float = 0
    memory: float = 0
    activations: float = 0  # of one micro-batch
    only_cpu: bool = False


@dataclass
class Output:
    source: int  # group
    readers: set  # other groups
    time: float  # paid once by the device of the source if any reader lies elsewhere, and once by every other device with a reader


@dataclass
class Device:
    name: str
    count: int
    is_cpu: bool = False
    speed: float = 1
    bandwidth: float = 1  # as a multiple of the graph's
    memory: float = INFINITY


@dataclass
class Problem:
    groups: list
    before: set  # (a, b): no stage of b lies in front of a's
    outputs: list
    devices: list
    micro_batches: int = 1


def quantity(text, units):
    """Of "16GiB" or "3ms" the bytes or seconds."""
    number = text.rstrip("".join({letter for unit in units for letter in unit}))
    return float(number) * units[text[len(number):]]


def read_dnn_partitioning(path, devices=None, cpus=None, memory=None):
    """Times stay the file's milliseconds."""
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    groups, group_of, of_colour = [], {}, {}
    for node in document["nodes"]:
        colour = node.get("colorClass")
        if colour is None or colour not in of_colour:
            if colour is not None:
                of_colour[colour] = len(groups)
            group_of[node["id"]] = len(groups)
            groups.append(Group())
        else:
            group_of[node["id"]] = of_colour[colour]
        group = groups[group_of[node["id"]]]
        group.nodes.append(node["id"])
        group.time += node["fpgaLatency"]
        group.cpu_time += node["cpuLatency"]
        group.memory += node.get("size", 0)
        group.only_cpu = group.only_cpu or not node["supportedOnFpga"]
    is_backward = {node["id"]: bool(node["isBackwardNode"]) for node in document["nodes"]}
    has_forward = {group_of[node] for node in is_backward if not is_backward[node]}
    before, readers, cost = set(), {}, {}
    for edge in document["edges"]:
        a, b = edge["sourceId"], edge["destId"]
        cost[a] = edge["cost"]
        if group_of[a] == group_of[b]:
            continue
        readers.setdefault(a, set()).add(group_of[b])
        if not is_backward[a] and not is_backward[b]:
            before.add((group_of[a], group_of[b]))
        # A backward node without a forward partner gets a forward twin, with the edges of the backward node mirrored.
        if is_backward[a] and is_backward[b] and not {group_of[a], group_of[b]} <= has_forward:
            before.add((group_of[b], group_of[a]))
    outputs = [Output(group_of[node], readers[node], cost[node]) for node in readers if cost[node] > 0]
    kinds = [Device("accelerator", document["maxFPGAs"] if devices is None else devices, memory=document["maxSizePerFPGA"] if memory is None else memory),
             Device("cpu", document["maxCPUs"] if cpus is None else cpus, is_cpu=True)]
    return Problem(groups, before, outputs, kinds)


def read_costed_graph(path):
    """Times are seconds."""
    with open(path, "rb") as file:
        document = tomllib.load(file)
    graph = document.get("graph", {})
    rate = quantity(graph["bandwidth"].removesuffix("/s"), BYTES) if "bandwidth" in graph else None
    memory = quantity(graph["memory"], BYTES) if "memory" in graph else INFINITY
    there_and_back = 2 if graph.get("training", True) else 1
    groups, group_of, of_word = [], {}, {}
    for node in document["node"]:
        word = node.get("colocate")
        if word is None or word not in of_word:
            if word is not None:
                of_word[word] = len(groups)
            group_of[node["name"]] = len(groups)
            groups.append(Group())
        else:
            group_of[node["name"]] = of_word[word]
        group, time = groups[group_of[node["name"]]], quantity(node["time"], SECONDS)
        group.nodes.append(node["name"])
        group.time += time
        group.cpu_time += quantity(node["cpu_time"], SECONDS) if "cpu_time" in node else time
        group.memory += quantity(node.get("memory", "0B"), BYTES)
        group.activations += quantity(node.get("activations", "0B"), BYTES)
        group.only_cpu = group.only_cpu or node.get("only_cpu", False)
    before, readers = set(), {}
    for node in document["node"]:
        for source in node.get("inputs", []):
            if group_of[source] != group_of[node["name"]]:
                before.add((group_of[source], group_of[node["name"]]))
                readers.setdefault(source, set()).add(group_of[node["name"]])
    outputs = []
    for node in document["node"]:
        if node["name"] in readers:
            time = quantity(node["output_time"], SECONDS) if "output_time" in node else quantity(node.get("output", "0B"), BYTES) / (rate or 1)
            outputs.append(Output(group_of[node["name"]], readers[node["name"]], there_and_back * time))
    kinds = [Device("accelerator", graph.get("devices", 1), memory=memory), Device("cpu", graph.get("cpus", 0), is_cpu=True)]
    if "device" in document:
        kinds = []
        for d, device in enumerate(document["device"]):
            own = quantity(device["bandwidth"].removesuffix("/s"), BYTES) / rate if "bandwidth" in device else 1
            limit = quantity(device["memory"], BYTES) if "memory" in device else memory
            kinds.append(Device(device.get("name", f"device{d}"), device.get("count", 1), device.get("cpu", False), device.get("speed", 1), own, limit))
    return Problem(groups, before, outputs, kinds, graph.get("micro_batches", 1))


def loads_of(problem, stages):
    """Load and memory of each stage, (device, set of groups), in pipeline order."""
    result = []
    for s, (device, held) in enumerate(stages):
        if device.is_cpu:
            load = sum(problem.groups[g].cpu_time for g in held) / device.speed
        else:
            load = sum(problem.groups[g].time for g in held) / device.speed
            for output in problem.outputs:
                sends = output.source in held and not output.readers <= held
                receives = output.source not in held and output.readers & held
                if sends or receives:
                    load += output.time / device.bandwidth
        in_flight = min(problem.micro_batches, len(stages) - s)
        result.append((load, sum(problem.groups[g].memory + in_flight * problem.groups[g].activations for g in held)))
    return result


def violation(problem, stages, is_contiguous):
    """Why these stages are no placement, or None."""
    stage_of = {g: s for s, (_, held) in enumerate(stages) for g in held}
    if sorted(g for _, held in stages for g in held) != list(range(len(problem.groups))):
        return "the stages do not hold every group exactly once"
    for kind in problem.devices:
        if sum(device is kind for device, _ in stages) > kind.count:
            return f"more stages than the {kind.count} devices of {kind.name}"
    for device, held in stages:
        if not device.is_cpu and any(problem.groups[g].only_cpu for g in held):
            return "an accelerator holds what runs only on a CPU"
    for s, ((device, _), (_, memory)) in enumerate(zip(stages, loads_of(problem, stages))):
        if not device.is_cpu and memory > device.memory * (1 + 1e-12):
            return f"stage {s} holds {memory} bytes of {device.memory}"
    if is_contiguous:
        for a, b in problem.before:
            if stage_of[a] > stage_of[b]:
                return f"nodes {problem.groups[a].nodes} come before {problem.groups[b].nodes} and lie in a later stage"
    return None


def device_sequences(problem, is_contiguous):
    """Which devices stand in which places of the pipeline: every sequence that differs. Without order devices of a kind are alike, and all are there."""
    copies = [kind for kind in problem.devices for _ in range(min(kind.count, len(problem.groups)))]
    if not is_contiguous:
        return [copies] if copies else []
    lengths = range(1, len(copies) + 1) if problem.micro_batches > 1 and any(g.activations for g in problem.groups) else [len(copies)]
    index = {id(kind): i for i, kind in enumerate(problem.devices)}
    sequences = []
    for length in lengths:
        seen = set()
        for chosen in itertools.permutations([index[id(kind)] for kind in copies], length):
            if chosen not in seen:
                seen.add(chosen)
                sequences.append([problem.devices[i] for i in chosen])
    return sequences


class Program:
    """Minimise one column over rows of a mixed-integer program, solved by HiGHS."""

    def __init__(self):
        self.cost, self.lower, self.upper, self.integral = [], [], [], []
        self.rows = []  # (least, most, {column: factor})

    def column(self, lower=0.0, upper=INFINITY, is_binary=False, cost=0.0):
        self.cost.append(cost), self.lower.append(lower), self.upper.append(upper), self.integral.append(is_binary)
        return len(self.cost) - 1

    def row(self, factors, least=-INFINITY, most=INFINITY):
        self.rows.append((least, most, factors))

    def solve(self, seconds, cutoff):
        """(values or None, bound that no solution below the cutoff beats, whether the search ended)."""
        import highspy
        import numpy

        self.upper[0] = cutoff
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.cost), len(self.rows)
        lp.col_cost_, lp.col_lower_, lp.col_upper_ = (numpy.array(v, dtype=float) for v in (self.cost, self.lower, self.upper))
        lp.row_lower_, lp.row_upper_ = numpy.array([r[0] for r in self.rows], dtype=float), numpy.array([r[1] for r in self.rows], dtype=float)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = numpy.cumsum([0] + [len(r[2]) for r in self.rows])
        lp.a_matrix_.index_ = numpy.array([c for r in self.rows for c in r[2]], dtype=int)
        lp.a_matrix_.value_ = numpy.array([f for r in self.rows for f in r[2].values()], dtype=float)
        lp.integrality_ = [highspy.HighsVarType.kInteger if i else highspy.HighsVarType.kContinuous for i in self.integral]
        highs = highspy.Highs()
        for option, value in (("output_flag", False), ("threads", 1), ("random_seed", 1), ("time_limit", float(seconds)), ("mip_rel_gap", 1e-9), ("mip_abs_gap", 1e-9)):
            highs.setOptionValue(option, value)
        highs.passModel(lp)
        highs.run()
        status, info = highs.getModelStatus(), highs.getInfo()
        if status == highspy.HighsModelStatus.kInfeasible:
            return None, cutoff, True
        has_solution = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        values = list(highs.getSolution().col_value) if has_solution else None
        return values, info.mip_dual_bound, status == highspy.HighsModelStatus.kOptimal


def program_of(problem, sequence, is_contiguous):
    """The devices of `sequence` stand in this order: x[g][p] = 1 when group g lies on device p; the first column is the largest load."""
    program = Program()
    largest = program.column(cost=1.0)
    places = range(len(sequence))
    x = [[program.column(0, 0 if group.only_cpu and not sequence[p].is_cpu else 1, is_binary=True) for p in places] for group in problem.groups]
    for row in x:
        program.row({column: 1.0 for column in row}, 1, 1)
    if is_contiguous:
        for a, b in problem.before:  # by place p, b is only there if a is
            for p in places[:-1]:
                program.row({**{x[a][q]: 1.0 for q in places[:p + 1]}, **{x[b][q]: -1.0 for q in places[:p + 1]}}, 0)
    else:
        # Devices of a kind are alike: a group may open the next empty one only after a group of smaller number lies on the one before it.
        for p in places[1:]:
            if sequence[p] is sequence[p - 1]:
                for g in range(len(problem.groups)):
                    program.row({x[g][p]: 1.0, **{x[h][p - 1]: -1.0 for h in range(g)}}, most=0)
    scale = max((group.memory + group.activations * problem.micro_batches for group in problem.groups), default=1) or 1
    for p, device in enumerate(sequence):
        load = {largest: -1.0}
        for g, group in enumerate(problem.groups):
            load[x[g][p]] = (group.cpu_time if device.is_cpu else group.time) / device.speed
        if not device.is_cpu:
            for output in problem.outputs:
                pays = program.column()  # at least 1 where this device sends or receives the output
                load[pays] = output.time / device.bandwidth
                for reader in output.readers:
                    program.row({pays: 1.0, x[output.source][p]: -1.0, x[reader][p]: 1.0}, 0)
                    program.row({pays: 1.0, x[output.source][p]: 1.0, x[reader][p]: -1.0}, 0)
            if device.memory < INFINITY:
                in_flight = min(problem.micro_batches, len(sequence) - p)
                program.row({x[g][p]: (group.memory + in_flight * group.activations) / scale for g, group in enumerate(problem.groups)}, most=device.memory / scale)
        program.row(load, most=0)
    return program, x


def optimum(problem, is_contiguous, seconds):
    """(objective of the best placement found or infinity, bound that none beats, the placement): equal where the search ended; both infinite where none exists."""
    best, bound, placement = INFINITY, INFINITY, None
    for sequence in device_sequences(problem, is_contiguous):
        program, x = program_of(problem, sequence, is_contiguous)
        values, least, has_ended = program.solve(seconds, best * (1 - TOLERANCE / 10))
        if values is not None:
            stages = [(device, {g for g in range(len(problem.groups)) if values[x[g][p]] > 0.5}) for p, device in enumerate(sequence)]
            value = max(load for load, _ in loads_of(problem, stages))
            wrong = violation(problem, stages, is_contiguous)
            if wrong:
                raise AssertionError(f"the program's own solution is no placement: {wrong}")
            if value < best:
                best, placement = value, stages
            if has_ended:
                least = value
        bound = min(bound, least if not math.isnan(least) else 0)
    return best, min(bound, best), placement
