#!/usr/bin/env python3
"""Writes what a torchtitan configuration resolves to as JSON, for `smplan import FILE --from torchtitan`. Run it
where torchtitan (0.3) is installed; no GPU is needed and nothing is trained.

    python3 interop/capture/torchtitan_config.py RANKS --module llama3 --config llama3_8b [torchtitan's options] > run.json

torchtitan's own parser reads the options, its ParallelDims the degrees for so many ranks, its own rule splits
the layers over stages. Exit status 2 with torchtitan's words where it refuses.
"""
import importlib.metadata
import json
import sys


def model_of(config):
    """The dimensions of a Llama; what is none has no description here: name it with --model."""
    model = config.model_spec.model
    if type(model).__qualname__ != "Llama3Model.Config":
        return None
    layer = model.layers[0]
    attention = layer.attention
    return {"name": config.model_spec.flavor, "hidden": model.dim,
            "layers": len(model.layers), "heads": attention.n_heads,
            "kv_heads": attention.n_kv_heads or attention.n_heads,
            "head_dimension": attention.head_dim or model.dim // attention.n_heads,
            "ffn": layer.feed_forward.w1.out_features, "vocabulary": model.vocab_size,
            "tied_embeddings": model.enable_weight_tying, "epsilon": model.norm.eps,
            "rotary_base": float(attention.rope.theta)}


def stages_of(config, dims):
    """Module names of every stage, and the layers that there are."""
    from torchtitan.distributed.pipeline_parallel import _generate_llm_fqn_per_model_part, _get_pipeline_metadata
    parallelism = config.parallelism
    if parallelism.module_fqns_per_model_part:
        return parallelism.module_fqns_per_model_part
    count, layers, first, last = _get_pipeline_metadata(dims, parallelism, config.model_spec.model)
    return _generate_llm_fqn_per_model_part(count, layers, first, last)


def optimizer_of(config):
    groups = config.optimizer.param_groups
    if len(groups) != 1:
        return {"name": f"{len(groups)} groups of parameters"}
    kwargs = groups[0].optimizer_kwargs
    betas = kwargs.get("betas", (0.9, 0.999))
    return {"name": groups[0].optimizer_name, "lr": kwargs["lr"], "beta1": betas[0], "beta2": betas[1],
            "eps": kwargs.get("eps", 1e-8), "weight_decay": kwargs.get("weight_decay", 0.01)}


def resolve(config, ranks):
    from torchtitan.distributed.fsdp import get_fsdp_reshard_after_forward_policy
    from torchtitan.distributed.parallel_dims import ParallelDims
    training, parallelism = config.training, config.parallelism
    dims = ParallelDims.from_config(parallelism, ranks)
    config.model_spec.model.update_from_config(config=config)
    replicas = dims.dp_replicate * dims.dp_shard
    batch = training.local_batch_size * replicas if training.global_batch_size < 0 else training.global_batch_size
    if batch % (training.local_batch_size * replicas) != 0:
        raise ValueError(f"global batch {batch} is no multiple of {training.local_batch_size} x {replicas}")
    has_pipeline = dims.pp > 1
    micro_batch = parallelism.pipeline_parallel_microbatch_size if has_pipeline else training.local_batch_size
    checkpointing = config.activation_checkpoint
    names = {type(part).__qualname__ for _, part, _, _ in config.model_spec.model.traverse(object, recurse=True)}
    return {
        "torchtitan": importlib.metadata.version("torchtitan"), "ranks": ranks,
        "degrees": {"dp_replicate": dims.dp_replicate, "dp_shard": dims.dp_shard, "cp": dims.cp, "tp": dims.tp,
                    "pp": dims.pp, "ep": dims.ep},
        "sequence_parallel": parallelism.enable_sequence_parallel,
        "reshards_after_forward": get_fsdp_reshard_after_forward_policy(parallelism.fsdp_reshard_after_forward, has_pipeline),
        "schedule": parallelism.pipeline_parallel_schedule if has_pipeline else "1F1B",
        "schedule_file": parallelism.pipeline_parallel_schedule_csv or "",
        "stages": stages_of(config, dims) if has_pipeline else [],
        "micro_batch": micro_batch, "micro_batches": training.local_batch_size // micro_batch,
        "accumulation": batch // (training.local_batch_size * replicas),
        "sequence_length": training.seq_len, "steps": training.steps, "max_norm": float(training.max_norm),
        "dtype": training.dtype, "mixed_precision_param": training.mixed_precision_param,
        "cpu_offload": training.enable_cpu_offload,
        "activation_checkpoint": type(checkpointing).__qualname__.split(".")[0] if checkpointing is not None else "none",
        "compiled": config.compile.enable and "model" in config.compile.components,
        "quantized": sorted(name for name in names if any(word in name for word in ("Float8", "MXFP8", "NVFP4"))),
        "seed": config.debug.seed, "optimizer": optimizer_of(config), "model": model_of(config)}


def main():
    words = sys.argv[1:]
    if len(words) < 3 or not words[0].isdigit():
        print(__doc__, file=sys.stderr)
        return 2
    from torchtitan.config import ConfigManager
    try:
        answer = resolve(ConfigManager().parse_args(words[1:]), int(words[0]))
    except (ValueError, AssertionError, NotImplementedError, ImportError) as error:
        print(f"torchtitan_config: {error}", file=sys.stderr)
        return 2
    print(json.dumps(answer, indent=1))
    return 0


sys.exit(main())
