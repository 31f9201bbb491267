#!/usr/bin/env python3
"""smexec beside PyTorch: the same model with the same weights on the same text for 50 steps of AdamW, by every way in which
smexec can divide the work. Torch trains it undivided in fp64, which stands for what is exact, and again in the precision
that smexec has. Compared are the loss of every step and all weights at the end.

    python3 tests/torch/compare_training.py [--smexec build/smexec] [--rows tensor clipping] [--write | --can-fail]

What may differ is measured, not chosen: runs of torch in that precision, which take a step's samples in other orders and
sizes and begin with half of the weights one unit in the last place off, differ from fp64 by rounding alone; smexec may by
FACTOR times the largest of these. A weight whose gradient is about 0 now and then moves by AdamW's whole step one way or
the other, which is what the largest differences of weights are. Needs torch and safetensors
(tests/torch/compare_training.md: versions and figures of the last run, rewritten by --write). Exit codes: 0 good,
1 a difference above that, 77 nothing of that is installed. --can-fail: plans that are a little wrong must be found out."""

import argparse, dataclasses, datetime, json, math, pathlib, random, subprocess, sys, tempfile

try:
    import safetensors, torch
    import torch.nn.functional as F
    from safetensors.torch import load_file, save_file
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

HIDDEN, LAYERS, HEADS, KV_HEADS, FFN, VOCABULARY, TOKENS, BATCH, STEPS = 64, 4, 4, 2, 96, 256, 32, 4, 50
EXPERTS, CHOSEN = 4, 2
RATE, BETA1, BETA2, EPSILON, ROTARY_BASE, NORM_EPSILON = 1e-3, 0.9, 0.999, 1e-8, 10000.0, 1e-5
FACTOR = 2  # both sides are draws of the same kind, and the larger ones of few
# Of a loss: above it torch's own runs would excuse anything. Some hundred roundings of 2^-24, or of 2^-9.
LARGEST_ROUNDING = {"fp32": 1e-5, "bf16": 1e-2}
# Orders and sizes in which torch takes a step's samples: as many ways to round.
PARTS = ([[0, 1, 2, 3]], [[0], [1], [2], [3]], [[3], [1], [0], [2]], [[1, 2], [0, 3]])

PLAN = """version = 1
[model]
family = "{family}"
name = "compared"
hidden = {hidden}
layers = {layers}
heads = {heads}
kv_heads = {kv_heads}
ffn = {ffn}
vocabulary = {vocabulary}
sequence_length = {tokens}
rotary_base = {rotary_base}
epsilon = {norm_epsilon}
{experts}
[cluster]
instance = "local-cpu"
nodes = 1
[plan]
{degrees}
micro_batch = 1
micro_batches = {micro_batches}
precision = "{precision}"
[training]
optimizer = "adamw"
learning_rate = {rate}
beta1 = {beta1}
beta2 = {beta2}
epsilon = {epsilon}
weight_decay = {decay}
gradient_clipping = {clipping}
seed = 7
"""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What is computed, however it is divided."""
    has_experts: bool = False
    clipping: float = 0.0
    decay: float = 0.0
    precision: str = "fp32"


PLAIN, CLIPPED, DECAYED = Recipe(), Recipe(clipping=0.5), Recipe(decay=0.1)
BOTH, MIXTURE, LOW = Recipe(clipping=0.5, decay=0.1), Recipe(has_experts=True), Recipe(precision="bf16")
ROWS = {
    "one rank": (PLAIN, ""),
    "tensor": (PLAIN, "tensor_parallel = 2"),
    "tensor, sequence": (PLAIN, "tensor_parallel = 2\nsequence_parallel = true"),
    "pipeline": (PLAIN, 'pipeline_parallel = 2\nschedule = "1f1b"'),
    "pipeline, interleaved": (PLAIN, 'pipeline_parallel = 2\nschedule = "interleaved"\nvirtual_stages = 2'),
    "pipeline, zero bubble": (PLAIN, 'pipeline_parallel = 2\nschedule = "zb-h1"'),
    "ZeRO-1": (PLAIN, 'data_parallel = 2\nsharding = "optimizer"'),
    "ZeRO-2": (PLAIN, 'data_parallel = 2\nsharding = "gradients"'),
    "ZeRO-3": (PLAIN, 'data_parallel = 2\nsharding = "parameters"'),
    "context": (PLAIN, "context_parallel = 2"),
    "experts, one rank": (MIXTURE, ""),
    "experts": (MIXTURE, "data_parallel = 2\nexpert_parallel = 2"),
    "clipping": (CLIPPED, ""),
    "clipping, tensor": (CLIPPED, "tensor_parallel = 2"),
    "clipping, pipeline": (CLIPPED, 'pipeline_parallel = 2\nschedule = "1f1b"'),
    "clipping, ZeRO-3": (CLIPPED, 'data_parallel = 2\nsharding = "parameters"'),
    "decay": (DECAYED, ""),
    "decay, ZeRO-1": (DECAYED, 'data_parallel = 2\nsharding = "optimizer"'),
    "clipping and decay, tensor x pipeline x data": (BOTH, 'tensor_parallel = 2\npipeline_parallel = 2\ndata_parallel = 2\nschedule = "1f1b"'),
    "bf16": (LOW, ""),
    "bf16, tensor": (LOW, "tensor_parallel = 2"),
    "bf16, pipeline": (LOW, 'pipeline_parallel = 2\nschedule = "1f1b"'),
    "bf16, ZeRO-3": (LOW, 'data_parallel = 2\nsharding = "parameters"'),
}


def rms_norm(x, scale):
    return F.rms_norm(x, (HIDDEN,), scale, NORM_EPSILON)


def rotate(x):
    """Rotary positions on halves of a head's dimensions: x is [samples, heads, tokens, dimensions]."""
    half = x.shape[-1] // 2
    angles = torch.arange(TOKENS, dtype=torch.float64)[:, None] * ROTARY_BASE ** (-torch.arange(half, dtype=torch.float64) / half)
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    one, two = x[..., :half], x[..., half:]
    return torch.cat([one * cosine - two * sine, two * cosine + one * sine], dim=-1)


def gated(x, first, second):
    gate, up = F.linear(x, first).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, second)


def mixture(x, weights, name):
    """The chosen experts' outputs, weighted by their probabilities, which add up to 1 over the chosen ones."""
    chances, chosen = F.softmax(F.linear(x, weights[f"{name}.router.weight"]), dim=-1).topk(CHOSEN, dim=-1)
    chances = chances / chances.sum(dim=-1, keepdim=True)
    y = torch.zeros_like(x)
    for expert in range(EXPERTS):
        share = (chances * (chosen == expert)).sum(dim=-1, keepdim=True)
        out = gated(x, weights[f"{name}.experts.first.weight"][expert], weights[f"{name}.experts.second.weight"][expert])
        y = y + share * out
    return y


def loss_of(weights, ids, labels, has_experts):
    """Mean loss of next tokens of a Llama, or a Mixtral, with smexec's names of weights."""
    x = F.embedding(ids, weights["embedding.tokens.weight"])
    samples = ids.shape[0]
    for layer in range(LAYERS):
        name = f"layers.{layer}"
        y = rms_norm(x, weights[f"{name}.attention_norm.scale"])
        d = HIDDEN // HEADS
        q, k, v = F.linear(y, weights[f"{name}.attention.qkv.weight"]).split([HIDDEN, KV_HEADS * d, KV_HEADS * d], dim=-1)
        q, k, v = (part.view(samples, TOKENS, -1, d).transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)
        x = x + F.linear(y.transpose(1, 2).reshape(samples, TOKENS, HIDDEN), weights[f"{name}.attention.output.weight"])
        y = rms_norm(x, weights[f"{name}.mlp_norm.scale"])
        if has_experts: x = x + mixture(y, weights, f"{name}.mlp.mixture")
        else: x = x + gated(y, weights[f"{name}.mlp.gate_up.weight"], weights[f"{name}.mlp.down.weight"])
    logits = F.linear(rms_norm(x, weights["head.norm.scale"]), weights["head.logits.weight"])
    if logits.dtype == torch.bfloat16: logits = logits.float()
    return F.cross_entropy(logits.reshape(-1, VOCABULARY), labels.reshape(-1))


def make_text():
    """Sentences of few words, so that there is something to learn."""
    draw = random.Random(5)
    words = ["".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(draw.randint(2, 7))) for _ in range(40)]
    return " ".join(draw.choice(words) for _ in range(4000)).encode()


def samples(text, step):
    """As smexec reads a text: windows of tokens + 1 bytes that share one byte with the next; inputs and the bytes after them."""
    width = TOKENS + 1
    starts = [(s * TOKENS) % (len(text) - width + 1) for s in range(step * BATCH, (step + 1) * BATCH)]
    rows = torch.tensor([list(text[start:start + width]) for start in starts])
    return rows[:, :-1], rows[:, 1:]


def train_torch(recipe, start, text, dtype, order=PARTS[0]):
    """The losses of all steps and the weights at the end. In bf16 weights, activations and their gradients are rounded, and the
    optimizer has weights, and sums of gradients, in fp32."""
    is_low = dtype == torch.bfloat16
    masters = {name: torch.nn.Parameter(value.to(torch.float32 if is_low else dtype, copy=True)) for name, value in start.items()}
    groups = [{"params": [p for p in masters.values() if p.dim() > 1], "weight_decay": recipe.decay},
              {"params": [p for p in masters.values() if p.dim() <= 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(BETA1, BETA2), eps=EPSILON)
    losses = []
    for step in range(STEPS):
        ids, labels = samples(text, step)
        loss = 0.0
        for part in order:
            weights = {name: p.detach().to(dtype).requires_grad_() for name, p in masters.items()} if is_low else masters
            of_part = loss_of(weights, ids[part], labels[part], recipe.has_experts) / len(order)
            of_part.backward()
            loss += of_part.item()
            if is_low:
                for name, p in masters.items():
                    gradient = weights[name].grad.float()
                    p.grad = gradient if p.grad is None else p.grad + gradient
        if recipe.clipping: torch.nn.utils.clip_grad_norm_(masters.values(), recipe.clipping)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
    return losses, {name: p.detach().double() for name, p in masters.items()}


def nudged(start, seed):
    """Every other number, drawn, moved to the next fp32 on either side."""
    generator = torch.Generator().manual_seed(seed)
    ends = [torch.tensor(math.inf), torch.tensor(-math.inf)]
    result = {}
    for name, value in start.items():
        way = torch.randint(0, 4, value.shape, generator=generator)
        result[name] = torch.where(way == 0, torch.nextafter(value, ends[0]), torch.where(way == 1, torch.nextafter(value, ends[1]), value))
    return result


def run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0: raise RuntimeError(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def write_plan(folder, recipe, degrees):
    """The batch is the same on every number of replicas."""
    replicas = 2 if "data_parallel = 2" in degrees else 1
    path = pathlib.Path(folder) / "plan.toml"
    path.write_text(PLAN.format(
        family="mixtral" if recipe.has_experts else "llama", hidden=HIDDEN, layers=LAYERS, heads=HEADS, kv_heads=KV_HEADS, ffn=FFN, vocabulary=VOCABULARY,
        tokens=TOKENS, rotary_base=ROTARY_BASE, norm_epsilon=NORM_EPSILON, experts=f"experts = {EXPERTS}\nexperts_per_token = {CHOSEN}" if recipe.has_experts else "",
        degrees=degrees, micro_batches=BATCH // replicas, precision=recipe.precision, rate=RATE, beta1=BETA1, beta2=BETA2, epsilon=EPSILON,
        decay=recipe.decay, clipping=recipe.clipping))
    return path


def train_smexec(smexec, recipe, degrees, start, text, fault=None):
    """As train_torch; `fault`: a line of the plan, and what stands there instead."""
    with tempfile.TemporaryDirectory() as folder:
        plan, folder = write_plan(folder, recipe, degrees), pathlib.Path(folder)
        if fault:
            content = plan.read_text()
            if content.count(fault[0]) != 1: raise RuntimeError(f"{fault[0]} is not one line of the plan")
            plan.write_text(content.replace(*fault))
        save_file(start, folder / "start.safetensors")
        (folder / "text").write_bytes(text)
        losses = run([smexec, plan, "--data", folder / "text", "--init", folder / "start.safetensors", "--steps", STEPS, "--checkpoint", folder / "states",
                      "--no-compare", "--ranks-from", "threads", "--json"])["losses"]
        run([smexec, "convert", folder / "states", "--plan", plan, "--to", "safetensors", "--out", folder / "end.safetensors", "--json"])
        return losses, {name: value.double() for name, value in load_file(folder / "end.safetensors").items()}


def start_of(smexec, recipe):
    """Weights to begin with: smexec's names and shapes, larger random numbers than training begins with, which hide nothing."""
    with tempfile.TemporaryDirectory() as folder:
        plan, folder = write_plan(folder, recipe, ""), pathlib.Path(folder)
        run([smexec, plan, "--steps", 0, "--checkpoint", folder / "states", "--no-compare", "--ranks-from", "threads", "--json"])
        run([smexec, "convert", folder / "states", "--plan", plan, "--to", "safetensors", "--out", folder / "start.safetensors", "--json"])
        shapes = load_file(folder / "start.safetensors")
    generator = torch.Generator().manual_seed(3)
    return {name: (1.0 if value.dim() == 1 else 0.0) + 0.1 * torch.randn(value.shape, generator=generator) for name, value in sorted(shapes.items())}


@dataclasses.dataclass
class Difference:
    """From fp64: of any loss, of any tensor of weights at the end (norm over norm), and that over how far training moved the tensor."""
    loss: float
    weights: float
    moved: float

    @staticmethod
    def between(one, exact, start):
        losses, weights = one
        if len(losses) != STEPS or weights.keys() != exact[1].keys(): raise RuntimeError("another number of losses, or other weights")
        loss = max(abs(a - b) / abs(b) for a, b in zip(losses, exact[0]))
        off = {name: (weights[name] - exact[1][name]).norm() for name in weights}
        return Difference(loss, max((off[name] / exact[1][name].norm()).item() for name in off),
                          max((off[name] / (exact[1][name] - start[name].double()).norm()).item() for name in off))

    def values(self):
        return dataclasses.astuple(self)


class Torch:
    """What torch makes of each recipe, computed once."""

    def __init__(self, smexec, text):
        self.smexec, self.text, self.starts, self.known = smexec, text, {}, {}

    def start(self, recipe):
        if recipe.has_experts not in self.starts: self.starts[recipe.has_experts] = start_of(self.smexec, recipe)
        return self.starts[recipe.has_experts]

    def of(self, recipe):
        """The exact run, and the largest differences of those that round."""
        if recipe not in self.known:
            start = self.start(recipe)
            exact = train_torch(recipe, start, self.text, torch.float64)
            dtype = torch.bfloat16 if recipe.precision == "bf16" else torch.float32
            own = [Difference.between(train_torch(recipe, begin, self.text, dtype, order), exact, start).values()
                   for seed, order in enumerate(PARTS) for begin in (start, nudged(start, seed))]
            self.known[recipe] = exact, Difference(*map(max, *own))
        return self.known[recipe]


def is_rounding(ours, torchs, recipe):
    within = all(math.isfinite(a) and a <= FACTOR * b for a, b in zip(ours.values(), torchs.values()))
    return within and torchs.loss < LARGEST_ROUNDING[recipe.precision]


def find_faults(smexec, theirs, text):
    """Plans with one number a little off."""
    exact, torchs = theirs.of(PLAIN)
    are_found = True
    for right, wrong in (("learning_rate = 0.001", "learning_rate = 0.00100002"), ("epsilon = 1e-05", "epsilon = 1.01e-05"),
                         ("weight_decay = 0.0", "weight_decay = 0.001"), ("beta2 = 0.999", "beta2 = 0.99901"), ("gradient_clipping = 0.0", "gradient_clipping = 1.0")):
        ours = Difference.between(train_smexec(smexec, PLAIN, "", theirs.start(PLAIN), text, (right, wrong)), exact, theirs.start(PLAIN))
        is_found = not is_rounding(ours, torchs, PLAIN)
        are_found &= is_found
        print(f"{wrong}: {'found' if is_found else 'NOT FOUND'}, losses {ours.loss:.1e}, weights {ours.weights:.1e}", flush=True)
    return 0 if are_found else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--smexec", default=root / "build" / "smexec")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--can-fail", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    text = make_text()
    theirs = Torch(arguments.smexec, text)
    if arguments.can_fail: return find_faults(arguments.smexec, theirs, text)
    rows, is_good = [], True
    for name in arguments.rows:
        recipe, degrees = ROWS[name]
        exact, torchs = theirs.of(recipe)
        losses = exact[0]
        try:
            ours = Difference.between(train_smexec(arguments.smexec, recipe, degrees, theirs.start(recipe), text), exact, theirs.start(recipe))
        except RuntimeError as failure:
            print(failure, file=sys.stderr)
            rows.append(f"| {name} | {degrees} | not run | | | | | |".replace("\n", ", "))
            print(rows[-1], flush=True)
            is_good = False
            continue
        good = is_rounding(ours, torchs, recipe) and losses[-1] < losses[0]
        is_good &= good
        cells = " | ".join(f"{a:.1e} | {b:.1e}" for a, b in zip(ours.values(), torchs.values()))
        degrees = degrees.replace("\n", ", ")
        rows.append(f"| {name} | {degrees} | {cells} |" + ("" if good else " **TOO FAR**"))
        print(rows[-1], flush=True)
    if arguments.write:
        exact = theirs.known[PLAIN][0][0]
        table = f"""# {STEPS} steps beside PyTorch

Written by `tests/torch/compare_training.py --write`, {datetime.date.today()}: torch {torch.__version__}, safetensors {safetensors.__version__}. A Llama of {LAYERS} layers of {HIDDEN}
({HEADS} heads, {KV_HEADS} of keys and values; with experts a Mixtral, {CHOSEN} of {EXPERTS}), {BATCH} samples of {TOKENS} bytes a step, AdamW at {RATE:g}, clipping at {CLIPPED.clipping:g}, decay {DECAYED.decay:g} of what is
no norm; the first and last loss of the plain recipe are {exact[0]:.4f} and {exact[-1]:.4f}. Largest relative differences from torch in fp64: of a step's loss, of
a tensor of weights at the end (norm over norm), and that over how far training moved the tensor. Each beside what torch itself
differs by in fp32, or in bf16 (weights, activations and their gradients in bf16, masters and sums of gradients in fp32: `Tensor.to(bfloat16)`, no
autocast), the largest of {2 * len(PARTS)} runs that take a step's samples in other orders and sizes and begin one unit in the last place off; smexec may differ by {FACTOR} times as much.

| | plan | loss | torch | weights | torch | of their way | torch |
|---|---|---|---|---|---|---|---|
""" + "\n".join(rows) + "\n"
        (root / "tests" / "torch" / "compare_training.md").write_text(table)
    return 0 if is_good else 1


if __name__ == "__main__": sys.exit(main())
