"""The user's request, read from the command line and checked before anything is installed."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import jobs, pins
from harness.errors import BadInput
from verl_npu.language import gettext as _
from verl_npu.language import translate

_OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (
        "--pin",
        _("verl revision: {pins} (default {default})").format(pins=_(", ").join(pins.PINS), default=pins.DEFAULT),
        {},
    ),
    ("--verl", _("a checkout of verl; it is used in place and never changed"), {"metavar": "PATH"}),
    ("--transformers", _("a version of transformers other than the pin's default"), {"metavar": "VERSION"}),
    (
        "--torch-npu",
        _(
            "virtual NPUs under the wheel of this torch_npu release, with the matching torch (default: "
            "virtual-ascend's own torch_npu)"
        ),
        {"metavar": "VERSION"},
    ),
    (
        "--rollout",
        _("the rollout engine on virtual NPUs: {engines} (default {default})").format(
            engines=_(" or ").join(pins.ENGINES), default=pins.SMALL
        ),
        {"default": pins.SMALL},
    ),
    ("--output", _("the folder for results (default outputs)"), {"metavar": "DIR", "default": "outputs"}),
    ("--npus", _("the number of NPUs to train on (default 2)"), {"default": "2"}),
    ("--seed", _("the seed of the generated model and data (default 0)"), {"default": "0"}),
    ("--no-venv", _("use the current Python and its installed packages"), {"action": "store_true"}),
    ("overrides", _("after --: settings for verl, such as -- trainer.nnodes=1"), {"nargs": "*"}),
)
_SMOKE_OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("--job", _("one of {jobs}, or a recipe's name").format(jobs=_(", ").join(jobs.JOBS)), {"required": True}),
    ("--steps", _("the number of training steps (default 12)"), {"default": "12"}),
    ("--timeout", _("the time limit of the training in seconds (default 600)"), {"default": "600"}),
)
_QUICKSTART_OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("--model", _("the model (default: a generated small Qwen2 with random weights)"), {"metavar": "PATH|HUB"}),
    ("--data", _("the training data (default: generated sums in GSM8K's layout)"), {"metavar": "PATH|HUB"}),
    ("--steps", _("the number of training steps (default 40)"), {"default": "40"}),
    ("--plain", _("print plain lines and no plot"), {"action": "store_true"}),
)


@dataclass(frozen=True)
class Request:
    """The user's request for one run."""

    pin: pins.Pin
    checkout: pins.Checkout | None
    job: str
    model: str | None
    data: str | None
    steps: int
    npus: int
    seed: int
    transformers: str
    torch_npu: str | None
    """The version of the torch_npu wheel for virtual NPUs, or None for virtual-ascend's own torch_npu."""
    rollout: str
    """The rollout engine on virtual NPUs, one of pins.ENGINES."""
    output: Path
    plain: bool
    timeout: float | None
    make_environment: bool
    overrides: tuple[str, ...]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]  # argparse prints the usage too; we want one line
        raise BadInput(_("{message}. See {program} --help").format(message=message, program=self.prog))


def _whole(name: str, text: str, least: int) -> int:
    if not re.fullmatch(r"\d+", text) or int(text) < least:
        raise BadInput(
            _("--{name}: expected a whole number of at least {least}; found {found!r}").format(
                name=name, least=least, found=text
            )
        )
    return int(text)


def _parser(program: str, smoke: bool) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=program,
        description=translate(_("Train real verl on Ascend NPUs, or on virtual NPUs if there are none.")),
    )
    for name, text, settings in (*_OPTIONS, *(_SMOKE_OPTIONS if smoke else _QUICKSTART_OPTIONS)):
        parser.add_argument(name, help=translate(text), **settings)
    return parser


def parse(arguments: list[str], program: str, smoke: bool) -> Request:
    """Parse the command line. Raise BadInput if it is invalid."""
    found = _parser(program, smoke).parse_args(arguments)
    checkout = None
    if found.verl is not None:
        checkout = pins.read_checkout(Path(found.verl))
        pin = pins.find(found.pin) if found.pin else pins.pin_of(checkout)
    else:
        pin = pins.find(found.pin or pins.DEFAULT)
        if not pin.on_pypi and not found.no_venv:
            raise BadInput(
                _(
                    "--pin {pin}: this revision of verl is not in any package index. Clone verl, check out {commit}, "
                    "and pass the folder of the clone with --verl PATH"
                ).format(pin=pin.name, commit=pin.commit[:8])
            )
    for setting in found.overrides:
        if "=" not in setting:
            raise BadInput(
                _("the arguments after -- must be verl settings, such as data.seed=1; found {setting!r}").format(
                    setting=setting
                )
            )
    if found.transformers and not re.fullmatch(r"\d+\.\d+(\.\d+)?(\.?\w+)?", found.transformers):
        raise BadInput(
            _("--transformers: expected a version such as {example}; found {found!r}").format(
                example=pin.transformers, found=found.transformers
            )
        )
    if found.torch_npu and not re.fullmatch(r"2\.\d+\.\d+(\.post\d+)?", found.torch_npu):
        raise BadInput(
            _("--torch-npu: expected a version such as 2.13.0 or 2.5.1.post1; found {found!r}").format(
                found=found.torch_npu
            )
        )
    pins.check_engine(found.rollout, pin)
    job = jobs.find(found.job if smoke else "grpo", pin).name
    if found.rollout not in jobs.JOBS[job].engines or (found.rollout != pins.SMALL and found.torch_npu):
        going = _(" or ").join(each.name for each in jobs.JOBS.values() if found.rollout in each.engines)
        raise BadInput(
            _(
                "--rollout {rollout}: this engine works only with --job {jobs}, and only without --torch-npu. Remove "
                "the option that conflicts with --rollout"
            ).format(rollout=found.rollout, jobs=going)
        )
    return Request(
        pin=pin,
        checkout=checkout,
        job=job,
        model=None if smoke else found.model,
        data=None if smoke else found.data,
        steps=_whole("steps", found.steps, 1),
        npus=_whole("npus", found.npus, 1),
        seed=_whole("seed", found.seed, 0),
        transformers=found.transformers or pins.transformers_for(pin, found.rollout),
        torch_npu=found.torch_npu,
        rollout=found.rollout,
        output=Path(found.output).resolve(),
        plain=smoke or found.plain,
        timeout=float(_whole("timeout", found.timeout, 1)) if smoke else None,
        make_environment=not found.no_venv,
        overrides=tuple(found.overrides),
    )
