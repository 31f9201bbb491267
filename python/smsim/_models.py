"""Models from PyTorch and from Hugging Face, as files that every question takes."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple, Union

from ._errors import Diagnostic, InputError

__all__ = ["Model", "from_pretrained", "from_torch"]


class Model:
    """A model in a file of its own, which lives as long as this object: give it to :func:`smsim.plan`,
    :func:`smsim.partition`, or as ``scenario["model"]["name"]``. ``path`` is the file; ``save(path)`` keeps it."""

    def __init__(self, name: str, path: str, notes: Iterable[str] = ()):
        self.name = name
        self.path = path
        self.notes: Tuple[str, ...] = tuple(notes)
        self._finalizer = weakref.finalize(self, shutil.rmtree, os.path.dirname(path), True)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"Model({self.name!r})"

    def save(self, path: Union[str, "os.PathLike[str]"]) -> str:
        """Copies the file; the copy outlives this object."""
        return str(shutil.copyfile(self.path, path))

    def __reduce__(self):
        with open(self.path, "rb") as file:
            return _restored, (self.name, os.path.basename(self.path), file.read(), self.notes)


def _restored(name: str, file_name: str, content: bytes, notes: Tuple[str, ...]) -> Model:
    path = os.path.join(tempfile.mkdtemp(prefix="smsim-model-"), file_name)
    with open(path, "wb") as file:
        file.write(content)
    return Model(name, path, notes)


def _refused(key: str, message: str, hint: str = "", value: Optional[str] = None) -> InputError:
    return InputError([Diagnostic("error", None, None, None, key, value, (), message, hint)])


# ------------------------------------------------------------------------------------------- Hugging Face


def _cache_folders() -> List[Path]:
    """Where huggingface_hub keeps repositories, by its own environment variables."""
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    named = [os.environ.get("HF_HUB_CACHE"), os.environ.get("HUGGINGFACE_HUB_CACHE"), os.path.join(home, "hub")]
    return [Path(folder).expanduser() for folder in named if folder]


def _cached_config(name: str, revision: str) -> Path:
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise _refused("name", f"{name!r} is no name of a repository", 'for example "org/name"', name)
    folders = _cache_folders()
    for folder in folders:
        repository = folder / ("models--" + name.replace("/", "--"))
        reference = repository / "refs" / revision
        commit = reference.read_text().strip() if reference.is_file() else revision
        config = repository / "snapshots" / commit / "config.json"
        if config.is_file():
            return config
    raise _refused(
        "name",
        f"the cache holds no config.json of {name} at {revision}: looked in {', '.join(map(str, folders))}",
        f"huggingface-cli download {name} config.json, or give a configuration object; nothing is fetched here",
        name,
    )


def from_pretrained(model: Any, *, revision: str = "main") -> Model:
    """A model by its Hugging Face configuration, without network and without its weights.

    ``model``: "org/name" of the local cache (HF_HOME and HF_HUB_CACHE are heeded), a folder or a config.json, a
    ``transformers`` configuration, anything with a ``config`` that is one (a model), or a dictionary.
    """
    if hasattr(model, "config") and not isinstance(model, Mapping) and hasattr(model.config, "to_dict"):
        model = model.config
    if isinstance(model, (str, os.PathLike)):
        given = Path(model).expanduser()
        path = given / "config.json" if given.is_dir() else given
        if not path.is_file():
            path = _cached_config(os.fspath(model), revision)
        content, name = path.read_text(encoding="utf-8"), os.fspath(model)
    else:
        if hasattr(model, "to_dict"):
            fields = model.to_dict()
        elif isinstance(model, Mapping):
            fields = dict(model)
        else:
            raise _refused(
                "model",
                f"an object of type {type(model).__name__} is no configuration",
                "give a name, a folder, a transformers configuration or a dictionary",
            )
        content = json.dumps(fields, indent=1, default=str)
        name = str(fields.get("_name_or_path") or fields.get("model_type") or "model")
    path_of_copy = os.path.join(tempfile.mkdtemp(prefix="smsim-model-"), "config.json")
    with open(path_of_copy, "w", encoding="utf-8") as file:
        file.write(content)
    return Model(name, path_of_copy)


# ------------------------------------------------------------------------------------------------- PyTorch


def _as_tuple(example_inputs: Any) -> Tuple[tuple, Dict[str, Any]]:
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, (list, tuple)):
        return tuple(example_inputs), {}
    return (example_inputs,), {}


def _export(module: Any, args: tuple, kwargs: Dict[str, Any]) -> Any:
    """torch.export, then ONNX, not optimized yet."""
    import torch

    with torch.no_grad():
        exported = torch.export.export(module, args, kwargs or None)
        return torch.onnx.export(exported, (), dynamo=True, optimize=False, verbose=False)


def _optimize_without_values(program: Any, module: Any) -> None:
    """The exporter's optimizer writes equal values once, so that fresh norms and biases would look like one tied
    parameter, and folds what follows from values. So the values go before it: a prediction needs shapes and types.
    They become references to a file that there is not, and a model larger than memory is a small file."""
    import onnx_ir

    names = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    names.update(name for name, _ in module.named_buffers(remove_duplicate=False))
    taken = {}
    for name, value in program.model.graph.initializers.items():
        if name in names and value.const_value is not None:
            taken[name] = value.const_value
            value.const_value = None
    log = logging.getLogger("onnx_ir")  # it says of every one that it has no value
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        program.optimize()
    finally:
        log.setLevel(level)
    for name, value in program.model.graph.initializers.items():
        if name in taken:
            kept = taken[name]
            value.const_value = onnx_ir.ExternalTensor(
                "values-not-kept", 0, int(kept.nbytes), kept.dtype, shape=kept.shape, name=name
            )


def _name_by_module(program: Any) -> None:
    """Nodes get the path of the module that they are of: "decoder.3.mlp.up/MatMul"."""
    taken: Dict[str, int] = {}
    for node in program.model.graph:
        scopes = node.metadata_props.get("pkg.torch.onnx.name_scopes")
        path = ast.literal_eval(scopes)[-2] if scopes and len(ast.literal_eval(scopes)) > 1 else ""
        name = f"{path}/{node.op_type}" if path else node.op_type
        taken[name] = taken.get(name, 0) + 1
        node.name = name if taken[name] == 1 else f"{name}_{taken[name]}"
        node.metadata_props.clear()  # stack traces are of the caller's files, and longer than the graph


def from_torch(module: Any, example_inputs: Any, *, name: str = "") -> Model:
    """A ``torch.nn.Module``, through torch.export and ONNX. ``example_inputs``: what ``forward`` takes, a tensor, a
    tuple, or a dictionary of keyword arguments; the first dimension is the batch.

    Layers and parameters keep their names in the module. Parameters that are one tensor (a tied
    embedding) are one; parameters that merely have equal values are not. Values do not matter: a module on
    ``torch.device("meta")`` will do. Needs torch 2.6 or later, onnx and onnxscript.
    """
    try:
        import torch
        import onnx
        import onnxscript  # noqa: F401  (torch.onnx writes through it)
    except ImportError as missing:
        raise ImportError("from_torch() needs torch, onnx and onnxscript: pip install torch onnx onnxscript") from missing
    del onnx, torch
    args, kwargs = _as_tuple(example_inputs)
    was_training = module.training
    module.eval()
    try:
        program = _export(module, args, kwargs)
    except Exception as refused:  # torch has many kinds; what it says is what helps
        raise _refused(
            "module",
            f"torch refuses to export {type(module).__name__}: {str(refused).strip().splitlines()[0]}",
            "torch.export.export(module, args) shows all it says",
        ) from refused
    finally:
        module.train(was_training)
    _optimize_without_values(program, module)
    _name_by_module(program)
    path = os.path.join(tempfile.mkdtemp(prefix="smsim-model-"), "model.onnx")
    program.save(path)
    return Model(name or type(module).__name__, path)
