#!/usr/bin/env python3
"""Holds entries of the catalogue against the definitions that torchtitan and Google's gemma package ship.

    venv/bin/python interop/check/catalogue.py        # torchtitan==0.3.0; gemma==3.3.0 (its source is enough)

Dimensions must be equal, and of torchtitan's models the number of parameters of the class itself, built on the
meta device. Prints a line an entry; exit status 1 where one differs. No weights, no hub.
"""
import ast
import glob
import importlib.util
import os
import sys
import tomllib

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
TORCHTITAN = {"llama3": {"1B": "llama-3.2-1b", "3B": "llama-3.2-3b", "8B": "llama-3.1-8b", "70B": "llama-3.1-70b"},
              "qwen3": {"0.6B": "qwen3-0.6b", "1.7B": "qwen3-1.7b", "4B": "qwen3-4b", "8B": "qwen3-8b",
                        "14B": "qwen3-14b", "32B": "qwen3-32b", "30B-A3B": "qwen3-30b-a3b",
                        "235B-A22B": "qwen3-235b-a22b"},
              "gpt_oss": {"20b": "gpt-oss-20b", "120b": "gpt-oss-120b"}}
GEMMA = {"Gemma3_1B": "gemma-3-1b", "Gemma3_4B": "gemma-3-4b", "Gemma3_12B": "gemma-3-12b",
         "Gemma3_27B": "gemma-3-27b"}


def catalogue():
    entries = {}
    for path in glob.glob(os.path.join(ROOT, "model", "catalog", "*.toml")):
        with open(path, "rb") as file:
            entries.update(tomllib.load(file))
    return entries


def torchtitan_dimensions(family, flavour):
    import torch
    module = importlib.import_module(f"torchtitan.models.{family}")
    table = getattr(module, {"llama3": "llama3_configs", "qwen3": "qwen3_configs", "gpt_oss": "gptoss_configs"}[family])
    make = table[flavour]
    needs_exchange = "moe_comm_backend" in make.__code__.co_varnames
    config = make(attn_backend="flex", moe_comm_backend="standard") if needs_exchange else make(attn_backend="flex")
    with torch.device("meta"):
        model = config.build()
    attention = config.layers[0].attention
    seen = {"vocabulary": config.vocab_size, "hidden": config.dim, "layers": len(config.layers),
            "heads": attention.n_heads, "kv_heads": attention.n_kv_heads, "tied_embeddings": config.enable_weight_tying,
            "published_parameters": sum(weight.numel() for weight in model.parameters())}
    if getattr(attention, "head_dim", None):
        seen["head_dimension"] = attention.head_dim
    if config.layers[0].feed_forward is not None:
        seen["ffn"] = config.layers[0].feed_forward.w1.out_features
    else:
        seen["experts"] = config.layers[0].moe.num_experts
        seen["experts_per_token"] = config.layers[0].moe.router.top_k
    return seen


def gemma_dimensions():
    """Read off the source of gemma/gm/nn/_gemma.py: importing it would need JAX."""
    found = importlib.util.find_spec("gemma")
    with open(os.path.join(found.submodule_search_locations[0], "gm", "nn", "_gemma.py")) as file:
        tree = ast.parse(file.read())
    numbers = {target.id: statement.value.value for statement in tree.body if isinstance(statement, ast.Assign)
               for target in statement.targets if isinstance(statement.value, ast.Constant)}

    def value(node):
        if isinstance(node, ast.BinOp):
            left, right = value(node.left), value(node.right)
            return left * right if isinstance(node.op, ast.Mult) else left // right
        return numbers[node.id] if isinstance(node, ast.Name) else node.value
    answers = {}
    for statement in tree.body:
        if not isinstance(statement, ast.ClassDef) or statement.name not in GEMMA:
            continue
        call = next(node for node in ast.walk(statement) if isinstance(node, ast.Call)
                    and any(keyword.arg == "embed_dim" for keyword in node.keywords))
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        layers = next(keyword.value for keyword in given["attention_types"].keywords if keyword.arg == "num_layers")
        answers[statement.name] = {
            "hidden": value(given["embed_dim"]), "ffn": value(given["hidden_dim"]), "heads": value(given["num_heads"]),
            "head_dimension": value(given["head_dim"]), "kv_heads": value(given["num_kv_heads"]),
            "window": value(given["sliding_window_size"]), "layers": value(layers),
            "window_rotary_base": value(given["local_base_frequency"]),
            "rotary_base": value(given["global_base_frequency"])}
    return answers


def main():
    entries, wrong = catalogue(), 0

    def judge(source, name, seen):
        differences = {key: (entries[name].get(key), value) for key, value in seen.items()
                       if entries[name].get(key) != value}
        print(f"{name:16} {source:24} {len(seen)} values" + (f" DIFFER (ours, theirs): {differences}" if differences else ""))
        return 1 if differences else 0

    if importlib.util.find_spec("torchtitan"):
        for family, flavours in TORCHTITAN.items():
            for flavour, name in flavours.items():
                wrong += judge(f"torchtitan {family} {flavour}", name, torchtitan_dimensions(family, flavour))
    if importlib.util.find_spec("gemma"):
        for made, seen in gemma_dimensions().items():
            wrong += judge(f"gemma {made}", GEMMA[made], seen)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
