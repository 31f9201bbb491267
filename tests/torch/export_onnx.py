#!/usr/bin/env python3
"""Exports a GPT-2 and a BERT by torch.onnx, reads both with smsim and plans them with smplan.

Skips aloud (exit 77) where torch, onnx or transformers is missing. Usage: export_onnx.py BUILD_DIRECTORY
"""
import json
import os
import subprocess
import sys
import tempfile

try:
    import onnx  # noqa: F401  (torch.onnx writes through it)
    import torch
    import transformers
except (ImportError, OSError) as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


class Logits(torch.nn.Module):
    """One tensor in, one tensor out: what a training graph computes from ids."""

    def __init__(self, model, pick):
        super().__init__()
        self.model, self.pick = model, pick

    def forward(self, ids):
        # With a mask given, no exporter meets the search for packed sequences (aten::diff) of newer transformers.
        return self.pick(self.model(ids, attention_mask=torch.ones_like(ids), return_dict=True))


def gpt2():
    config = transformers.GPT2Config(n_layer=4, n_embd=128, n_head=4, vocab_size=1000, n_positions=32, use_cache=False, attn_implementation="eager")
    return transformers.GPT2LMHeadModel(config), lambda out: out.logits


def bert():
    config = transformers.BertConfig(num_hidden_layers=4, hidden_size=128, num_attention_heads=4, intermediate_size=512, vocab_size=1000, max_position_embeddings=32,
                                     attn_implementation="eager")
    return transformers.BertModel(config, add_pooling_layer=False), lambda out: out.last_hidden_state


def parameters_of(model):
    return sum(p.numel() for p in model.parameters())  # tied ones once


def exporters():
    """The default exporter needs torch 2.9 and onnxscript; older ones are tried with TorchScript alone."""
    try:
        import onnxscript  # noqa: F401
    except (ImportError, OSError):
        return (False,)
    return (False, True) if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 9) else (False,)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def main():
    build = sys.argv[1] if len(sys.argv) > 1 else "build"
    with tempfile.TemporaryDirectory() as folder:
        for name, make, is_default in ((name, make, is_default) for name, make in (("gpt2", gpt2), ("bert", bert)) for is_default in exporters()):
            model, pick = make()
            path = os.path.join(folder, name + ".onnx")
            with torch.no_grad():
                for parameter in model.parameters():  # the exporter writes equal weights once: fresh norms and biases are all equal
                    parameter.add_(0.01 * torch.randn_like(parameter))
                # The TorchScript exporter, or the one that is the default since 2.9, at the operator set that is its own default (20 in torch 2.15).
                how = {"dynamo": True, "verbose": False} if is_default else {"dynamo": False, "opset_version": 17}
                torch.onnx.export(Logits(model.eval(), pick), (torch.zeros(1, 32, dtype=torch.long),), path, input_names=["ids"], **how)
            read = run(os.path.join(build, "smsim"), "model", path, "--json")
            want = parameters_of(model)
            # TorchScript's exporter writes GPT-2's tied head once more, transposed.
            if name == "gpt2" and not is_default:
                want += 1000 * 128
            # The default exporter looks token types up itself: a row for each of 32 tokens instead of a table of two.
            if name == "bert" and is_default:
                want += (32 - 2) * 128
            if read["parameters"] != want:
                sys.exit(f"{name}: {read['parameters']} parameters read, torch counts {want}")
            part = run(os.path.join(build, "smplan"), "partition", "--graph", path, "--devices", "4", "--json")
            assert part["proven_optimal"], part
            operators = run(os.path.join(build, "smplan"), "partition", "--graph", path, "--devices", "4", "--granularity", "operator", "--json")
            assert operators["objective"] <= part["objective"] * (1 + 1e-9), (operators["objective"], part["objective"])
            plans = run(os.path.join(build, "smplan"), "--target", "p3.16xlarge", "--nodes", "1", "--model", path, "--global-batch", "64", "--json")
            assert plans["plans"], plans
            best = plans["plans"][0]
            print(f"{name}: {read['parameters']} parameters, {read['forward_flops_per_sample'] / 1e9:.3f} GFLOP; "
                  f"{len(part['stages'])} stages of at most {part['objective'] * 1e3:.3f} ms (operators: {operators['objective'] * 1e3:.3f} ms); "
                  f"best plan {best['step_time_s'] * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
