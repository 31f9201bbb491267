"""What can go wrong: wrong input, no plan, a machine that failed, a broken promise of the library."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Mapping, Optional, Sequence, Tuple

from . import _core

__all__ = ["Diagnostic", "InputError", "InternalError", "MachineError", "NoPlanError", "SmsimError"]


@dataclass(frozen=True)
class Diagnostic:
    """One thing that is wrong, or worth a warning.

    ``file``, ``line`` and ``column`` are None for what came from Python; ``key`` is the dotted key
    (``"plan.tensor_parallel"``) or the argument; ``value`` the text given and ``allowed`` what may stand there,
    each where the library has them apart from ``message`` and ``hint``.
    """

    severity: str
    file: Optional[str]
    line: Optional[int]
    column: Optional[int]
    key: str
    value: Optional[str]
    allowed: Tuple[str, ...]
    message: str
    hint: str

    def to_dict(self) -> dict:
        return asdict(self)

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        text = f"{place}: {self.message}" if place else self.message
        return f"{text}\n  hint: {self.hint}" if self.hint else text


def diagnostics_of(entries: Sequence[Mapping[str, Any]], arguments: Optional[Mapping[str, str]] = None):
    """``arguments``: options of the command line by the keyword that stood for them."""
    keywords = {option: keyword for keyword, option in (arguments or {}).items()}
    return tuple(
        Diagnostic(**{**entry, "key": keywords.get(entry["key"], entry["key"]), "allowed": tuple(entry["allowed"])})
        for entry in entries
    )


class SmsimError(Exception):
    """Base of the errors that carry ``diagnostics``, a tuple of :class:`Diagnostic`."""

    def __init__(self, diagnostics: Sequence[Diagnostic]):
        self.diagnostics: Tuple[Diagnostic, ...] = tuple(diagnostics)
        super().__init__("\n".join(str(entry) for entry in self.diagnostics))

    def __reduce__(self):
        return type(self), (self.diagnostics,)

    def _repr_html_(self) -> str:
        from ._display import diagnostics_html

        return diagnostics_html(self.diagnostics)


class InputError(SmsimError, ValueError):
    """Wrong input (exit code 2 of the tools): every mistake is one of ``diagnostics``."""


class NoPlanError(SmsimError):
    """Nothing fits or nothing is allowed (exit code 3): ``diagnostics`` say what is missing and what would help."""


MachineError = _core.MachineError
InternalError = _core.InternalError
