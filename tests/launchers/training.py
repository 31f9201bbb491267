"""The training that every launcher starts, and what it comes to without one."""

import json, pathlib, subprocess

# Sums are of two numbers each, whatever the ranks are: they round alike in every order, on any number of hosts.
PLAN = """version = 1
[model]
family = "gpt"
name = "gpt-small-bytes"
hidden = 64
layers = 2
heads = 4
vocabulary = 256
max_positions = 64
sequence_length = 64
[cluster]
instance = "local-cpu"
nodes = {nodes}
{network}
[plan]
data_parallel = 2
pipeline_parallel = 2
schedule = "1f1b"
micro_batch = 1
micro_batches = 2
precision = "fp32"
[training]
optimizer = "adamw"
learning_rate = 3e-4
weight_decay = 0.1
seed = 1234
steps = {steps}
"""
RANKS = 4


def write_plan(folder, nodes, steps):
    network = 'network_bandwidth = "1Gbps"\nnetwork_latency = "50us"' if nodes > 1 else ""
    path = pathlib.Path(folder) / "plan.toml"
    path.write_text(PLAN.format(nodes=nodes, network=network, steps=steps))
    return path


def export(smplan, plan, target, *options):
    """The text of `smplan export`."""
    return command(smplan, "export", plan, "--to", target, *options)


def command(*words, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **more)
    if done.returncode: raise RuntimeError(f"{' '.join(map(str, words))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def train_as_threads(smexec, plan, states):
    command(smexec, plan, "--ranks-from", "threads", "--no-compare", "--checkpoint", states)
    return Outcome(states)


def newest(states):
    """The folder of the newest checkpoint."""
    return max(pathlib.Path(states).glob("step-????????"), key=lambda path: path.name)


def newest_step(states):
    return int(newest(states).name.removeprefix("step-"))


class Outcome:
    """Losses of all steps and the state at the end, to the bit."""

    def __init__(self, states):
        folder = newest(states)
        manifest = json.loads((folder / "manifest.json").read_text())
        self.step, self.losses = manifest["step"], manifest["losses"]
        self.state = {path.name: path.read_bytes() for path in sorted(folder.glob("rank-*"))}

    def compare(self, other):
        """Raises where the other is not the same to the bit."""
        if self.step != other.step: raise AssertionError(f"{other.step} steps instead of {self.step}")
        if len(self.losses) != self.step: raise AssertionError(f"{len(self.losses)} losses of {self.step} steps")
        if self.losses[-1] >= self.losses[0]: raise AssertionError("nothing is learned: the losses do not fall")
        for step, (one, two) in enumerate(zip(self.losses, other.losses, strict=True)):
            if one != two: raise AssertionError(f"step {step}: loss {two!r} instead of {one!r}")
        if self.state.keys() != other.state.keys() or len(self.state) != RANKS: raise AssertionError(f"files {list(other.state)}")
        for name in self.state:
            if self.state[name] != other.state[name]: raise AssertionError(f"{name} differs")
