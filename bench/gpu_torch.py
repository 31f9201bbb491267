"""PyTorch, eager and compiled, on the shapes of scenarios/gpu_*.toml: step time, tokens a second and MFU of the same models on the same card.

Needs a GPU and torch; no part of the project needs this file. The models are written out here so that nothing but torch is imported: GPT-2 (learned
positions, pre-norm, tied head, tanh GELU, no dropout) and Llama (RMS norm, rotary positions, grouped-query attention, SwiGLU, untied head). Attention is
torch's scaled_dot_product_attention (flash), the optimizer its fused AdamW. Two precisions: "autocast" keeps fp32 parameters as most recipes do, "bf16"
casts the whole model.
"""
import argparse
import json
import math
import statistics
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

MODELS = {
    "gpt2-124m": dict(kind="gpt2", hidden=768, layers=12, heads=12, vocabulary=50304, tokens=1024, batch=32),
    "gpt2-1.5b": dict(kind="gpt2", hidden=1600, layers=48, heads=25, vocabulary=50304, tokens=1024, batch=8),
    "llama-1b": dict(kind="llama", hidden=2048, ffn=5632, layers=22, heads=32, kv_heads=4, vocabulary=32000, tokens=2048, batch=8),
}


class GptLayer(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        b, t, h = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, h // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, h)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, hidden, layers, heads, vocabulary, tokens, **_):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, hidden), nn.Embedding(tokens, hidden)
        self.layers = nn.ModuleList(GptLayer(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, ids, labels):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(F.linear(self.norm(x), self.tokens.weight).view(-1, self.tokens.weight.shape[0]), labels.view(-1))


class LlamaLayer(nn.Module):
    def __init__(self, hidden, ffn, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.d = heads, kv_heads, hidden // heads
        self.norm1, self.norm2 = nn.RMSNorm(hidden, eps=1e-5), nn.RMSNorm(hidden, eps=1e-5)
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * self.d, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.gate_up, self.down = nn.Linear(hidden, 2 * ffn, bias=False), nn.Linear(ffn, hidden, bias=False)

    @staticmethod
    def turn(x, cosine, sine):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)

    def forward(self, x, cosine, sine):
        b, t, h = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, -1, self.d).transpose(1, 2).split([self.heads, self.kv_heads, self.kv_heads], 1)
        q, k = self.turn(q, cosine, sine), self.turn(k, cosine, sine)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).reshape(b, t, h)
        x = x + self.out(y)
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, hidden, ffn, layers, heads, kv_heads, vocabulary, tokens, **_):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(LlamaLayer(hidden, ffn, heads, kv_heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(hidden, eps=1e-5), nn.Linear(hidden, vocabulary, bias=False)
        half = hidden // heads // 2
        angle = torch.arange(tokens).float()[:, None] * 10000.0 ** (-torch.arange(half).float() / half)
        self.register_buffer("cosine", angle.cos())
        self.register_buffer("sine", angle.sin())

    def forward(self, ids, labels):
        x = self.embedding(ids)
        cosine, sine = self.cosine.to(x.dtype), self.sine.to(x.dtype)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        return F.cross_entropy(self.head(self.norm(x)).view(-1, self.head.weight.shape[0]), labels.view(-1))


def flops_of_step(m):
    """Model FLOPs as smexec counts them: 2 per multiply-add, three passes, causal attention as the full square."""
    h, t, layers = m["hidden"], m["tokens"], m["layers"]
    if m["kind"] == "gpt2":
        products = layers * 12 * h * h
    else:
        d = h // m["heads"]
        products = layers * (h * (m["heads"] + 2 * m["kv_heads"]) * d + h * h + 3 * h * m["ffn"])
    return 3 * m["batch"] * t * (2 * (products + h * m["vocabulary"]) + layers * 4 * t * h)


def measure(name, precision, steps, mode):
    m = MODELS[name]
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    with torch.device("cuda"):  # parameters are made there: a billion on the host take half a minute
        model = (Gpt if m["kind"] == "gpt2" else Llama)(**{k: v for k, v in m.items() if k not in ("kind", "batch")})
    if precision == "bf16":
        model = model.bfloat16()
    if mode == "compiled":
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    ids = torch.randint(0, m["vocabulary"], (m["batch"], m["tokens"] + 1), device="cuda")
    times, loss = [], None
    for _ in range(steps):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "autocast"):
            loss = model(ids[:, :-1], ids[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    time = statistics.median(times[3:])
    return dict(model=name, framework="torch " + torch.__version__, mode=mode, precision=precision, step_s=time, tokens_per_s=m["batch"] * m["tokens"] / time,
                model_tflops=flops_of_step(m) / time / 1e12, peak_gib=torch.cuda.max_memory_allocated() / 2**30, loss=float(loss.detach()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS), help="names of models, or of scenarios (gpu_gpt2_124m, gpu_gpt2_xl, gpu_llama_1b)")
    parser.add_argument("--steps", type=int, default=15)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("skipped: torch sees no GPU")
    scenarios = {"gpu_gpt2_124m": "gpt2-124m", "gpu_gpt2_xl": "gpt2-1.5b", "gpu_llama_1b": "llama-1b"}
    for name in arguments.models:
        name = scenarios.get(name, name)
        for precision, mode in (("autocast", "eager"), ("bf16", "eager"), ("autocast", "compiled"), ("bf16", "compiled")):
            torch.cuda.reset_peak_memory_stats()
            torch.compiler.reset()
            try:
                result = measure(name, precision, arguments.steps, mode)
            except RuntimeError as problem:  # out of memory among others: the next may do
                result = dict(model=name, precision=precision, mode=mode, error=str(problem).splitlines()[0])
            print(json.dumps(result), flush=True)
            torch.cuda.empty_cache()
