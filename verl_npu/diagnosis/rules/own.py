"""Errors and warnings of verl-npu itself: they say what was expected, what was found, and what to do."""

from __future__ import annotations

from ..rule import Precision, rule

__all__ = ["OWN"]

_ERRORS = "verl_npu/errors.py"
_PARTS = r"(?P<subject>[^\n]*?): expected (?P<expected>[^\n]*), found (?P<found>[^\n]*?); (?P<fix>[^\n]*)"

OWN = (
    rule(
        "asked-for-fault",
        Precision.EXACT,
        r"verl-npu: fault: (?P<what>[^\n]*)|call \d+ failed, as VERL_NPU_VIRTUAL_FAULTS asks",
        means="virtual NPUs made this failure because VERL_NPU_VIRTUAL_FAULTS asks for it (SIMULATED)",
        fix="unset VERL_NPU_VIRTUAL_FAULTS if you did not mean to try a failure",
        seen=("docs/virtual-ascend.md",),
        anywhere=True,
    ),
    rule(
        "own-group",
        Precision.SYMPTOM,
        rf"verl_npu\.errors\.(?:GroupError|TransferError): {_PARTS}",
        means="{subject}: expected {expected}, found {found}",
        fix="{fix}; if another rank has an error of its own, that is the cause",
        seen=(_ERRORS, "docs/weight-sync.md"),
    ),
    rule(
        "own-error",
        Precision.OWN,
        rf"verl_npu\.errors\.(?!GroupError|TransferError)\w+: {_PARTS}",
        means="{subject}: expected {expected}, found {found}",
        fix="{fix}",
        seen=(_ERRORS,),
    ),
    rule(
        "not-on-virtual-npus",
        Precision.EXACT,
        r"torch_npu\.(?P<name>\w+) is not implemented by the virtual Ascend",
        means="virtual NPUs do not compute {name}; a real NPU may (SIMULATED)",
        fix="choose another model or setting for the trial, or add the operator in verl_npu/virtual/operators/",
        seen=("docs/virtual-ascend.md",),
    ),
    rule(
        "own-off",
        Precision.EXACT,
        r"verl-npu: (?P<why>[^\n]*); verl-npu stays off in this process",
        means="verl-npu patched nothing in this process: {why}",
        fix="mend what the line names, or set VERL_NPU=off if you do not want verl-npu here",
        seen=("docs/design.md",),
        anywhere=True,
    ),
    rule(
        "own-drifted",
        Precision.HINT,
        r"verl-npu: (?P<what>[^\n]*\bdrifted\b[^\n]*)",
        means="verl-npu left a feature out, because upstream is not what its patches were written for: {what}",
        fix="`verl-npu check --diff` shows the difference; install a verl that has a lock",
        seen=("docs/design.md",),
        anywhere=True,
    ),
    rule(
        "own-disabled",
        Precision.HINT,
        r"verl-npu: \S+: (?P<summary>[^\n]*\b(?:\w+ disabled)\b[^\n]*)",
        means="a feature of verl-npu was switched off: {summary}",
        fix="unset VERL_NPU_DISABLE, unless you know that the job does not need the feature",
        seen=("docs/environment.md",),
        anywhere=True,
    ),
)
