"""Many scenarios: any concurrent.futures.Executor, resumable, rows as a data frame."""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import sqlite3
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union

from . import _core
from ._calls import Scenario, simulate
from ._errors import InputError
from ._results import Plan, Prediction, frame

__all__ = ["Sweep", "SweepRow", "grid", "sweep"]


@dataclass(frozen=True)
class SweepRow:
    """One point: what was asked, and the prediction's document, or the error's text."""

    point: Dict[str, Any]
    document: Optional[Dict[str, Any]] = None
    error: Optional[str] = None

    @property
    def prediction(self) -> Optional[Prediction]:
        return None if self.document is None else Prediction._of(self.document)

    def to_dict(self) -> Dict[str, Any]:
        """The point's keys, then the figures (a breakdown as ``breakdown_s.compute``), then ``error``."""
        prediction = self.prediction
        figures = {} if prediction is None else prediction._row()
        return {**self.point, **figures, "error": self.error}


@dataclass(frozen=True)
class Sweep:
    """Rows in the order of the points. ``reused``: those of them that an earlier run had answered."""

    rows: Tuple[SweepRow, ...] = ()
    reused: int = field(default=0, compare=False)

    def __iter__(self) -> Iterator[SweepRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]

    def to_dict(self) -> Dict[str, Any]:
        return {"rows": [row.to_dict() for row in self.rows]}

    def to_frame(self):
        """One row a point."""
        return frame([row.to_dict() for row in self.rows])

    def best(self, key: str = "step_time_s") -> SweepRow:
        """The row that fits with the least ``key``. Raises ValueError where none fits."""
        fitting = [(row.document[key], i) for i, row in enumerate(self.rows) if row.document and row.document["fits"]]
        if not fitting:
            raise ValueError("no point of the sweep fits")
        return self.rows[min(fitting)[1]]

    def _repr_html_(self) -> str:
        from ._display import seconds, table

        keys = sorted({key for row in self.rows for key in row.point})
        body = []
        for row in self.rows:
            told = row.document or {}
            body.append(
                [row.point.get(key) for key in keys]
                + ([seconds(told["step_time_s"]), told["mfu"], told["peak_memory_gib"], told["fits"]] if told else ["", "", "", ""])
                + [row.error or ""]
            )
        return f"<div>{table([*keys, 'step', 'MFU', 'peak, GiB', 'fits', 'error'], body)}</div>"


def grid(**axes: Iterable[Any]) -> List[Dict[str, Any]]:
    """Every combination of the values, the last key varying fastest: ``grid(plan__micro_batch=[1, 2],
    cluster__nodes=[2, 4])`` are four points."""
    points: List[Dict[str, Any]] = [{}]
    for key, values in axes.items():
        listed = list(values)
        points = [{**point, key.replace("__", "."): value} for point in points for value in listed]
    return points


def _portable(scenario: Scenario) -> Union[str, Dict[str, Any]]:
    """What another process or machine can be sent."""
    if isinstance(scenario, Plan):
        return _core.parse_toml(scenario.toml)
    if isinstance(scenario, Mapping):
        return dict(scenario)
    return os.path.abspath(os.fspath(scenario))


def _predict(job: Tuple[Union[str, Dict[str, Any]], Dict[str, Any]]) -> Tuple[Optional[Dict[str, Any]], Optional[str]]:
    """One point, in whatever process it lands. Only plain values travel."""
    scenario, point = job
    try:
        return simulate(scenario, **point).to_dict(), None
    except InputError as wrong:
        return None, str(wrong)


class _Store:
    """Answers on disk, by what was asked and of which version: what is there is not asked again."""

    def __init__(self, path: Union[str, "os.PathLike[str]", None]):
        self._file = sqlite3.connect(os.fspath(path), timeout=60) if path is not None else None
        if self._file:
            self._file.execute("CREATE TABLE IF NOT EXISTS answers (asked TEXT PRIMARY KEY, document TEXT, error TEXT)")

    @staticmethod
    def key(job) -> str:
        scenario, point = job
        content = scenario
        if isinstance(scenario, str):
            with open(scenario, "rb") as file:  # a file that was changed is another question
                content = [scenario, hashlib.sha256(file.read()).hexdigest()]
        asked = json.dumps([_core.version, _core.commit, content, point], sort_keys=True, default=str)
        return hashlib.sha256(asked.encode()).hexdigest()

    def get(self, key: str) -> Optional[Tuple[Optional[Dict[str, Any]], Optional[str]]]:
        if self._file is None:
            return None
        row = self._file.execute("SELECT document, error FROM answers WHERE asked = ?", (key,)).fetchone()
        return None if row is None else (json.loads(row[0]) if row[0] else None, row[1])

    def put(self, key: str, document: Optional[Dict[str, Any]], error: Optional[str]) -> None:
        if self._file is None:
            return
        text = None if document is None else json.dumps(document)
        self._file.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (key, text, error))
        self._file.commit()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def sweep(
    points: Iterable[Mapping[str, Any]],
    scenario: Optional[Scenario] = None,
    *,
    executor: Optional[concurrent.futures.Executor] = None,
    resume: Union[str, "os.PathLike[str]", None] = None,
    progress: Optional[Callable[[Dict[str, Any]], Optional[bool]]] = None,
) -> Sweep:
    """Simulates every point, several at a time.

    ``points``: dictionaries of what to change, as overrides of :func:`simulate` (:func:`grid` makes them); without
    a common ``scenario`` each names its own under the key ``"scenario"``. A point that is wrong is a row with an
    ``error``; the others are predicted all the same.

    ``executor``: any ``concurrent.futures.Executor``, which stays open: a process pool of all cores by default;
    Dask's ``Client.get_executor()``, ``mpi4py.futures.MPIPoolExecutor`` or Ray's for studies that outgrow a
    machine (workers need this package, and files under the same paths). ``resume``: a file (SQLite) in which answers are kept as
    they come: a sweep that was stopped, or one with more points, asks only what is not there. ``progress`` is
    called with a dict (done, all); returning False, or Ctrl-C, leaves what is not begun (with ``resume`` it is
    kept).
    """
    jobs: List[Tuple[Union[str, Dict[str, Any]], Dict[str, Any]]] = []
    asked: List[Dict[str, Any]] = []
    for point in points:
        changes = {key: value for key, value in point.items() if key != "scenario"}
        of_point = point.get("scenario", scenario)
        if of_point is None:
            raise ValueError("a sweep needs a scenario: one for all, or the key 'scenario' in every point")
        jobs.append((_portable(of_point), changes))
        asked.append(changes if "scenario" not in point else {"scenario": str(point["scenario"]), **changes})
    store = _Store(resume)
    try:
        return _answered(jobs, asked, store, executor, progress)
    finally:
        store.close()


def _answered(jobs, asked, store: _Store, executor, progress) -> Sweep:
    keys = [store.key(job) for job in jobs] if store._file is not None else [""] * len(jobs)
    answers: List[Optional[tuple]] = [store.get(key) for key in keys]
    reused = sum(answer is not None for answer in answers)
    missing = [i for i, answer in enumerate(answers) if answer is None]
    own = None
    if executor is None and missing:
        import multiprocessing

        # Not fork: the library's threads, or the caller's, may hold locks.
        own = executor = concurrent.futures.ProcessPoolExecutor(
            min(len(missing), os.cpu_count() or 1), mp_context=multiprocessing.get_context("spawn")
        )
    futures: Dict[Any, int] = {}
    try:
        futures = {executor.submit(_predict, jobs[i]): i for i in missing} if missing else {}
        for done, future in enumerate(_as_completed(futures), start=1):
            i = futures[future]
            document, error = answers[i] = future.result()
            store.put(keys[i], document, error)
            if progress is not None and progress({"done": reused + done, "all": len(jobs)}) is False:
                break
    finally:
        for future in futures:
            future.cancel()
        if own is not None:
            own.shutdown(wait=True, cancel_futures=True)
    rows = [SweepRow(point, *answer) for point, answer in zip(asked, answers) if answer is not None]
    return Sweep(tuple(rows), reused)


def _as_completed(futures: Mapping[Any, int]) -> Iterator[Any]:
    """As they come. Futures of Dask and mpi4py are no futures of the standard library in every version."""
    if all(isinstance(future, concurrent.futures.Future) for future in futures):
        yield from concurrent.futures.as_completed(futures)
    else:
        yield from futures
