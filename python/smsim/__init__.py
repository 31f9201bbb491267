"""smsim: how long a step of distributed training takes, what it costs, and the plan that makes it short.

    import smsim

    prediction = smsim.simulate("scenarios/llama2_7b_p4d.toml", plan__micro_batch=2)
    prediction.step_time_s, prediction.fits, prediction.breakdown_s

    found = smsim.plan("llama-2-7b", "p4d.24xlarge", nodes=4)
    found.best.save("plan.toml")

Figures are those of the tools to the last bit: both call the same library.
"""

from . import _core
from ._calls import compare, export, hardware, import_plan, partition, plan, simulate, validate
from ._errors import Diagnostic, InputError, InternalError, MachineError, NoPlanError, SmsimError
from ._models import Model, from_pretrained, from_torch
from ._results import (
    ComparedPart,
    Comparison,
    ExportedPlan,
    Hardware,
    HardwareList,
    Partition,
    Plan,
    PlanResult,
    Prediction,
    RankMemory,
    SearchAccount,
    Stage,
    Validation,
)
from ._sweep import Sweep, SweepRow, grid, sweep

__version__ = _core.version
__commit__ = _core.commit

__all__ = [
    "ComparedPart",
    "Comparison",
    "Diagnostic",
    "ExportedPlan",
    "Hardware",
    "HardwareList",
    "InputError",
    "InternalError",
    "MachineError",
    "Model",
    "NoPlanError",
    "Partition",
    "Plan",
    "PlanResult",
    "Prediction",
    "RankMemory",
    "SearchAccount",
    "SmsimError",
    "Stage",
    "Sweep",
    "SweepRow",
    "Validation",
    "compare",
    "export",
    "from_pretrained",
    "from_torch",
    "grid",
    "hardware",
    "import_plan",
    "partition",
    "plan",
    "simulate",
    "sweep",
    "validate",
]
