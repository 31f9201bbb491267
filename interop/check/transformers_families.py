#!/usr/bin/env python3
"""Parameter counts and forward FLOPs of transformers' own classes, for tests/model/test_families.cpp.

    python3 -m venv venv
    venv/bin/pip install -r interop/check/requirements.txt
    venv/bin/python interop/check/transformers_families.py --write     # records interop/check/families.json
    venv/bin/python interop/check/transformers_families.py --smsim build/smsim [FAMILY...]   # a table

Of each family: the default configuration and six random ones. Parameters are counted on the meta device;
FLOPs by torch.utils.flop_counter with eager attention, of small models on the CPU, of large ones on the meta
device. Where the counter does not see a model's work, or a class does other work than its model, FLOPs are
null and `why` says so.
"""
import argparse
import datetime
import json
import os
import random
import subprocess
import sys
import tempfile
import warnings

import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()

HERE = os.path.dirname(os.path.abspath(__file__))
RECORD = os.path.join(HERE, "families.json")
TOKENS = 48
GENERIC = set(json.loads(transformers.PretrainedConfig().to_json_string(use_diff=False))) - {"model_type"}


def pick(r, *values):
    return r.choice(values)


def llama_like(r, **more):
    groups = pick(r, 1, 2, 4)
    heads = groups * pick(r, 1, 2, 3)
    c = dict(hidden_size=heads * pick(r, 16, 32), intermediate_size=pick(r, 96, 160, 224),
             num_hidden_layers=r.randint(2, 5), num_attention_heads=heads, num_key_value_heads=groups,
             vocab_size=r.randint(300, 900), max_position_embeddings=256,
             tie_word_embeddings=pick(r, True, False))
    c.update(more)
    return c


def with_head(r, **more):
    return llama_like(r, head_dim=pick(r, 16, 24, 32), **more)


def biased(r):
    return dict(attention_bias=pick(r, True, False))


def experts(r, key, **more):
    return dict({key: pick(r, 4, 6, 8), "num_experts_per_tok": pick(r, 1, 2, 3)}, **more)


def gpt(r, **more):
    heads = pick(r, 2, 3, 4)
    return dict(dict(n_embd=heads * 16, n_layer=r.randint(2, 5), n_head=heads, vocab_size=r.randint(300, 900),
                     n_positions=128, n_inner=pick(r, None, 100, 160),
                     tie_word_embeddings=pick(r, True, False)), **more)


def falcon(r):
    heads = pick(r, 2, 4)
    new = pick(r, True, False)
    return dict(hidden_size=heads * 16, num_hidden_layers=r.randint(2, 4), num_attention_heads=heads,
                vocab_size=r.randint(300, 900), bias=pick(r, True, False), multi_query=pick(r, True, False),
                new_decoder_architecture=new, num_kv_heads=pick(r, 1, 2) if new else None,
                parallel_attn=True if new else pick(r, True, False), alibi=pick(r, True, False),
                num_ln_in_parallel_attn=pick(r, None, 1, 2) if new else None,
                ffn_hidden_size=pick(r, 96, 200))


def deepseek(r, rank):
    heads = pick(r, 2, 4)
    return dict(hidden_size=pick(r, 64, 96), intermediate_size=160, moe_intermediate_size=pick(r, 32, 48),
                num_hidden_layers=r.randint(2, 5), num_attention_heads=heads, num_key_value_heads=heads,
                vocab_size=r.randint(300, 900), max_position_embeddings=256, q_lora_rank=rank,
                kv_lora_rank=pick(r, 24, 32), qk_nope_head_dim=pick(r, 16, 24), qk_rope_head_dim=8,
                v_head_dim=pick(r, 16, 20), n_routed_experts=8, n_shared_experts=pick(r, 1, 2),
                num_experts_per_tok=pick(r, 1, 2), first_k_dense_replace=pick(r, 0, 1),
                n_group=2, topk_group=1, attention_bias=pick(r, True, False), norm_topk_prob=pick(r, True, False))


def bert(r, **more):
    heads = pick(r, 2, 3, 4)
    return dict(dict(hidden_size=heads * 16, intermediate_size=pick(r, 96, 160), num_hidden_layers=r.randint(1, 4),
                     num_attention_heads=heads, vocab_size=r.randint(300, 900), max_position_embeddings=130,
                     type_vocab_size=pick(r, 1, 2), hidden_act=pick(r, "gelu", "gelu_new", "relu")), **more)


def t5(r, **more):
    return dict(dict(d_model=pick(r, 48, 64), d_kv=pick(r, 8, 16), d_ff=pick(r, 96, 128), num_layers=r.randint(1, 3),
                     num_decoder_layers=r.randint(1, 3), num_heads=pick(r, 2, 4), vocab_size=r.randint(300, 900),
                     relative_attention_num_buckets=pick(r, 16, 32), tie_word_embeddings=pick(r, True, False),
                     feed_forward_proj=pick(r, "relu", "gated-gelu", "gated-silu")), **more)


def vit(r):
    heads = pick(r, 2, 3)
    return dict(hidden_size=heads * 16, intermediate_size=pick(r, 96, 128), num_hidden_layers=r.randint(1, 4),
                num_attention_heads=heads, image_size=pick(r, 32, 64), patch_size=pick(r, 8, 16),
                num_channels=pick(r, 1, 3), qkv_bias=pick(r, True, False), num_labels=pick(r, 5, 10))


def swin(r):
    return dict(embed_dim=pick(r, 24, 48), depths=[pick(r, 1, 2), pick(r, 2, 4)], num_heads=pick(r, [1, 2], [2, 4]),
                image_size=pick(r, 64, 128), patch_size=4, window_size=pick(r, 4, 8), mlp_ratio=pick(r, 2.0, 4.0),
                num_channels=pick(r, 1, 3), num_labels=pick(r, 5, 10))


def mpt(r):
    heads = pick(r, 2, 4)
    return dict(d_model=heads * 16, n_layers=r.randint(1, 4), n_heads=heads, vocab_size=r.randint(300, 900),
                max_seq_len=128, tie_word_embeddings=pick(r, True, False))


def dbrx(r):
    heads = pick(r, 2, 4)
    return dict(d_model=heads * 16, n_layers=r.randint(1, 4), n_heads=heads, vocab_size=r.randint(300, 900),
                max_seq_len=128, attn_config=dict(rope_theta=10000.0, kv_n_heads=pick(r, 1, 2), clip_qkv=8.0),
                ffn_config=dict(ffn_hidden_size=pick(r, 64, 96), hidden_size=heads * 16,
                                moe_num_experts=pick(r, 4, 6), moe_top_k=pick(r, 1, 2)))


def gpt_neo(r):
    heads, pairs = pick(r, 2, 4), r.randint(1, 2)
    return dict(hidden_size=heads * 16, num_layers=2 * pairs, attention_types=[[["global", "local"], pairs]],
                num_heads=heads, vocab_size=r.randint(300, 900), max_position_embeddings=128,
                intermediate_size=pick(r, None, 100), window_size=16, tie_word_embeddings=pick(r, True, False))


def opt(r):
    heads = pick(r, 2, 4)
    return dict(hidden_size=heads * 16, word_embed_proj_dim=heads * 16, ffn_dim=pick(r, 96, 160),
                num_hidden_layers=r.randint(1, 4), num_attention_heads=heads, vocab_size=r.randint(300, 900),
                max_position_embeddings=128, enable_bias=pick(r, True, False))


def bloom(r):
    heads = pick(r, 2, 4)
    return dict(hidden_size=heads * 16, n_layer=r.randint(1, 4), n_head=heads, vocab_size=r.randint(300, 900))


def llama4(r):
    c = with_head(r, intermediate_size_mlp=pick(r, 96, 128), num_experts_per_tok=1,
                  interleave_moe_layer_step=pick(r, 1, 2), attention_chunk_size=64, use_qk_norm=pick(r, True, False),
                  attention_bias=pick(r, True, False))
    c["num_local_experts"] = pick(r, 1, 4)
    return c


def qwen_moe(r, **more):
    return llama_like(r, moe_intermediate_size=pick(r, 32, 48), decoder_sparse_step=pick(r, 1, 2),
                      mlp_only_layers=pick(r, [], [0]), **experts(r, "num_experts"), **more)


def no_groups(c):
    del c["num_key_value_heads"]
    return c


def two_stacks(r):
    heads, width = (pick(r, 2, 4), pick(r, 2, 4)), pick(r, 48, 64)
    return dict(d_model=width, encoder_layers=r.randint(1, 3), decoder_layers=r.randint(1, 3),
                encoder_attention_heads=heads[0], decoder_attention_heads=heads[1], encoder_ffn_dim=pick(r, 96, 128),
                decoder_ffn_dim=pick(r, 96, 160), vocab_size=r.randint(300, 900), pad_token_id=1,
                activation_function=pick(r, "gelu", "relu"), scale_embedding=pick(r, True, False))


def deberta(r):
    heads = pick(r, 2, 3, 4)
    c = dict(hidden_size=heads * 16, intermediate_size=pick(r, 96, 160), num_hidden_layers=r.randint(1, 4),
             num_attention_heads=heads, vocab_size=r.randint(300, 900), max_position_embeddings=130,
             type_vocab_size=pick(r, 0, 2), position_biased_input=pick(r, True, False))
    if r.random() < 0.8:
        c.update(relative_attention=True, position_buckets=pick(r, -1, 16), share_att_key=pick(r, True, False),
                 pos_att_type=pick(r, ["c2p"], ["p2c"], ["p2c", "c2p"]), norm_rel_ebd=pick(r, "none", "layer_norm"))
    if r.random() < 0.4:
        c.update(conv_kernel_size=3, conv_act=pick(r, "gelu", "tanh"), conv_groups=pick(r, 1, 2))
    if r.random() < 0.3:
        c.update(embedding_size=24)
    return c


def clip(r):
    def tower(**more):
        heads = pick(r, 2, 3, 4)
        return dict(hidden_size=heads * 16, intermediate_size=pick(r, 96, 160), num_hidden_layers=r.randint(1, 3),
                    num_attention_heads=heads, hidden_act=pick(r, "quick_gelu", "gelu"), **more)
    words = r.randint(300, 900)
    return dict(text_config=tower(vocab_size=words, max_position_embeddings=pick(r, 20, 40), bos_token_id=1,
                                  eos_token_id=words - 1),
                vision_config=tower(image_size=pick(r, 32, 64), patch_size=pick(r, 8, 16), num_channels=pick(r, 1, 3)),
                projection_dim=pick(r, 24, 48))


VARIATIONS = {
    "bart": lambda r: dict(two_stacks(r), max_position_embeddings=pick(r, 64, 100)),
    "bert": bert,
    "bloom": bloom,
    "camembert": bert,
    "clip": clip,
    "cohere": lambda r: llama_like(r, use_qk_norm=pick(r, True, False), **biased(r)),
    "cohere2": lambda r: with_head(r, sliding_window=16, **biased(r)),
    "dbrx": dbrx,
    "deberta-v2": deberta,
    "deepseek_v2": lambda r: deepseek(r, pick(r, None, 24)),
    "deepseek_v3": lambda r: deepseek(r, pick(r, None, 24)),
    "deit": vit,
    "distilbert": lambda r: dict(dim=(h := pick(r, 2, 4)) * 16, n_heads=h, n_layers=r.randint(1, 4),
                                 hidden_dim=pick(r, 96, 160), vocab_size=r.randint(300, 900),
                                 max_position_embeddings=128),
    "falcon": falcon,
    "gemma": lambda r: with_head(r, **biased(r)),
    "gemma2": lambda r: with_head(r, sliding_window=16, query_pre_attn_scalar=pick(r, 16, 100),
                                  attn_logit_softcapping=pick(r, None, 50.0), **biased(r)),
    "gemma3": lambda r: dict(text_config=with_head(r, sliding_window=16, **biased(r)),
                             tie_word_embeddings=pick(r, True, False),
                             vision_config=dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                                                num_attention_heads=2, image_size=224, patch_size=14)),
    "gemma3_text": lambda r: with_head(r, sliding_window=16, **biased(r)),
    "glm": lambda r: with_head(r, **biased(r)),
    "glm4": lambda r: with_head(r, **biased(r)),
    "glm4_moe": lambda r: with_head(r, moe_intermediate_size=32, n_routed_experts=8, num_experts_per_tok=2,
                                    n_shared_experts=pick(r, 1, 2), first_k_dense_replace=pick(r, 0, 1, 2),
                                    use_qk_norm=pick(r, True, False), **biased(r)),
    "gpt2": gpt,
    "gpt_bigcode": lambda r: gpt(r, multi_query=pick(r, True, False)),
    "gpt_neo": gpt_neo,
    "gpt_neox": lambda r: no_groups(llama_like(r, use_parallel_residual=pick(r, True, False),
                                               attention_bias=pick(r, True, False))),
    "gpt_oss": lambda r: with_head(r, sliding_window=16, **biased(r), **experts(r, "num_local_experts")),
    "gptj": lambda r: gpt(r, rotary_dim=pick(r, 8, 16)),
    "granite": lambda r: llama_like(r, mlp_bias=pick(r, True, False), embedding_multiplier=pick(r, 1.0, 12.0),
                                    logits_scaling=pick(r, 1.0, 8.0), residual_multiplier=pick(r, 1.0, 0.22),
                                    attention_multiplier=0.0625, **biased(r)),
    "granitemoe": lambda r: llama_like(r, attention_multiplier=0.0625, **biased(r),
                                       **experts(r, "num_local_experts")),
    "llama": lambda r: with_head(r, mlp_bias=pick(r, True, False), **biased(r)),
    "llama4": lambda r: dict(text_config=llama4(r), tie_word_embeddings=pick(r, True, False)),
    "llama4_text": llama4,
    "mistral": lambda r: with_head(r, sliding_window=pick(r, None, 16)),
    "mixtral": lambda r: with_head(r, sliding_window=pick(r, None, 16), **experts(r, "num_local_experts")),
    "modernbert": lambda r: dict(hidden_size=(h := pick(r, 2, 4)) * 16, intermediate_size=pick(r, 96, 64),
                                 num_hidden_layers=r.randint(2, 5), num_attention_heads=h,
                                 vocab_size=r.randint(300, 900), max_position_embeddings=256,
                                 local_attention=16, norm_bias=pick(r, True, False), mlp_bias=pick(r, True, False),
                                 attention_bias=pick(r, True, False), decoder_bias=pick(r, True, False),
                                 classifier_bias=pick(r, True, False)),
    "mpt": mpt,
    "mt5": t5,
    "olmo": lambda r: llama_like(r, clip_qkv=pick(r, None, 8.0), **biased(r)),
    "olmo2": lambda r: llama_like(r, **biased(r)),
    "olmo3": lambda r: llama_like(r, sliding_window=16, **biased(r)),
    "olmoe": lambda r: llama_like(r, norm_topk_prob=pick(r, True, False), **biased(r), **experts(r, "num_experts")),
    "opt": opt,
    "phi": lambda r: llama_like(r, qk_layernorm=pick(r, True, False)),
    "phi3": lambda r: llama_like(r, sliding_window=pick(r, None, 16)),
    "phimoe": lambda r: llama_like(r, lm_head_bias=pick(r, True, False), **biased(r),
                                   **dict(num_local_experts=4, num_experts_per_tok=2)),
    "qwen2": lambda r: llama_like(r, use_sliding_window=pick(r, True, False), sliding_window=16,
                                  max_window_layers=1),
    "qwen2_moe": lambda r: qwen_moe(r, shared_expert_intermediate_size=pick(r, 32, 64), qkv_bias=pick(r, True, False)),
    "qwen3": lambda r: with_head(r, use_sliding_window=pick(r, True, False), sliding_window=16,
                                 max_window_layers=1, **biased(r)),
    "qwen3_moe": lambda r: qwen_moe(r, head_dim=pick(r, 16, 32), **biased(r)),
    "roberta": bert,
    "seed_oss": lambda r: with_head(r, attention_out_bias=pick(r, True, False), mlp_bias=pick(r, True, False),
                                    **biased(r)),
    "smollm3": lambda r: llama_like(r, no_rope_layer_interval=pick(r, 2, 4), mlp_bias=pick(r, True, False),
                                    pad_token_id=0, **biased(r)),
    "stablelm": lambda r: llama_like(r, use_qkv_bias=pick(r, True, False), use_parallel_residual=pick(r, True, False),
                                     qk_layernorm=pick(r, True, False)),
    "starcoder2": lambda r: llama_like(r, use_bias=pick(r, True, False), sliding_window=pick(r, None, 16)),
    "swin": swin,
    "t5": t5,
    "vit": vit,
    "whisper": lambda r: dict(two_stacks(r), num_mel_bins=pick(r, 80, 128), max_source_positions=pick(r, 50, 80),
                              max_target_positions=pick(r, 64, 100), eos_token_id=2, bos_token_id=2,
                              decoder_start_token_id=3),
    "xlm-roberta": bert,
}
CLASSES = {"bart": "BartForConditionalGeneration", "clip": "CLIPModel", "deberta-v2": "DebertaV2ForMaskedLM",
           "gemma3": "Gemma3ForConditionalGeneration", "llama4": "Llama4ForConditionalGeneration",
           "whisper": "WhisperForConditionalGeneration", "bert": "BertForPreTraining", "camembert": "CamembertForMaskedLM", "distilbert": "DistilBertForMaskedLM",
           "roberta": "RobertaForMaskedLM", "xlm-roberta": "XLMRobertaForMaskedLM",
           "modernbert": "ModernBertForMaskedLM", "t5": "T5ForConditionalGeneration",
           "mt5": "MT5ForConditionalGeneration", "vit": "ViTForImageClassification",
           "deit": "DeiTForImageClassification", "swin": "SwinForImageClassification"}
ENCODER_DECODERS = ("bart", "mt5", "t5")
# Of models of images and text the language model is compared: what is under these names is left out.
MULTIMODAL = {"gemma3": "gemma3_text", "llama4": "llama4_text"}
LEFT_OUT = ("vision_tower", "vision_model", "multi_modal_projector")
# Beyond these parameters a model is counted on the meta device alone.
MOST_ON_CPU = 2e7


def model_class(family):
    if family in CLASSES:
        return getattr(transformers, CLASSES[family])
    return transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(AutoConfig.for_model(family))]


def inputs(config, family, device):
    if family in ("vit", "deit", "swin"):
        size = config.image_size
        return dict(pixel_values=torch.zeros(1, config.num_channels, size, size, device=device))
    ids = torch.randint(5, 200, (1, TOKENS)).to(device)
    if family == "whisper":
        frames = torch.zeros(1, config.num_mel_bins, 2 * config.max_source_positions, device=device)
        return dict(input_features=frames, decoder_input_ids=ids)
    if family == "clip":
        text, vision = config.text_config, config.vision_config
        size = vision.image_size
        return dict(input_ids=torch.randint(5, 200, (1, text.max_position_embeddings)).to(device),
                    pixel_values=torch.zeros(1, vision.num_channels, size, size, device=device))
    given = dict(input_ids=ids)
    if family in ENCODER_DECODERS:
        given["decoder_input_ids"] = ids
    else:
        given["attention_mask"] = torch.ones_like(ids)
    return given if family in CLASSES else dict(given, use_cache=False)


def flops_of(family, config, parameters):
    if family in MULTIMODAL:
        config.text_config._attn_implementation = config.text_config._experts_implementation = "eager"
        return flops_of(MULTIMODAL[family], config.text_config, parameters)
    if family == "llama4_text" and config.num_local_experts > config.num_experts_per_tok:
        return None, "the class lets every expert work on every token"
    device = "cpu" if parameters < MOST_ON_CPU else "meta"
    try:
        with torch.device(device):
            model = model_class(family)(config).eval().requires_grad_(False)
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), counter:
            model(**inputs(config, family, device))
        return counter.get_total_flops(), None
    except Exception as e:  # the meta device has no data to route tokens by
        return None, f"not counted on {device}: {type(e).__name__}"


def plain(config):
    """What changes the model: without the keys that every config has, and without empty ones."""
    d = json.loads(config.to_json_string(use_diff=False))
    labels = d.get("id2label")
    d = {k: v for k, v in d.items() if k not in GENERIC}
    for key in ("attn_config", "ffn_config", "text_config", "vision_config"):
        if key in d:
            d[key] = {k: v for k, v in d[key].items() if k not in GENERIC and k != "model_type"}
    if config.model_type in ("vit", "deit", "swin"):
        d["id2label"] = labels
    return d


def count(family, config):
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    with torch.device("meta"):
        model = model_class(family)(config)
    # What is trained: Whisper's sinusoids are a parameter without a gradient.
    own = {n: p for n, p in model.named_parameters() if family not in MULTIMODAL or not n.startswith(LEFT_OUT)
           and not n.startswith(tuple("model." + part for part in LEFT_OUT))}
    parameters = sum(p.numel() for p in own.values() if p.requires_grad)
    flops, why = flops_of(family, config, parameters)
    return dict(dict(parameters=parameters, tokens=TOKENS, forward_flops=flops), **({"why": why} if why else {}))


def record(family):
    r = random.Random(family)
    torch.manual_seed(0)
    default = AutoConfig.for_model(family)
    if family == "dbrx":
        default.attn_config.rope_theta = 10000.0  # its class reads what its default leaves out
    if family == "deepseek_v2":  # its default leaves this out, and then cannot be built
        default.num_experts_per_tok = 6
        default.n_group = default.topk_group = 1
    base = plain(default)
    entry = dict(config=base, default=count(family, default), variations=[])
    for _ in range(6):
        changes = VARIATIONS[family](r)
        if "vocab_size" in changes and (default.pad_token_id or 0) >= changes["vocab_size"]:
            changes["pad_token_id"] = 0  # a table needs the row of its padding
        config = AutoConfig.for_model(family, **changes)
        own = plain(config)
        # What differs from the default; a key that went away is null.
        change = {k: v for k, v in own.items() if k not in base or base[k] != v}
        change.update({k: None for k in base if k not in own})
        entry["variations"].append(dict(change=change, **count(family, config)))
    return entry


def smsim_counts(smsim, family, config):
    with tempfile.NamedTemporaryFile("w", suffix=".config.json", delete=False) as f:
        json.dump(config, f)
    arguments = [smsim, "model", f.name, "--json"]
    if family not in ("vit", "deit", "swin", "clip"):
        arguments += ["--seq-len", str(TOKENS)]
    run = subprocess.run(arguments, capture_output=True, text=True)
    os.unlink(f.name)
    if run.returncode:
        return None, None, (run.stderr or run.stdout).strip().split("\n")[0]
    d = json.loads(run.stdout)
    return d.get("trained_parameters", d["parameters"]), d["forward_flops_per_sample"], ""


def compare(smsim, families):
    """One line a family: parameters that are exact, FLOPs within 0.1 %, the largest difference."""
    bad = 0
    print(f"{'family':14} parameters   FLOPs  largest difference of FLOPs")
    for name in families:
        entry = json.load(open(RECORD))["families"][name]
        cases = [dict(entry["default"], config=entry["config"])]
        cases += [dict(v, config=dict(entry["config"], **v["change"])) for v in entry["variations"]]
        exact = close = seen = 0
        worst, remarks = 0.0, []
        for case in cases:
            parameters, flops, error = smsim_counts(smsim, name, case["config"])
            if parameters == case["parameters"]:
                exact += 1
            else:
                remarks.append(error or f"{parameters} != {case['parameters']}")
            own = case["config"].get("text_config", case["config"])
            windows = [own.get(k) for k in ("sliding_window", "window_size", "local_attention")]
            if any(w and w < TOKENS for w in windows):
                continue  # eager attention computes what windows hide; tests/model compares it so
            if case["forward_flops"] and flops:
                seen += 1
                difference = abs(flops / case["forward_flops"] - 1)
                worst = max(worst, difference)
                close += difference <= 1e-3
        bad += exact != len(cases) or close != seen
        print(f"{name:14} {exact}/{len(cases)}          {close}/{seen}    {worst:.5%}  {'; '.join(remarks[:2])}")
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--smsim")
    arguments = parser.parse_args()
    names = arguments.families or sorted(VARIATIONS)
    if arguments.write:
        document = {"families": {}}
        if arguments.families and os.path.exists(RECORD):
            document = json.load(open(RECORD))
        document["source"] = {"date": str(datetime.date.today()), "torch": torch.__version__,
                              "transformers": transformers.__version__, "attention": "eager"}
        for name in names:
            try:
                document["families"][name] = record(name)
            except Exception as e:
                print(f"{name}: {type(e).__name__}: {e}", file=sys.stderr)
        lines = []
        for name in sorted(document["families"]):
            entry = document["families"][name]
            variations = ",\n".join("    " + json.dumps(v) for v in entry["variations"])
            lines.append(f'  "{name}": {{"config": {json.dumps(entry["config"])},\n'
                         f'   "default": {json.dumps(entry["default"])},\n   "variations": [\n{variations}]}}')
        with open(RECORD, "w") as f:
            f.write('{"source": ' + json.dumps(document["source"]) + ',\n "families": {\n')
            f.write(",\n".join(lines) + "}}\n")
    if arguments.smsim:
        sys.exit(1 if compare(arguments.smsim, names) else 0)


if __name__ == "__main__":
    main()
