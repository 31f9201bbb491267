#!/usr/bin/env python3
"""smexec beside PyTorch on this machine: the same GPT with the same weights on the same text, and the same pipeline of two ranks.

  bench/against_torch.py                 what is equal (loss, gradients, parameters after a step) and who is faster; exits 1 when a figure is beyond its bound
  bench/against_torch.py --write         also writes the figures into docs/accuracy.md, with machine and date

Without torch it says "skipped: ..." and exits 77; no part of the project needs torch. Weights travel through smexec's checkpoints: torch starts from that of
step k, computes the step after it, and the gradient that smexec had there is read from the first moments of the checkpoints on either side,
g = (m[k+1] - beta1 m[k]) / (1 - beta1). Torch's pipeline is torch.distributed.pipelining (Schedule1F1B, gloo, one thread a rank, each rank on a core of its own,
AdamW fused), the tied embedding reduced over both stages as smexec's is. Runs of both alternate, because the speed of a virtual machine drifts.
"""
import argparse, importlib.util, json, os, socket, statistics, struct, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TEXT = "/usr/share/common-licenses/GPL-3"  # of Debian's base-files
BETA1, BETA2, EPSILON, RATE = 0.9, 0.999, 1e-8, 3e-4
MODELS = {"tiny": dict(hidden=128, layers=4, heads=4, vocabulary=256, tokens=128), "wide": dict(hidden=320, layers=8, heads=8, vocabulary=256, tokens=128)}


def plan_text(m, micro_batches):
    return (f'version = 1\n[model]\nfamily = "gpt"\nname = "gpt"\nhidden = {m["hidden"]}\nlayers = {m["layers"]}\nheads = {m["heads"]}\nvocabulary = {m["vocabulary"]}\n'
            f'max_positions = {m["tokens"]}\nsequence_length = {m["tokens"]}\nactivation = "gelu_tanh"\nepsilon = 1e-5\n[cluster]\ninstance = "local-cpu"\nnodes = 1\n'
            f'[plan]\npipeline_parallel = 2\nschedule = "1f1b"\nmicro_batch = 1\nmicro_batches = {micro_batches}\nprecision = "fp32"\n'
            f'[training]\noptimizer = "adamw"\nlearning_rate = {RATE}\nbeta1 = {BETA1}\nbeta2 = {BETA2}\nepsilon = {EPSILON}\nweight_decay = 0.0\nseed = 7\n')


def samples(m, first, count):
    """As smexec reads a text: windows of tokens + 1 bytes that share one byte with the next; inputs and the bytes after them."""
    text, width = open(TEXT, "rb").read(), m["tokens"] + 1
    rows = [text[start:start + width] for start in ((s * (width - 1)) % (len(text) - width + 1) for s in range(first, first + count))]
    return [list(row[:-1]) for row in rows], [list(row[1:]) for row in rows]


def read_checkpoint(folder):
    """{kind: {parameter: bytes of fp32}}, kind 0 the value, 1 and 2 the moments; the layout is exec/checkpoint/rank_file.h's."""
    arrays = {0: {}, 1: {}, 2: {}}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors"): continue
        content = open(f"{folder}/{name}", "rb").read()
        (length,) = struct.unpack_from("<Q", content)
        header = json.loads(content[8:8 + length])
        words = header.pop("__metadata__")
        for array, entry in header.items():
            kind, parameter = array.split("/", 1)
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            assert words[f"elements/{array}"] == f"0+{(end - begin) // 4}", "this plan splits no parameter"
            arrays[("values", "first_moments", "second_moments").index(kind)][parameter] = content[begin:end]
    return arrays


def build(m, stages, stage):
    """The stage's module; its parameters bear smexec's names. One stage: the whole model."""
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
    h = m["hidden"]

    def linear(inputs, outputs): return nn.ParameterDict({"weight": nn.Parameter(torch.zeros(outputs, inputs)), "bias": nn.Parameter(torch.zeros(outputs))})
    def norm(): return nn.ParameterDict({"scale": nn.Parameter(torch.ones(h)), "shift": nn.Parameter(torch.zeros(h))})

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention_norm, self.mlp_norm = norm(), norm()
            self.attention = nn.ModuleDict({"qkv": linear(h, 3 * h), "output": linear(h, h)})
            self.mlp = nn.ModuleDict({"up": linear(h, 4 * h), "down": linear(4 * h, h)})

        def forward(self, x):
            b, t, _ = x.shape
            y = F.layer_norm(x, (h,), self.attention_norm["scale"], self.attention_norm["shift"], 1e-5)
            q, k, v = F.linear(y, **self.attention["qkv"]).view(b, t, 3, m["heads"], -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, h)
            x = x + F.linear(y, **self.attention["output"])
            y = F.layer_norm(x, (h,), self.mlp_norm["scale"], self.mlp_norm["shift"], 1e-5)
            return x + F.linear(F.gelu(F.linear(y, **self.mlp["up"]), approximate="tanh"), **self.mlp["down"])

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            first, last = m["layers"] * stage // stages, m["layers"] * (stage + 1) // stages
            self.is_first, self.is_last = stage == 0, stage == stages - 1
            self.embedding = nn.ModuleDict({"tokens": nn.ParameterDict({"weight": nn.Parameter(torch.zeros(m["vocabulary"], h))})} if self.is_first or self.is_last else {})
            if self.is_first: self.embedding["positions"] = nn.ParameterDict({"weight": nn.Parameter(torch.zeros(m["tokens"], h))})
            self.layers = nn.ModuleDict({str(i): Layer() for i in range(first, last)})
            self.head = nn.ModuleDict({"norm": norm()} if self.is_last else {})

        def forward(self, x):
            if self.is_first: x = F.embedding(x, self.embedding["tokens"]["weight"]) + self.embedding["positions"]["weight"]
            for layer in self.layers.values(): x = layer(x)
            if self.is_last: x = F.linear(F.layer_norm(x, (h,), self.head["norm"]["scale"], self.head["norm"]["shift"], 1e-5), self.embedding["tokens"]["weight"])
            return x

    return Stage()


def load(module, arrays):
    import torch
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.frombuffer(bytearray(arrays[name]), dtype=torch.float32).view_as(parameter))


def loss_of(logits, labels):
    import torch.nn.functional as F
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def run_smexec(options, folder, m, micro_batches, steps, *more):
    path = f"{folder}/plan.toml"
    open(path, "w").write(plan_text(m, micro_batches))
    done = subprocess.run([options.smexec, path, "--data", TEXT, "--steps", str(steps), "--no-compare", "--json", *more], capture_output=True, text=True)
    if done.returncode: sys.exit(f"smexec: exit {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
    return json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("{"):])[0]


def run_smexec_processes(options, folder, m, micro_batches, steps):
    """Two processes of torchrun, which talk over TCP."""
    path = f"{folder}/plan.toml"
    open(path, "w").write(plan_text(m, micro_batches))
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2", "--master-port", str(free_port()), options.smexec, path, "--data", TEXT,
                           "--steps", str(steps), "--no-compare", "--json"], capture_output=True, text=True)
    if done.returncode: sys.exit(f"smexec under torchrun: exit {done.returncode}: {done.stderr.strip()[-2000:]}")
    result = json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("{"):])[0]
    assert result["ranks"] == 2 and result["transport"] == "TCP", "torchrun's variables make two processes over TCP"
    return result


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def compare_values(options, name, micro_batches):
    """The largest relative difference of the loss, of any parameter's gradient (norm of the difference over norm), and of any parameter after the step."""
    import torch
    m = MODELS[name]
    step = 3  # from 3 to 4: moments are there
    with tempfile.TemporaryDirectory() as folder:
        states = f"{folder}/states"
        ours = run_smexec(options, folder, m, micro_batches, step + 1, "--checkpoint", states, "--every", "1")
        before, after = (read_checkpoint(f"{states}/step-{s:08}") for s in (step, step + 1))
    model = build(m, 1, 0)
    load(model, before[0])
    ids, labels = (torch.tensor(rows) for rows in samples(m, step * micro_batches, micro_batches))
    loss = loss_of(model(ids), labels)
    loss.backward()
    result = {"loss": abs(loss.item() - ours["losses"][step]) / loss.item(), "gradients": 0.0, "parameters": 0.0, "losses": (ours["losses"][step], loss.item())}
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(BETA1, BETA2), eps=EPSILON, weight_decay=0)
    def tensor(arrays, kind, name, like): return torch.frombuffer(bytearray(arrays[kind][name]), dtype=torch.float32).view_as(like)
    for name, parameter in model.named_parameters():
        first = [tensor(a, 1, name, parameter).double() for a in (before, after)]
        own = (first[1] - BETA1 * first[0]) / (1 - BETA1)
        result["gradients"] = max(result["gradients"], ((parameter.grad.double() - own).norm() / own.norm()).item())
        optimizer.state[parameter] = {"step": torch.tensor(float(step)), "exp_avg": first[0].float(), "exp_avg_sq": tensor(before, 2, name, parameter).clone()}
    optimizer.step()
    for name, parameter in model.named_parameters():
        own = tensor(after, 0, name, parameter)
        result["parameters"] = max(result["parameters"], ((parameter.detach() - own).norm() / own.norm()).item())
    return result


def torch_rank(name, micro_batches, steps):
    """One rank of torch's pipeline; prints the times of its steps and, on the last stage, the losses."""
    import datetime
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    rank, m = int(os.environ["RANK"]), MODELS[name]
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= 2: os.sched_setaffinity(0, {cores[rank]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    torch.manual_seed(rank)
    module = build(m, 2, rank)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1: parameter.normal_(0, 0.02)
    tied = module.embedding["tokens"]["weight"]
    dist.broadcast(tied.data, 0)
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, micro_batches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE, betas=(BETA1, BETA2), eps=EPSILON, weight_decay=0, fused=True)
    times, losses = [], []
    for step in range(steps):
        ids, labels = (torch.tensor(rows) for rows in samples(m, step * micro_batches, micro_batches))
        dist.barrier()
        start = time.perf_counter()
        of_step = []
        if rank == 0: schedule.step(ids)
        else: schedule.step(target=labels, losses=of_step)
        dist.all_reduce(tied.grad)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - start)
        if of_step: losses.append(sum(loss.item() for loss in of_step) / micro_batches)
    all_times = [None, None]
    dist.all_gather_object(all_times, times)
    if rank == 1: print(json.dumps({"times": [max(pair) for pair in zip(*all_times)], "losses": losses}))
    dist.destroy_process_group()


def run_torch(name, micro_batches, steps):
    port, ranks = free_port(), []
    for rank in range(2):
        environment = os.environ | dict(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
        ranks.append(subprocess.Popen([sys.executable, __file__, "--torch-rank", name, str(micro_batches), str(steps)], env=environment, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True))
    results = [rank.communicate() for rank in ranks]
    if any(rank.returncode for rank in ranks): sys.exit("torch: " + next(err for rank, (_, err) in zip(ranks, results) if rank.returncode)[-2000:])
    return json.loads(results[1][0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smexec", default=os.path.join(ROOT, "build", "smexec"))
    parser.add_argument("--rounds", type=int, default=5, help="of torch, threads and processes in turn")
    parser.add_argument("--steps", type=int, default=24, help="a round; the first four are left out")
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--torch-rank", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.torch_rank: return torch_rank(options.torch_rank[0], int(options.torch_rank[1]), int(options.torch_rank[2]))
    if importlib.util.find_spec("torch") is None:
        print("skipped: torch is not installed for this python")
        sys.exit(77)
    if not os.path.exists(TEXT):
        print(f"skipped: {TEXT}, which is the text, is not on this machine")
        sys.exit(77)
    import torch
    is_good, lines = True, []
    for name, m in MODELS.items():
        differences = compare_values(options, name, options.micro_batches)
        mine, theirs = differences["losses"]
        lines.append(f"GPT of {m['layers']} layers of {m['hidden']}, {options.micro_batches} samples of {m['tokens']} bytes, weights after 3 steps: loss {mine:.6f} here and {theirs:.6f} in torch "
                     f"({differences['loss']:.1e} apart); gradients at most {differences['gradients']:.1e} apart, parameters after the step {differences['parameters']:.1e}.")
        is_good &= differences["loss"] < 1e-4 and differences["gradients"] < 1e-4
        print(lines[-1], flush=True)
    rows = []
    for name, m in MODELS.items():
        times = {"torch, gloo": [], "smexec, threads": [], "smexec, processes of torchrun": []}
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(options.rounds):
                times["torch, gloo"] += run_torch(name, options.micro_batches, options.steps)["times"][4:]
                times["smexec, threads"] += run_smexec(options, folder, m, options.micro_batches, options.steps, "--ranks-from", "threads")["step_times_s"][4:]
                times["smexec, processes of torchrun"] += run_smexec_processes(options, folder, m, options.micro_batches, options.steps)["step_times_s"][4:]
        medians = {who: statistics.median(values) for who, values in times.items()}
        for who, median in medians.items():
            ratio = medians["torch, gloo"] / median
            rows.append(f"| {m['layers']} x {m['hidden']} | {who} | {1e3 * median:.1f} ms | {1e3 * min(times[who]):.1f} ms | {ratio:.2f} |")
            print(f"{name}: {who}: median {1e3 * median:.1f} ms, least {1e3 * min(times[who]):.1f} ms, torch takes {ratio:.2f} times as long", flush=True)
            is_good &= ratio >= 1
    if options.write:
        sys.path.insert(0, os.path.join(ROOT, "bench"))
        import executor_accuracy
        body = "\n\n".join(lines) + (f"\n\nA step of two pipeline stages on two cores, 1F1B, {options.micro_batches} micro-batches of one sample, AdamW, tied embedding; "
                                     f"torch {torch.__version__}, {options.rounds} rounds in turn:\n\n| layers x width | who | median step | least | torch takes times as long |\n|---|---|--:|--:|--:|\n"
                                     + "\n".join(rows))
        executor_accuracy.write_section("torch", "Beside PyTorch", body, "bench/against_torch.py --write")
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
