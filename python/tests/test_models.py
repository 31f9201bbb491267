import json

import pytest

import smsim

GPT2 = {"model_type": "gpt2", "n_layer": 4, "n_embd": 128, "n_head": 4, "vocab_size": 1000, "n_positions": 32}
# GPT-2's parameters by hand: a tied table of 1000 and one of 32 positions; a layer has 12 d^2 + 13 d; a last norm.
PARAMETERS = (1000 + 32) * 128 + 4 * (12 * 128**2 + 13 * 128) + 2 * 128


def parameters_of(tool, model):
    return tool("smsim", "model", model)["parameters"]


def test_a_configuration_needs_no_network_and_no_transformers(tool):
    model = smsim.from_pretrained(GPT2)
    assert parameters_of(tool, model) == PARAMETERS
    found = smsim.plan(model, "g4dn.xlarge", nodes=1, global_batch=8)
    assert found.plans and smsim.simulate(found.best).fits


def test_the_local_cache_is_read(tmp_path, monkeypatch, tool):
    repository = tmp_path / "models--some--model"
    snapshot = repository / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abc")
    (snapshot / "config.json").write_text(json.dumps(GPT2))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    model = smsim.from_pretrained("some/model")
    assert model.name == "some/model" and parameters_of(tool, model) == PARAMETERS
    with pytest.raises(smsim.InputError, match="other/model"):
        smsim.from_pretrained("other/model")
    with pytest.raises(smsim.InputError, match="is no name"):
        smsim.from_pretrained("no/such/thing")


def test_the_file_lives_as_long_as_the_model():
    import gc
    import os

    model = smsim.from_pretrained(GPT2)
    path = model.path
    assert os.path.exists(path)
    del model
    gc.collect()
    assert not os.path.exists(path)


def needs_torch():
    torch = pytest.importorskip("torch", reason="skipped: no torch")
    pytest.importorskip("onnxscript", reason="skipped: no onnxscript")
    pytest.importorskip("onnx", reason="skipped: no onnx")
    return torch


def tied_and_equal(torch):
    class Net(torch.nn.Module):
        """A tied head, and two layers that are equal in their values alone."""

        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(100, 32)
            self.first, self.second = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)
            self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(32) for _ in range(2))
            self.head = torch.nn.Linear(32, 100, bias=False)
            self.head.weight = self.table.weight
            with torch.no_grad():
                for a, b in zip(self.first.parameters(), self.second.parameters()):
                    b.copy_(a)

        def forward(self, ids):
            x = self.table(ids)
            x = x + self.first(self.norms[0](x))
            x = x + self.second(self.norms[1](x))
            return self.head(x)

    return Net()


def test_equal_values_are_no_tie_and_a_tie_is_one(tool):
    torch = needs_torch()
    net = tied_and_equal(torch)
    want = 100 * 32 + 2 * (32 * 32 + 32) + 2 * 2 * 32
    assert want == sum(parameter.numel() for parameter in net.parameters())
    model = smsim.from_torch(net, torch.zeros(1, 8, dtype=torch.long))
    read = tool("smsim", "model", model)
    assert read["parameters"] == want
    assert {layer["name"].split(".")[0] for layer in read["layers"]} >= {"table", "first", "second", "head"}
    assert net.training  # as it was


def test_a_module_without_values_will_do(tool):
    torch = needs_torch()
    with torch.device("meta"):
        net, ids = tied_and_equal(torch), torch.zeros(1, 8, dtype=torch.long)
    read = tool("smsim", "model", smsim.from_torch(net, ids))
    assert read["parameters"] == sum(parameter.numel() for parameter in net.parameters())


def test_gpt2_of_transformers(tool):
    torch = needs_torch()
    transformers = pytest.importorskip("transformers", reason="skipped: no transformers")

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            config = transformers.GPT2Config(**{k: v for k, v in GPT2.items() if k != "model_type"}, use_cache=False, bos_token_id=0, eos_token_id=0)
            self.model = transformers.GPT2LMHeadModel(config)

        def forward(self, ids):
            return self.model(ids, attention_mask=torch.ones_like(ids), return_dict=True).logits

    net = Logits()
    model = smsim.from_torch(net, (torch.zeros(1, 32, dtype=torch.long),), name="gpt2")
    assert parameters_of(tool, model) == PARAMETERS
    assert parameters_of(tool, smsim.from_pretrained(net.model)) == PARAMETERS


def test_what_torch_refuses_is_an_input_error():
    torch = needs_torch()

    class Data(torch.nn.Module):
        def forward(self, x):
            return x * 2 if x.sum().item() > 0 else x.nonzero()[: int(x.max().item())]

    with pytest.raises(smsim.InputError, match="refuses to export"):
        smsim.from_torch(Data(), torch.zeros(2, 3))
