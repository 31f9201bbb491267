"""What the library answers, as typed values. Every one has ``to_dict()`` (the document of the command's
``--json``), ``to_frame()`` where pandas is installed, ``str()`` (the text of the command) and a rich display in
notebooks. Keys of the document that are no field of the class are attributes all the same."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Tuple, Type, TypeVar, Union

from . import _display
from ._errors import Diagnostic

__all__ = [
    "Comparison",
    "ComparedPart",
    "ExportedPlan",
    "Hardware",
    "HardwareList",
    "Partition",
    "Plan",
    "PlanResult",
    "Prediction",
    "RankMemory",
    "SearchAccount",
    "Stage",
    "Validation",
]

T = TypeVar("T", bound="Document")


def frame(rows, columns=None):
    """A pandas.DataFrame. Raises ImportError with what to do where pandas is not installed."""
    try:
        import pandas
    except ImportError as missing:
        raise ImportError("to_frame() needs pandas: pip install pandas") from missing
    return pandas.DataFrame(rows, columns=columns)


@dataclass(frozen=True, repr=False)
class Document:
    """A part of an answer: a table of the document, its known keys as fields."""

    _document: Dict[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def _of(cls: Type[T], document: Mapping[str, Any], **more: Any) -> T:
        known = {entry.name for entry in dataclasses.fields(cls)}
        values = {name: cls._converted(name, value) for name, value in document.items() if name in known}
        return cls(_document=dict(document), **{**values, **more})

    @classmethod
    def _converted(cls, name: str, value: Any) -> Any:
        return value

    def to_dict(self) -> Dict[str, Any]:
        return copy.deepcopy(self._document)

    def to_frame(self):
        return frame([self._document])

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            try:
                return self.__dict__["_document"][name]
            except KeyError:
                pass
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __getitem__(self, name: str) -> Any:
        return self._document[name]

    def __dir__(self):
        return sorted(set(super().__dir__()) | {name for name in self._document if name.isidentifier()})

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{entry.name}={getattr(self, entry.name)!r}"
            for entry in dataclasses.fields(self)
            if not entry.name.startswith("_") and isinstance(getattr(self, entry.name), (str, int, float, bool))
        )
        return f"{type(self).__name__}({shown})"


@dataclass(frozen=True, repr=False)
class Answer(Document):
    """A whole answer, with the warnings that came with it and the files that were ``written``."""

    warnings: Tuple[Diagnostic, ...] = field(default=(), compare=False)
    written: Tuple[str, ...] = field(default=(), compare=False)
    _text: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self._text or repr(self)


@dataclass(frozen=True, repr=False)
class RankMemory(Document):
    """Peak memory of a class of ranks that do the same, and what it is made of at that moment. GiB."""

    rank_class: int = 0
    stage: int = 0
    peak_gib: float = 0.0
    parameters_gib: float = 0.0
    gradients_gib: float = 0.0
    optimizer_gib: float = 0.0
    activations_gib: float = 0.0
    workspace_gib: float = 0.0
    overhead_gib: float = 0.0


@dataclass(frozen=True, repr=False)
class Prediction(Answer):
    """One training step. ``breakdown_s`` adds up to ``step_time_s`` on the critical rank; ``fits`` is False where
    the plan exceeds a device's memory (the prediction is made all the same)."""

    model: str = ""
    ranks: int = 0
    global_batch: int = 0
    step_time_s: float = 0.0
    step_time_s_80: Tuple[float, float] = (0.0, 0.0)
    samples_per_s: float = 0.0
    tokens_per_s: float = 0.0
    model_tflops_per_gpu: float = 0.0
    hardware_tflops_per_gpu: float = 0.0
    mfu: float = 0.0
    fits: bool = False
    peak_memory_gib: float = 0.0
    peak_memory_gib_80: Tuple[float, float] = (0.0, 0.0)
    available_memory_gib: float = 0.0
    memory: Tuple[RankMemory, ...] = ()
    breakdown_s: Dict[str, float] = field(default_factory=dict)
    usd_per_hour: Optional[float] = None
    usd_per_million_samples: Optional[float] = None
    assumptions: Tuple[str, ...] = ()
    plan: Dict[str, Any] = field(default_factory=dict)

    @classmethod
    def _converted(cls, name: str, value: Any) -> Any:
        if name == "memory":
            return tuple(RankMemory._of(entry) for entry in value)
        return tuple(value) if isinstance(value, list) else value

    def to_frame(self):
        """One row: the figures, and the breakdown as ``breakdown_s.compute`` and so on."""
        return frame([self._row()])

    def _row(self) -> Dict[str, Any]:
        row = {k: v for k, v in self._document.items() if isinstance(v, (str, int, float, bool)) or v is None}
        row.update({f"breakdown_s.{part}": seconds for part, seconds in self.breakdown_s.items()})
        return row

    def _repr_html_(self) -> str:
        return _display.prediction_html(self)


@dataclass(frozen=True, repr=False)
class Plan(Document):
    """One plan of a search. ``toml`` is its plan file, for the tools and for :func:`smsim.simulate`."""

    rank: int = 0
    target: str = ""
    nodes: int = 0
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    virtual_stages: int = 1
    data_parallel: int = 1
    sharding: str = "none"
    shard_degree: int = 1
    expert_parallel: int = 1
    expert_tensor_parallel: Optional[int] = None
    context_parallel: int = 1
    context_communication: str = "all_gather"
    micro_batch: int = 1
    micro_batches: int = 1
    schedule: str = ""
    recompute: str = "none"
    recompute_layers: Union[int, Tuple[int, ...]] = 0
    recompute_modules: Tuple[str, ...] = ()
    offload: str = "none"
    optimizer_offload: str = "none"
    parameter_offload: str = "none"
    partition: Tuple[int, ...] = ()
    step_time_s: float = 0.0
    step_time_s_80: Tuple[float, float] = (0.0, 0.0)
    samples_per_s: float = 0.0
    mfu: float = 0.0
    peak_memory_gib: float = 0.0
    usd_per_hour: Optional[float] = None
    usd_total: Optional[float] = None
    bound_by: str = ""
    why: str = ""
    toml: str = field(default="", compare=False)

    @classmethod
    def _converted(cls, name: str, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    def save(self, path) -> None:
        """Writes the plan file. References to profiles and models in it are as from the current folder."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.toml)


@dataclass(frozen=True, repr=False)
class SearchAccount(Document):
    """What was looked at: every plan of ``space`` was evaluated, rejected, pruned or left unvisited."""

    space: int = 0
    evaluated: int = 0
    rejected: Dict[str, int] = field(default_factory=dict)
    pruned: int = 0
    unvisited: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    evaluations_per_s: float = 0.0
    proven_optimal: bool = False
    lower_bound_s: Optional[float] = None
    gap_pct: Optional[float] = None
    axes: Dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class PlanResult(Answer):
    """The best plans, best first, and the account of the search. ``interrupted``: it was stopped (Ctrl-C, or a
    progress function that returned False) and these are the best so far. ``front`` instead of ``plans`` where
    the front of time, cost and memory was asked for; ``offers`` where ``objective`` is "expected-cost" or
    "expected-time": plans as they can be bought, with ``purchase``, ``hours_mean``, ``usd_mean``, ``risk``, ..."""

    model: str = ""
    global_batch: int = 0
    plans: Tuple[Plan, ...] = ()
    front: Tuple[Plan, ...] = ()
    offers: Tuple[Plan, ...] = ()
    search: SearchAccount = field(default_factory=SearchAccount)
    assumptions: Tuple[str, ...] = ()
    interrupted: bool = field(default=False, compare=False)

    @classmethod
    def _converted(cls, name: str, value: Any) -> Any:
        if name in ("plans", "front", "offers"):
            return tuple(Plan._of(entry) for entry in value)
        if name == "search":
            return SearchAccount._of(value)
        return tuple(value) if isinstance(value, list) else value

    @property
    def best(self) -> Plan:
        return self.rows[0]

    @property
    def rows(self) -> Tuple[Plan, ...]:
        """What was asked for: the plans, the front or the offers."""
        return self.plans or self.front or self.offers

    def to_frame(self):
        """One row a plan, or an offer."""
        return frame([plan.to_dict() for plan in self.rows])

    def _repr_html_(self) -> str:
        return _display.plans_html(self)


@dataclass(frozen=True, repr=False)
class Stage(Document):
    """A stage of a partition: ``load`` in the partition's unit, ``memory`` in bytes."""

    nodes: Tuple[Any, ...] = ()
    load: float = 0.0
    memory: float = 0.0

    @classmethod
    def _converted(cls, name: str, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, repr=False)
class Partition(Answer):
    """A placement of a graph: ``objective`` is the largest load of a stage, in ``unit``. ``interrupted``: the search
    was stopped, and this is its best so far."""

    objective: float = 0.0
    unit: str = ""
    proven_optimal: bool = False
    lower_bound: float = 0.0
    stages: Tuple[Stage, ...] = ()
    seconds: float = 0.0
    peak_rss_mib: float = 0.0
    interrupted: bool = field(default=False, compare=False)

    @classmethod
    def _converted(cls, name: str, value: Any) -> Any:
        return tuple(Stage._of(entry) for entry in value) if name == "stages" else value

    def to_frame(self):
        """One row a stage."""
        return frame([stage.to_dict() for stage in self.stages])

    def _repr_html_(self) -> str:
        return _display.partition_html(self)


@dataclass(frozen=True, repr=False)
class ComparedPart(Document):
    """What a key, or keys that belong together, add to a step, in seconds."""

    key: str = ""
    seconds: float = 0.0
    changes: Tuple[Dict[str, Any], ...] = ()

    @classmethod
    def _converted(cls, name: str, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, repr=False)
class Comparison(Answer):
    """Why the second scenario is faster than the first: ``parts`` add up to the difference of their steps."""

    step_time_s: Tuple[float, ...] = ()
    parts: Tuple[ComparedPart, ...] = ()
    comparisons: Tuple[Dict[str, Any], ...] = ()

    @classmethod
    def _converted(cls, name: str, value: Any) -> Any:
        if name == "parts":
            return tuple(ComparedPart._of(entry) for entry in value)
        return tuple(value) if isinstance(value, list) else value

    def to_frame(self):
        """One row a part."""
        return frame([{"key": part.key, "seconds": part.seconds} for part in self.parts])

    def _repr_html_(self) -> str:
        return _display.comparison_html(self)


@dataclass(frozen=True, repr=False)
class ExportedPlan(Answer):
    """A plan in another tool's words: ``text`` is the file, ``companions`` go beside it."""

    target: str = ""
    text: str = ""
    companions: Tuple[Dict[str, str], ...] = ()
    notes: Tuple[str, ...] = ()

    @classmethod
    def _converted(cls, name: str, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return _display.export_html(self)


@dataclass(frozen=True, repr=False)
class Hardware(Answer):
    """One hardware profile, with the source and date of every figure."""

    name: str = ""
    device: str = ""
    devices: int = 0
    memory_gib: float = 0.0
    inside: str = ""
    network_gbps: Optional[float] = None
    usd_per_hour: Optional[float] = None
    figures: Tuple[Dict[str, Any], ...] = ()

    @classmethod
    def _converted(cls, name: str, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    def to_frame(self):
        """One row a figure, with its source and date; a profile of the list is one row."""
        return frame(list(self.figures)) if self.figures else frame([self._document])

    def _repr_html_(self) -> str:
        return _display.hardware_html([self])


@dataclass(frozen=True, repr=False)
class HardwareList(Answer):
    """Every profile that is known."""

    instances: Tuple[Hardware, ...] = ()

    @classmethod
    def _converted(cls, name: str, value: Any) -> Any:
        return tuple(Hardware._of(entry) for entry in value) if name == "instances" else value

    def __iter__(self):
        return iter(self.instances)

    def __len__(self) -> int:
        return len(self.instances)

    def to_frame(self):
        """One row a profile."""
        return frame([entry.to_dict() for entry in self.instances])

    def _repr_html_(self) -> str:
        return _display.hardware_html(self.instances)


@dataclass(frozen=True, repr=False)
class Validation(Answer):
    """Predictions of published measurements beside what was measured, with their scores in per cent.
    ``interrupted``: it was stopped, ``rows_left_out`` rows are missing, and the scores are of the others."""

    rows: Tuple[Dict[str, Any], ...] = ()
    groups: Tuple[Dict[str, Any], ...] = ()
    macro_mape_pct: float = 0.0
    memory_mape_pct: Optional[float] = None
    coverage_80_pct: Optional[float] = None
    sweeps: Tuple[Dict[str, Any], ...] = ()
    interrupted: bool = field(default=False, compare=False)

    @classmethod
    def _converted(cls, name: str, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    def to_frame(self):
        """One row a measurement."""
        return frame(list(self.rows))

    def _repr_html_(self) -> str:
        return _display.validation_html(self)
