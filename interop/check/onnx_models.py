#!/usr/bin/env python3
"""Exports models of torchvision and transformers to ONNX, has `smsim model` read the files and holds the parameters that
it counts against those of the modules.

    onnx_models.py --smsim build/smsim [--write] [--only NAME ...] [--graphs FOLDER]

Three ways to export are tried: `train` (TorchScript, mode kept, nothing folded: how a graph for training is exported),
`eval` (TorchScript's defaults: norms folded into convolutions, constants folded) and `dynamo` (torch.export, the default
since torch 2.9). The answers, with versions and date, are onnx_models.json. With --graphs the graphs without weights are
left in that folder; --write keeps those of KEPT in onnx/, which a test reads where no package is installed. Weights are
made unequal first: exporters write equal ones once.
"""
import argparse
import datetime
import gzip
import json
import os
import subprocess
import sys
import tempfile
import warnings

RECORD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "onnx_models.json")
GRAPHS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "onnx")
WAYS = ("train", "eval", "dynamo")
SMALL_IMAGE = 64


def image(size=SMALL_IMAGE, channels=3):
    import torch
    return (torch.rand(1, channels, size, size),)


def tokens(length=32, vocabulary=1000):
    import torch
    return (torch.randint(0, vocabulary, (1, length)),)


def vision(name, size=SMALL_IMAGE, **options):
    def make():
        import torchvision
        return torchvision.models.get_model(name, weights=None, **options), image(size)
    return make


def segmentation(name):
    def make():
        import torch
        import torchvision

        class Scores(torch.nn.Module):
            def __init__(self, model):
                super().__init__()
                self.model = model

            def forward(self, x):
                return self.model(x)["out"]
        return Scores(torchvision.models.get_model(name, weights=None, weights_backbone=None)), image(SMALL_IMAGE)
    return make


def video(name):
    def make():
        import torch
        import torchvision
        return torchvision.models.get_model(name, weights=None), (torch.rand(1, 3, 8, 64, 64),)
    return make


def detection(name, size=320):
    def make():
        import torch
        import torchvision
        return torchvision.models.get_model(name, weights=None, weights_backbone=None), ([torch.rand(3, size, size)],)
    return make


def frozen_detection():
    """Faster R-CNN as it is fine-tuned: the norms of its backbone are frozen buffers."""
    import torch
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
    from torchvision.ops import FrozenBatchNorm2d
    backbone = resnet_fpn_backbone(backbone_name="resnet50", weights=None, norm_layer=FrozenBatchNorm2d, trainable_layers=5)
    return FasterRCNN(backbone, 91, min_size=320, max_size=320), ([torch.rand(3, 320, 320)],)


def language(config, model, pick="logits", **sizes):
    def make():
        import torch
        import transformers

        class Scores(torch.nn.Module):
            def __init__(self, inner):
                super().__init__()
                self.inner = inner

            def forward(self, ids):
                # With a mask given, no exporter meets the search for packed sequences of newer transformers.
                return getattr(self.inner(ids, attention_mask=torch.ones_like(ids), return_dict=True), pick)
        settings = getattr(transformers, config)(**sizes)
        settings._attn_implementation = "eager"
        settings.use_cache = False
        return Scores(getattr(transformers, model)(settings)), tokens()
    return make


def recurrent(kind, is_bidirectional=False):
    def make():
        import torch

        class Language(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding = torch.nn.Embedding(1000, 64)
                self.recurrence = getattr(torch.nn, kind)(64, 96, 2, batch_first=True, bidirectional=is_bidirectional)
                self.head = torch.nn.Linear(96 * (2 if is_bidirectional else 1), 1000)

            def forward(self, ids):
                return self.head(self.recurrence(self.embedding(ids))[0])
        return Language(), tokens(12)
    return make


DECODER = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 1000, "max_position_embeddings": 64}
ENCODER = {**DECODER, "intermediate_size": 128}
MODELS = {
    # name: (make, ways); detection models are exported in eval mode alone: in training they return losses of targets.
    "resnet50": (vision("resnet50"), WAYS),
    "resnext50_32x4d": (vision("resnext50_32x4d"), ("train",)),
    "wide_resnet50_2": (vision("wide_resnet50_2"), ("train",)),
    "alexnet": (vision("alexnet", 224), ("train",)),
    "vgg16_bn": (vision("vgg16_bn", 224), ("train",)),
    "densenet121": (vision("densenet121"), ("train",)),
    "inception_v3": (vision("inception_v3", 96, init_weights=False, aux_logits=False), ("train",)),
    "googlenet": (vision("googlenet", init_weights=False, aux_logits=False), ("train",)),
    "squeezenet1_1": (vision("squeezenet1_1"), ("train",)),
    "shufflenet_v2_x1_0": (vision("shufflenet_v2_x1_0"), ("train",)),
    "mobilenet_v2": (vision("mobilenet_v2"), ("train",)),
    "mobilenet_v3_large": (vision("mobilenet_v3_large"), ("train",)),
    "mnasnet1_0": (vision("mnasnet1_0"), ("train",)),
    "efficientnet_b0": (vision("efficientnet_b0"), ("train",)),
    "efficientnet_v2_s": (vision("efficientnet_v2_s"), ("train",)),
    "regnet_y_400mf": (vision("regnet_y_400mf"), ("train",)),
    "convnext_tiny": (vision("convnext_tiny"), ("train", "eval")),
    "vit_b_16": (vision("vit_b_16", 224), ("train", "eval")),
    "swin_t": (vision("swin_t", 224), WAYS),
    "swin_v2_t": (vision("swin_v2_t", 256), ("train",)),
    "maxvit_t": (vision("maxvit_t", 224), ("train",)),
    "fcn_resnet50": (segmentation("fcn_resnet50"), ("train",)),
    "deeplabv3_mobilenet_v3_large": (segmentation("deeplabv3_mobilenet_v3_large"), ("train",)),
    "r3d_18": (video("r3d_18"), ("train",)),
    "gpt2": (language("GPT2Config", "GPT2LMHeadModel", n_layer=2, n_embd=64, n_head=4, vocab_size=1000, n_positions=64), WAYS),
    "bert": (language("BertConfig", "BertForMaskedLM", **ENCODER), WAYS),
    "bert_pooler": (language("BertConfig", "BertModel", "pooler_output", **ENCODER), WAYS),
    "roberta": (language("RobertaConfig", "RobertaForMaskedLM", **ENCODER), ("train",)),
    "distilbert": (language("DistilBertConfig", "DistilBertForMaskedLM", "logits", n_layers=2, dim=64, n_heads=4, hidden_dim=128,
                            vocab_size=1000, max_position_embeddings=64), ("train",)),
    "llama": (language("LlamaConfig", "LlamaForCausalLM", num_key_value_heads=2, **ENCODER), ("train", "eval")),
    "qwen3": (language("Qwen3Config", "Qwen3ForCausalLM", num_key_value_heads=2, head_dim=16, **ENCODER), ("train",)),
    "opt": (language("OPTConfig", "OPTForCausalLM", num_hidden_layers=2, hidden_size=64, ffn_dim=128, num_attention_heads=4,
                     word_embed_proj_dim=64, vocab_size=1000, max_position_embeddings=64), ("train",)),
    "lstm": (recurrent("LSTM"), WAYS),
    "lstm_bidirectional": (recurrent("LSTM", True), ("train",)),
    "gru": (recurrent("GRU"), ("train", "eval")),
    "rnn": (recurrent("RNN"), ("train",)),
    "fasterrcnn_resnet50_fpn": (detection("fasterrcnn_resnet50_fpn"), ("train",)),
    "fasterrcnn_frozen_norms": (frozen_detection, ("train", "eval")),
    "fasterrcnn_mobilenet_v3_large_320_fpn": (detection("fasterrcnn_mobilenet_v3_large_320_fpn"), ("train",)),
    "maskrcnn_resnet50_fpn": (detection("maskrcnn_resnet50_fpn"), ("train", "eval")),
    "keypointrcnn_resnet50_fpn": (detection("keypointrcnn_resnet50_fpn"), ("train",)),
    "retinanet_resnet50_fpn": (detection("retinanet_resnet50_fpn"), ("train",)),
    "fcos_resnet50_fpn": (detection("fcos_resnet50_fpn"), ("train",)),
    "ssd300_vgg16": (detection("ssd300_vgg16", 300), ("train", "eval")),
    "ssdlite320_mobilenet_v3_large": (detection("ssdlite320_mobilenet_v3_large"), ("train",)),
}


KEPT = ("fasterrcnn_mobilenet_v3_large_320_fpn.train", "fasterrcnn_frozen_norms.train", "fasterrcnn_frozen_norms.eval",
        "maskrcnn_resnet50_fpn.train", "keypointrcnn_resnet50_fpn.train", "retinanet_resnet50_fpn.train", "fcos_resnet50_fpn.train",
        "ssd300_vgg16.eval", "ssdlite320_mobilenet_v3_large.train", "lstm.train", "lstm.dynamo", "lstm_bidirectional.train",
        "gru.train", "rnn.train", "swin_t.dynamo", "bert.train", "gpt2.dynamo")
KNOWN = {}  # of a model: what its export for training holds beyond its parameters, and why


def make_unequal(model):
    """No two vectors are equal, and none is zero: variances stay positive."""
    import torch
    torch.manual_seed(0)
    with torch.no_grad():
        for tensor in [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]:
            tensor.add_(1e-3 * torch.rand_like(tensor))


def export(model, inputs, way, path):
    import torch
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if way == "dynamo":
            torch.onnx.export(model.eval(), inputs, path, dynamo=True, verbose=False, external_data=False)
        elif way == "eval":
            torch.onnx.export(model.eval(), inputs, path, dynamo=False, opset_version=17)
        else:  # the mode is the module's, so that a detection model keeps its norms and yet returns boxes
            torch.onnx.export(model.eval(), inputs, path, dynamo=False, opset_version=17, do_constant_folding=False,
                              training=torch.onnx.TrainingMode.PRESERVE)


def without_weights(path, to):
    """The graph alone: no payload of a tensor that a reader of shapes needs, no text for people."""
    import onnx
    graph = onnx.load(path)

    def strip(tensors):
        for tensor in tensors:
            count = 1
            for extent in tensor.dims:
                count *= extent
            if count > 64 and tensor.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
                for field in ("raw_data", "float_data", "double_data"):
                    tensor.ClearField(field)
    strip(graph.graph.initializer)
    for node in graph.graph.node:
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
    with open(to, "wb") as file:
        file.write(graph.SerializeToString())


def keep(bare, name):
    with open(bare, "rb") as graph, open(os.path.join(GRAPHS, name + ".onnx.gz"), "wb") as packed:
        packed.write(gzip.compress(graph.read(), mtime=0))


def read(smsim, path):
    done = subprocess.run([smsim, "model", path, "--json"], capture_output=True, text=True)
    if done.returncode:
        return {"status": "refused" if done.returncode == 2 else f"exit {done.returncode}",
                "message": (done.stderr or done.stdout).strip()[:300].replace(path, os.path.basename(path))}
    document = json.loads(done.stdout)
    return {"status": "read", "parameters": document["parameters"], "assumptions": document.get("assumptions", [])}


def trained(model):
    return sum(p.numel() for p in model.parameters())


def check(name, smsim, graphs, keeps):
    make, ways = MODELS[name]
    model, inputs = make()
    make_unequal(model)
    entry = {"parameters": trained(model), "exports": {}}
    for way in ways:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, f"{name}.onnx")
            try:
                export(model, inputs, way, path)
            except Exception as problem:  # noqa: BLE001  (whatever the exporter cannot do is part of the answer)
                entry["exports"][way] = {"status": "not exported", "message": f"{type(problem).__name__}: {problem}"[:200]}
                continue
            answer = read(smsim, path)
            bare = os.path.join(graphs or folder, f"{name}.{way}.onnx")
            without_weights(path, bare)
            if read(smsim, bare).get("parameters") != answer.get("parameters"):
                answer = {"status": "differs", "message": "the graph without its weights is read in another way"}
            if keeps and f"{name}.{way}" in KEPT:
                keep(bare, f"{name}.{way}")
        entry["exports"][way] = answer
    return entry


def reread(record, smsim, folder, keeps):
    """The graphs that an earlier run left in the folder, without exporting anew."""
    for name, entry in record["models"].items():
        for way, answer in entry["exports"].items():
            bare = os.path.join(folder, f"{name}.{way}.onnx")
            if answer["status"] == "not exported" or not os.path.exists(bare):
                continue
            entry["exports"][way] = read(smsim, bare)
            if keeps and f"{name}.{way}" in KEPT:
                keep(bare, f"{name}.{way}")


def versions():
    import importlib.metadata as metadata
    names = ("torch", "torchvision", "transformers", "onnx", "onnxscript")
    return {name: metadata.version(name) for name in names}


def show(record):
    """Prints a line an export; returns how many for training differ from their modules in an unknown way."""
    failures = 0
    for name, entry in record["models"].items():
        for way, answer in entry["exports"].items():
            difference = "" if answer["status"] != "read" else f"{answer['parameters'] - entry['parameters']:+,}"
            failures += way == "train" and difference != f"{KNOWN.get(name, (0,))[0]:+,}"
            print(f"{name:40} {way:7} {entry['parameters']:>12,} {answer['status']:>13} {difference:>10} "
                  f"{answer.get('message', '')[:150]}", flush=True)
    return failures


def write(record, is_wanted):
    if not is_wanted:
        return
    with open(RECORD, "w") as file:
        json.dump(record, file, indent=1, sort_keys=True)
        file.write("\n")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--smsim", required=True)
    options.add_argument("--only", nargs="*", choices=list(MODELS), help="these models; others keep their record")
    options.add_argument("--write", action="store_true", help="write onnx_models.json")
    options.add_argument("--graphs", help="a folder for the graphs without their weights")
    options.add_argument("--reread", metavar="FOLDER", help="read the graphs of an earlier --graphs again, export nothing")
    chosen = options.parse_args()
    if chosen.reread:
        with open(RECORD) as file:
            record = json.load(file)
        reread(record, chosen.smsim, chosen.reread, chosen.write)
        write(record, chosen.write)
        return show(record)
    import torch
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)  # of eval mode alone, and without a counterpart in ONNX
    if chosen.graphs:
        os.makedirs(chosen.graphs, exist_ok=True)
    record = {"date": "", "versions": {}, "models": {}}
    if chosen.only and os.path.exists(RECORD):
        with open(RECORD) as file:
            record = json.load(file)
    failures = 0
    for name in chosen.only or MODELS:
        entry = record["models"][name] = check(name, chosen.smsim, chosen.graphs, chosen.write)
        failures += show({"models": {name: entry}})
        record["date"], record["versions"] = datetime.date.today().isoformat(), versions()
        write(record, chosen.write)  # after every model: a run that is broken off keeps what it has
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
