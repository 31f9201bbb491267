#!/usr/bin/env python3
"""Weights in and out, against Hugging Face's transformers: for each family a small model with random weights is
saved by save_pretrained, smexec begins with it (--init), trains some steps, and its weights go back (convert
--to hf). Compared are the loss of the first step with transformers' on the same tokens, and after training
the loss of smexec's next step with that of transformers' model loaded from the converted file, and that model's logits
with those of the first model trained by torch for the same steps (--steps: after many, rounding is larger); the tensors that went in and out again without a step
(--steps 0) must be the same bits.

    python3 tests/torch/huggingface_weights.py [--smexec build/smexec] [--families llama,gpt2] [--steps 10] [--write]

Needs torch, transformers and safetensors (tests/torch/huggingface_weights.md: versions and figures of the last
run, rewritten by --write). Exit codes: 0 good, 1 a difference above 1e-5, 77 nothing of that is installed."""

import argparse, copy, datetime, json, pathlib, subprocess, sys, tempfile

try:
    import numpy, safetensors, torch, transformers as hf
    from safetensors.torch import load_file
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

TOKENS, VOCABULARY, BATCH, ALLOWED = 32, 256, 4, 1e-5
LLAMA = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=VOCABULARY, max_position_embeddings=64)
# OPT and BERT without a padding token, whose row of the embedding transformers does not train by what is read.
# Dropout off, so that both sides compute the same function. The plan's degrees divide the model in some way.
FAMILIES = {
    "llama": (lambda: hf.LlamaConfig(**LLAMA), "AutoModelForCausalLM", "tensor_parallel = 2"),
    "llama, tied": (lambda: hf.LlamaConfig(**LLAMA, tie_word_embeddings=True), "AutoModelForCausalLM", "pipeline_parallel = 2"),
    "mistral": (lambda: hf.MistralConfig(**LLAMA, sliding_window=None), "AutoModelForCausalLM", "pipeline_parallel = 2"),
    "qwen2": (lambda: hf.Qwen2Config(**LLAMA), "AutoModelForCausalLM", "tensor_parallel = 2"),
    "qwen3": (lambda: hf.Qwen3Config(**LLAMA, head_dim=16), "AutoModelForCausalLM", "tensor_parallel = 2"),
    "qwen3, wide heads": (lambda: hf.Qwen3Config(**LLAMA, head_dim=24, tie_word_embeddings=True), "AutoModelForCausalLM", "context_parallel = 2"),
    "mixtral": (lambda: hf.MixtralConfig(**LLAMA, num_local_experts=4, sliding_window=None, router_aux_loss_coef=0.0), "AutoModelForCausalLM",
                "data_parallel = 2\nexpert_parallel = 2"),
    "gpt2": (lambda: hf.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=VOCABULARY, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
                                   attn_pdrop=0.0), "AutoModelForCausalLM", "tensor_parallel = 2"),
    "opt": (lambda: hf.OPTConfig(hidden_size=64, ffn_dim=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=VOCABULARY,
                                 max_position_embeddings=64, word_embed_proj_dim=64, dropout=0.0, pad_token_id=None), "AutoModelForCausalLM",
            "data_parallel = 2\nsharding = \"parameters\""),
    "gpt_neox": (lambda: hf.GPTNeoXConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=VOCABULARY,
                                          max_position_embeddings=64, attention_dropout=0.0, hidden_dropout=0.0), "AutoModelForCausalLM",
                 "tensor_parallel = 2"),
    "bert": (lambda: hf.BertConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=VOCABULARY,
                                   max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=None),
             "BertForPreTraining", "pipeline_parallel = 2"),
}

PLAN = """version = 1
[model]
config = "{config}"
sequence_length = {tokens}
[cluster]
instance = "local-cpu"
nodes = 1
[plan]
{degrees}
micro_batch = {micro_batch}
micro_batches = {micro_batches}
precision = "fp32"
[training]
optimizer = "adamw"
learning_rate = 1e-3
weight_decay = 0.1
seed = 7
steps = 1
"""


def run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0: raise RuntimeError(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def mix64(key):
    """SplitMix64 (Steele, Lea and Flood, 2014), by which smexec draws what a text does not say."""
    most = (1 << 64) - 1
    key = (key + 0x9E3779B97F4A7C15) & most
    key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & most
    key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & most
    return key ^ (key >> 31)


def outputs(model, text, step, loss_type=torch.float32):
    """Logits of a step's samples, and the mean loss over the batch, of next tokens. BERT has the label of its second task beside them: two halves of a window are
    its two sentences, and whether they follow one another is drawn by the number of the sample."""
    rows, cross_entropy = torch.tensor(samples(text, step)), torch.nn.functional.cross_entropy
    ids, labels = rows[:, :-1], rows[:, 1:].reshape(-1)
    if not isinstance(model, hf.BertForPreTraining):
        logits = model(input_ids=ids).logits.to(loss_type)
        return logits, cross_entropy(logits.reshape(-1, logits.shape[-1]), labels)
    types = (2 * torch.arange(TOKENS) >= TOKENS).long().expand_as(ids)
    given = model(input_ids=ids, token_type_ids=types)
    pairs = torch.tensor([mix64(sample) % 2 for sample in range(step * BATCH, (step + 1) * BATCH)])
    logits, of_pairs = given.prediction_logits.to(loss_type), given.seq_relationship_logits.to(loss_type)
    loss = cross_entropy(logits.reshape(-1, logits.shape[-1]), labels) + cross_entropy(of_pairs, pairs)
    return torch.cat((logits.flatten(1), of_pairs), 1), loss


def loss_of(model, text, step):
    with torch.no_grad(): return outputs(model, text, step, torch.float64)[1].item()


def logits_of(model, text, step):
    with torch.no_grad(): return outputs(model, text, step)[0].double()


def nudged(model, seed):
    """A copy with half of the weights, drawn, moved to the next number."""
    generator, copied = torch.Generator().manual_seed(seed), copy.deepcopy(model)
    with torch.no_grad():
        for parameter in copied.parameters():
            above = torch.nextafter(parameter, torch.tensor(float("inf")))
            parameter.copy_(torch.where(torch.rand(parameter.shape, generator=generator) < 0.5, above, parameter))
    return copied


def train(model, text, steps):
    """As the plan trains: AdamW, whose decay leaves norms and biases alone."""
    parameters = list(model.parameters())
    groups = [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1}, {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999), eps=1e-8)
    for step in range(steps):
        outputs(model, text, step)[1].backward()
        optimizer.step()
        optimizer.zero_grad()


def samples(text, step):
    """As smexec reads a text: windows of tokens + 1 bytes that share one byte with the next."""
    width = TOKENS + 1
    starts = [(s * TOKENS) % (len(text) - width + 1) for s in range(step * BATCH, (step + 1) * BATCH)]
    return [list(text[start:start + width]) for start in starts]


def check(name, smexec, steps):
    make, automatic, degrees = FAMILIES[name]
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(3)
        # Larger weights than a training begins with: small ones hide a wrong place behind small logits.
        config = make()
        config.initializer_range = 0.2
        model = getattr(hf, automatic)(config) if "Auto" not in automatic else getattr(hf, automatic).from_config(config)
        with torch.no_grad():
            for parameter in model.parameters(): parameter += 0.05 * torch.randn_like(parameter)
        model.eval().save_pretrained(f"{folder}/in")
        text = numpy.random.default_rng(5).integers(0, 256, 40000, dtype=numpy.uint8).tobytes()
        pathlib.Path(f"{folder}/text").write_bytes(text)
        replicas = 2 if "data_parallel = 2" in degrees else 1
        plan = f"{folder}/plan.toml"
        pathlib.Path(plan).write_text(PLAN.format(config=f"{folder}/in/config.json", tokens=TOKENS, degrees=degrees, micro_batch=1,
                                                  micro_batches=BATCH // replicas))
        common = [smexec, plan, "--data", f"{folder}/text", "--no-compare", "--ranks-from", "threads", "--json"]
        init = ["--init", f"{folder}/in"]
        # In and out without a step: the same bits.
        run([*common, *init, "--steps", 0, "--checkpoint", f"{folder}/start"])
        run([smexec, "convert", f"{folder}/start", "--plan", plan, "--to", "hf", "--out", f"{folder}/same", "--json"])
        before, same = load_file(f"{folder}/in/model.safetensors"), load_file(f"{folder}/same/model.safetensors")
        is_same = before.keys() == same.keys() and all(torch.equal(before[key], same[key]) for key in before)
        first = run([*common, *init, "--steps", 1])["losses"][0]
        run([*common, *init, "--steps", steps, "--checkpoint", f"{folder}/trained"])
        run([smexec, "convert", f"{folder}/trained", "--plan", plan, "--to", "hf", "--out", f"{folder}/out", "--json"])
        after = run([*common, "--steps", steps + 1, "--checkpoint", f"{folder}/trained", "--resume"])["losses"][-1]
        (pathlib.Path(folder) / "out" / "config.json").write_text((pathlib.Path(folder) / "in" / "config.json").read_text())
        loaded = getattr(hf, automatic).from_pretrained(f"{folder}/out").eval()
        theirs_first, theirs_after = loss_of(model, text, 0), loss_of(loaded, text, steps)
        has_moved = moved(model, loaded)
        nearly = [nudged(model, seed) for seed in range(3)]
        for each in (model, *nearly): train(each, text, steps)
        theirs, *others = (logits_of(each, text, steps) for each in (model, loaded, *nearly))
        off, *rounding = (((each - theirs).abs().max() / theirs.abs().max()).item() for each in others)
        return dict(same=is_same, first=abs(first - theirs_first) / theirs_first, after=abs(after - theirs_after) / theirs_after,
                    logits=off, rounding=max(rounding), moved=has_moved)


def moved(before, after):
    """How far training took the weights, at most: proof that there was something to convert."""
    old, new = before.state_dict(), after.state_dict()
    return max((old[key].double() - new[key].double()).abs().max().item() for key in old)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--smexec", default=root / "build" / "smexec")
    parser.add_argument("--families", default=";".join(FAMILIES))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    hf.utils.logging.set_verbosity_error()
    hf.utils.logging.disable_progress_bar()
    rows, is_good = [], True
    for name in arguments.families.split(";"):
        try:
            result = check(name, arguments.smexec, arguments.steps)
        except RuntimeError as failure:
            rows.append(f"| {name} | {FAMILIES[name][2]} | not run | | | | | |".replace("\n", ", "))
            print(failure, file=sys.stderr)
            is_good = False
            continue
        good = result["same"] and all(result[key] is None or result[key] <= ALLOWED for key in ("first", "after")) and result["moved"] > 1e-3
        good &= result["logits"] is None or result["logits"] <= max(ALLOWED, 2 * result["rounding"]) < 1e-2
        is_good &= good
        number = lambda x: "-" if x is None else f"{x:.1e}"
        degrees = FAMILIES[name][2].replace("\n", ", ")
        rows.append(f"| {name} | {degrees} | {'same bits' if result['same'] else 'DIFFER'} | {number(result['first'])} | {number(result['after'])} | {number(result['logits'])} | {number(result['rounding'])} | {result['moved']:.3f} |")
        print(rows[-1], flush=True)
    if arguments.write:
        table = f"""# Weights in and out, against transformers

Written by `tests/torch/huggingface_weights.py --write`, {datetime.date.today()}: torch {torch.__version__}, transformers {hf.__version__}, safetensors
{safetensors.__version__}; {arguments.steps} steps of AdamW in fp32. In and out: tensors after `--init`, `--steps 0`, `convert --to hf`. Losses are relative differences,
at most {ALLOWED:g}: of the first step, and of the step after training by transformers' model loaded from the converted file. Logits: of that model beside the first one trained by
torch's AdamW for the same steps, the largest difference over the largest logit. Rounding: what that is between trainings by torch
from weights of which half are one unit in the last place off; logits may differ by twice that where it is more than {ALLOWED:g}. BERT's
logits are those of both tasks.

| family | plan | in and out | first loss | loss after training | logits after training | rounding | weights moved by |
|---|---|---|---|---|---|---|---|
""" + "\n".join(rows) + "\n"
        (root / "tests" / "torch" / "huggingface_weights.md").write_text(table)
    sys.exit(0 if is_good else 1)


if __name__ == "__main__": main()
