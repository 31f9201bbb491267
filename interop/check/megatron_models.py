#!/usr/bin/env python3
"""Whether the arguments that `smplan export --to megatron` writes of a model make Megatron-LM build that very model.

    MEGATRON_LM=checkout venv/bin/python interop/check/megatron_models.py [MODEL...] --smplan build/smplan --smsim build/smsim

Of every model (by default one of each kind that the arguments say) a plan with data parallelism alone is exported; Megatron-LM's
own parser reads it and its own classes (of its local implementation) are built on the meta device: their parameters must be as many
as smsim counts. What is stood in for: a GPU, and the width of values in its local attention, which has no parameters.
Exit status 1 where one differs. The interpreter needs what exports.py says for `megatron`.
"""
import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile

import exports
import winners

MODELS = ["gpt2-xl", "gpt3-175b", "llama-2-70b", "llama-3.1-405b", "mistral-7b", "mixtral-8x7b", "mixtral-8x22b", "qwen2-7b", "qwen3-8b",
          "qwen3-30b-a3b", "qwen3-235b-a22b", "gpt-oss-20b", "gpt-oss-120b", "deepseek-v3"]
# The local implementation has no fusions, and experts one by one: as many parameters.
LOCAL = ["--transformer-impl", "local", "--use-cpu-initialization", "--no-persist-layer-norm", "--no-rope-fusion",
         "--no-gradient-accumulation-fusion", "--no-masked-softmax-fusion", "--no-bias-swiglu-fusion", "--no-bias-gelu-fusion"]
NOT_LOCAL = {"--use-flash-attn": 0, "--moe-grouped-gemm": 0, "--overlap-grad-reduce": 0, "--ddp-bucket-size": 1}


def exported(smplan, model, tokens, folder):
    path = os.path.join(folder, "plan.toml")
    with open(path, "w") as file:
        file.write(f'version = 1\n[model]\nname = "{model}"\nsequence_length = {tokens}\n[cluster]\ninstance = "p5.48xlarge"\nnodes = 1\n'
                   "[plan]\ndata_parallel = 8\nmicro_batch = 1\n")
    return winners.export(smplan, path, "megatron")


def counted(smsim, model, tokens):
    done = subprocess.run([smsim, "model", model, "--seq-len", str(tokens), "--json"], capture_output=True, text=True)
    return json.loads(done.stdout)["parameters"]


def built(words):
    """Parameters of the model that Megatron-LM builds; in a process of its own, as its state is global."""
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT="29571",
                      CUDA_DEVICE_MAX_CONNECTIONS="1")
    import torch
    torch.cuda.current_device = lambda: "meta"
    torch.cuda.is_available = lambda: False
    torch.cuda.Stream = type("Stream", (), {})
    exports.megatron_source()
    args = exports.megatron_arguments(words)
    from megatron.training.arguments import core_transformer_config_from_args
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    from megatron.core import parallel_state
    parallel_state.initialize_model_parallel()
    config = core_transformer_config_from_args(args)
    config.params_dtype = torch.float32
    config.perform_initialization = False
    import megatron.core.transformer.dot_product_attention as attention
    plain = attention.DotProductAttention.__init__
    attention.DotProductAttention.__init__ = lambda self, *a, k_channels=None, v_channels=None, **k: plain(self, *a, **k)
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt import gpt_layer_specs as specs
    if args.num_experts:
        spec = specs.get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=args.normalization)
    else:
        spec = specs.get_gpt_layer_local_spec(None, False, args.qk_layernorm, args.multi_latent_attention, normalization=args.normalization)
    with torch.device("meta"):
        model = GPTModel(config=config, transformer_layer_spec=spec, vocab_size=args.vocab_size,
                         max_sequence_length=args.max_position_embeddings, pre_process=True, post_process=True,
                         share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
                         position_embedding_type=args.position_embedding_type, rotary_percent=args.rotary_percent,
                         rotary_base=args.rotary_base)
    return sum(parameter.numel() for parameter in model.parameters())


def without(words, dropped):
    kept, skip = [], 0
    for word in words:
        if skip > 0:
            skip -= 1
        elif word in dropped:
            skip = dropped[word]
        else:
            kept.append(word)
    return kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--smplan", default="build/smplan")
    parser.add_argument("--smsim", default="build/smsim")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--build", metavar="FILE", help=argparse.SUPPRESS)  # arguments; the child of this program
    options = parser.parse_args()
    if options.build:
        with open(options.build) as file:
            print(built(without(shlex.split(file.read()), NOT_LOCAL) + LOCAL))
        return 0
    if "MEGATRON_LM" not in os.environ:
        raise SystemExit("set MEGATRON_LM to a checkout of NVIDIA/Megatron-LM")
    failures = 0
    for model in options.models or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            document = exported(options.smplan, model, options.tokens, folder)
            if "errors" in document:
                print(f"{model:16} REFUSED: {document['errors'][0]['message']}")
                failures += 1
                continue
            arguments = os.path.join(folder, "arguments")
            with open(arguments, "w") as file:
                file.write(document["text"])
            child = subprocess.run([sys.executable, os.path.abspath(__file__), "--build", arguments], capture_output=True, text=True)
        ours = counted(options.smsim, model, options.tokens)
        theirs = int(child.stdout.split()[-1]) if child.returncode == 0 else None
        failures += theirs != ours
        reason = "" if theirs is not None else child.stderr.strip().splitlines()[-1][:200]
        print(f"{model:16} {'equal' if theirs == ours else 'DIFFERS'}: {ours:,} parameters" + (f", {theirs:,} built" if theirs else reason),
              flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
