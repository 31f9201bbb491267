"""The questions. Each is one call of the library's facade, which the tools' command lines call too."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Iterable, List, Literal, Mapping, Optional, Tuple, Union, overload

from . import _core
from ._errors import Diagnostic, InputError, NoPlanError, diagnostics_of
from ._results import (
    Comparison,
    ExportedPlan,
    Hardware,
    HardwareList,
    Partition,
    Plan,
    PlanResult,
    Prediction,
    Validation,
)

__all__ = ["compare", "export", "hardware", "import_plan", "partition", "plan", "simulate", "validate"]

#: A file, a dictionary of what the file would hold, or a plan that was found or predicted.
Scenario = Union[str, "os.PathLike[str]", Mapping[str, Any], Plan, Prediction]
#: A function of one dict (done, all, best, lower_bound, seconds). Returning False ends the work.
ProgressFunction = Callable[[Dict[str, Any]], Optional[bool]]


def _wrong_argument(name: str, message: str, hint: str = "") -> InputError:
    return InputError([Diagnostic("error", None, None, None, name, None, (), message, hint)])


def _raised(reply: Mapping[str, Any], arguments: Optional[Mapping[str, str]] = None) -> None:
    """Raises what a reply without an answer says."""
    if reply["document"] is not None and reply["outcome"] != "wrong_input":
        return
    diagnostics = diagnostics_of(reply["diagnostics"], arguments)
    raise (NoPlanError if reply["outcome"] == "no_plan" else InputError)(diagnostics)


def _more(reply: Mapping[str, Any], arguments: Optional[Mapping[str, str]] = None) -> Dict[str, Any]:
    return {
        "warnings": diagnostics_of(reply["diagnostics"], arguments),
        "written": tuple(reply["files"]),
        "_text": reply["text"],
    }


# ---------------------------------------------------------------------------------------------- scenarios


def _overrides(given: Mapping[str, Any]) -> Dict[str, Any]:
    """{"plan": {"micro_batch": 2}}, {"plan__micro_batch": 2} and {"plan.micro_batch": 2} alike, as the last."""
    flat: Dict[str, Any] = {}

    def put(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping) and value:
            for key, member in value.items():
                put(f"{prefix}.{key}", member)
        else:
            flat[prefix] = value

    for name, value in given.items():
        put(name.replace("__", "."), value)
    return flat


def _source(scenario: Scenario, overrides: Mapping[str, Any], name: str = "") -> Tuple[str, Any, Dict[str, Any], str]:
    flat = _overrides(overrides)
    if isinstance(scenario, Plan):
        return "", _core.parse_toml(scenario.toml), flat, name or f"plan {scenario.rank}"
    if isinstance(scenario, Prediction):
        raise _wrong_argument(
            "scenario", "a Prediction is an answer, not a scenario", "give what it was predicted from"
        )
    if isinstance(scenario, Mapping):
        return "", dict(scenario), flat, name or "scenario"
    try:
        path = os.fspath(scenario)
    except TypeError:
        raise _wrong_argument(
            "scenario",
            f"an object of type {type(scenario).__name__} is no scenario",
            "give a path, a dictionary, or a plan that smsim.plan found",
        ) from None
    return (os.fsdecode(path) if isinstance(path, bytes) else path), None, flat, name


def _path(given: Optional[Union[str, "os.PathLike[str]"]]) -> Optional[str]:
    return None if given is None else os.fspath(given)


def simulate(
    scenario: Scenario,
    *,
    explain: bool = False,
    unfolded: bool = False,
    trace: Optional[Union[str, "os.PathLike[str]"]] = None,
    html: Optional[Union[str, "os.PathLike[str]"]] = None,
    csv: Optional[Union[str, "os.PathLike[str]"]] = None,
    calibration: Optional[Union[str, "os.PathLike[str]"]] = None,
    **overrides: Any,
) -> Prediction:
    """Predicts one training step.

    ``scenario``: the path of a scenario or plan file, a dictionary of what the file would hold (references in it
    are relative to the current folder), or a :class:`Plan` of :func:`plan`. ``overrides`` change keys of it:
    ``plan={"micro_batch": 2}``, ``plan__micro_batch=2`` or ``**{"plan.micro_batch": 2}``.

    ``explain`` adds ``explanation`` (time by kind of operator, communication by link, sensitivity); ``trace``
    writes the timeline as Chrome trace JSON, ``html`` a report of one file (where the library was built with
    esbuild and D3; else InputError), ``csv`` the figures.

    Raises InputError, with every mistake among its ``diagnostics``. A plan that does not fit is no error: ``fits``
    is False and ``out_of_memory`` says where.
    """
    reply = _core.simulate(
        _source(scenario, overrides), [], _path(trace), _path(html), _path(csv), _path(calibration), explain, unfolded
    )
    _raised(reply)
    return Prediction._of(reply["document"], **_more(reply))


def compare(*scenarios: Scenario, names: Optional[Iterable[str]] = None, **overrides: Any) -> Comparison:
    """Why is the second scenario faster than the first? ``parts`` add up to the difference of their steps (Shapley
    values over the keys in which they differ). Further scenarios are compared with the first in ``comparisons``.
    ``overrides`` change keys of every one, as of :func:`simulate`."""
    named = list(names) if names is not None else [""] * len(scenarios)
    if len(named) != len(scenarios):
        raise _wrong_argument("names", f"{len(named)} names for {len(scenarios)} scenarios")
    reply = _core.compare([_source(one, overrides, name) for one, name in zip(scenarios, named)])
    _raised(reply)
    return Comparison._of(reply["document"], **_more(reply))


@overload
def hardware(name: Literal[""] = "") -> HardwareList: ...
@overload
def hardware(name: str) -> Hardware: ...
def hardware(name: str = "") -> Union[Hardware, HardwareList]:
    """One hardware profile, by name or file, with the source and date of every figure; without a name all."""
    reply = _core.hardware(os.fspath(name))
    _raised(reply, {"name": "NAME"})
    return (Hardware if name else HardwareList)._of(reply["document"], **_more(reply))


# ------------------------------------------------------------------------- questions with the tools' options


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(_text(item) for item in value)
    return os.fspath(value) if hasattr(value, "__fspath__") else str(value)


def _arguments(keywords: Mapping[str, Any]) -> Tuple[List[str], Dict[str, str]]:
    """Keyword arguments as options of the command line, and which is which: max_nodes=8 is --max-nodes=8. True is
    an option without a value; None and False are none. for_ and from_ are Python's way to write for and from."""
    arguments: List[str] = []
    options: Dict[str, str] = {}
    for keyword, value in keywords.items():
        option = "--" + keyword.rstrip("_").replace("_", "-")
        options[keyword] = option
        if value is None or value is False:
            continue
        arguments.append(option if value is True else f"{option}={_text(value)}")
    return arguments, options


def plan(
    model: Any = None,
    target: Union[str, Iterable[str], None] = None,
    *,
    progress: Optional[ProgressFunction] = None,
    **options: Any,
) -> PlanResult:
    """The best plans to train ``model`` on ``target``, best first, under the simulator's own model.

    ``model``: a catalogue name, the path of a config.json, .onnx or .toml, or what :func:`from_torch` and
    :func:`from_pretrained` made. ``target``: instance types, families ("p4d"), patterns or "all". ``options`` are
    those of ``smplan --help`` by their names: ``nodes=4``, ``max_nodes``, ``global_batch``, ``seq_len``,
    ``objective="cost"``, ``tokens="300B"``, ``deadline``, ``budget``, ``top``, ``time_limit``, ``for_="megatron"``,
    ``tp=[4, 8]``, ``pareto=True``, ``out="plan.toml"``, ...

    ``progress`` is called with a dict (done, all, best, lower_bound, seconds) while the search goes on. Ctrl-C, or
    a ``progress`` that returns False, ends it with the best so far (``interrupted``), or KeyboardInterrupt where
    there is none yet.

    Raises InputError for wrong input, NoPlanError where nothing fits, with what is missing and what would help.
    """
    arguments, names = _arguments({"model": model, "target": target, **options})
    reply = _core.plan(arguments, progress)
    _raised(reply, names)
    result = PlanResult._of(reply["document"], interrupted=reply["interrupted"], **_more(reply, names))
    for found, toml in zip(result.plans, reply["plan_files"]):
        object.__setattr__(found, "toml", toml)
    return result


def partition(graph: Any, devices: Optional[int] = None, *, progress: Optional[ProgressFunction] = None, **options: Any) -> Partition:
    """Any graph placed on devices so that the largest load is least, with a proof. ``graph``: a model as for
    :func:`plan`, or a file of a costed graph. ``options`` are those of ``smplan partition --help``: ``memory``,
    ``micro_batches``, ``bandwidth``, ``non_contiguous=True``, ``time_limit``, ``target``, ... Ctrl-C, or
    a ``progress`` that returns False, ends it with the best so far (``interrupted``), or KeyboardInterrupt where there
    is none yet. Raises NoPlanError where no placement exists, with the reason."""
    arguments, names = _arguments({"graph": graph, "devices": devices, **options})
    reply = _core.partition(arguments, progress)
    _raised(reply, names)
    return Partition._of(reply["document"], interrupted=reply["interrupted"], **_more(reply, names))


def validate(file: Any, clusters: Any, *, progress: Optional[ProgressFunction] = None, **options: Any) -> Validation:
    """Predicts every row of a file of measurements and scores the predictions. ``options``: ``sweeps``,
    ``calibration``, ``constant`` as of ``smsim validate --help``. ``progress`` gets rows done and in all. Ctrl-C,
    or a ``progress`` that returns False, ends it with the rows so far (``interrupted``): the scores are of these."""
    arguments, names = _arguments({"clusters": clusters, **options})
    reply = _core.validate([_text(file), *arguments], progress)
    _raised(reply, names)
    return Validation._of(reply["document"], interrupted=reply["interrupted"], **_more(reply, names))


def export(plan: Union[str, "os.PathLike[str]", Mapping[str, Any], Plan], to: str, **options: Any) -> ExportedPlan:
    """A plan in another tool's words. What ``to`` cannot express is an InputError that names the plan's key, never
    dropped silently. A plan that is no file is called plan.toml in the text. ``options``: ``out``, ``script``, ``command``, ``tensorflow`` of ``smplan export --help``."""
    arguments, names = _arguments({"to": to, **options})
    file = _as_file(plan)
    with file as path:
        reply = file.named(_core.export_plan([path, *arguments]))
    _raised(reply, names)
    return ExportedPlan._of(reply["document"], **_more(reply, names))


def import_plan(file: Any, from_: str, **options: Any) -> ExportedPlan:
    """Another tool's file as a plan: ``text`` is its plan file. ``options`` are those of ``smplan import --help``."""
    arguments, names = _arguments({"from_": from_, **options})
    reply = _core.import_plan([_text(file), *arguments])
    _raised(reply, names)
    return ExportedPlan._of(reply["document"], **_more(reply, names))


class _as_file:
    """The path of a plan, for as long as it is needed: what is no file becomes a temporary one."""

    def __init__(self, plan: Any):
        self._plan = plan
        self._temporary: Optional[str] = None

    def __enter__(self) -> str:
        import tempfile

        if isinstance(self._plan, Plan):
            text = self._plan.toml
        elif isinstance(self._plan, Mapping):
            text = _core.to_toml(dict(self._plan))
        else:
            return _text(self._plan)
        # Relative references in a plan are relative to the folder that holds it: the current one, as for simulate.
        folder = "." if os.access(".", os.W_OK) else None
        with tempfile.NamedTemporaryFile(
            "w", prefix=".smsim-plan-", suffix=".toml", dir=folder, delete=False, encoding="utf-8"
        ) as file:
            path: str = file.name
            self._temporary = path
            file.write(text)
        return path

    def named(self, answer: Any) -> Any:
        """The answer with "plan.toml" where it names a file that is gone when it is read: what Plan.save is to write."""
        if self._temporary is None:
            return answer
        if isinstance(answer, str):
            return answer.replace(os.path.abspath(self._temporary), "plan.toml").replace(self._temporary, "plan.toml")
        if isinstance(answer, Mapping):
            return {key: self.named(value) for key, value in answer.items()}
        return [self.named(value) for value in answer] if isinstance(answer, list) else answer

    def __exit__(self, *_: Any) -> None:
        if self._temporary is not None:
            os.unlink(self._temporary)
