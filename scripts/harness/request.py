"""What the user asked for, read from the command line and checked before anything is installed."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

from harness import jobs, pins
from harness.errors import BadInput


@dataclass(frozen=True)
class Request:
    """One run, as asked for."""

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
    """The version of torch_npu that virtual NPUs are to have, from its wheel; None for our own."""
    rollout: str
    """What generates on virtual NPUs, one of pins.ENGINES."""
    output: Path
    plain: bool
    timeout: float | None
    make_environment: bool
    overrides: tuple[str, ...]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]  # argparse prints the usage too: one line is asked
        raise BadInput(f"{message}. See {self.prog} --help")


def _whole(name: str, text: str, least: int) -> int:
    if not re.fullmatch(r"\d+", text) or int(text) < least:
        raise BadInput(f"--{name}: expected a whole number from {least}, found {text!r}")
    return int(text)


def _parser(program: str, smoke: bool) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=program, description="Train real verl on Ascend NPUs, or on virtual ones where there are none."
    )
    parser.add_argument("--pin", help=f"verl revision: {', '.join(pins.PINS)} (default {pins.DEFAULT})")
    parser.add_argument("--verl", metavar="PATH", help="a checkout of verl; used as it lies, never written to")
    parser.add_argument("--transformers", metavar="VERSION", help="another transformers than the pin's default")
    parser.add_argument(
        "--torch-npu",
        metavar="VERSION",
        help="virtual NPUs under this torch_npu's own wheel, with the torch that it belongs to (default: our own)",
    )
    parser.add_argument(
        "--rollout",
        default=pins.SMALL,
        help=f"what generates on virtual NPUs: {' or '.join(pins.ENGINES)} (default {pins.SMALL})",
    )
    parser.add_argument("--output", metavar="DIR", default="outputs", help="where results go (default outputs)")
    parser.add_argument("--npus", default="2", help="NPUs to train on (default 2)")
    parser.add_argument("--seed", default="0", help="seed of the generated model and data (default 0)")
    parser.add_argument("--no-venv", action="store_true", help="use the calling python, with what is installed there")
    parser.add_argument(
        "overrides", nargs="*", help="after --: settings passed on to verl, such as -- trainer.nnodes=1"
    )
    if smoke:
        parser.add_argument("--job", required=True, help=f"one of {', '.join(jobs.JOBS)}, or a recipe's name")
        parser.add_argument("--steps", default="12", help="training steps (default 12)")
        parser.add_argument("--timeout", default="600", help="seconds that the training may take (default 600)")
    else:
        parser.add_argument("--model", metavar="PATH|HUB", help="default: a small random Qwen2, made on the spot")
        parser.add_argument("--data", metavar="PATH|HUB", help="default: generated sums in GSM8K's layout")
        parser.add_argument("--steps", default="40", help="training steps (default 40)")
        parser.add_argument("--plain", action="store_true", help="plain lines, no plot")
    return parser


def parse(arguments: list[str], program: str, smoke: bool) -> Request:
    """Read the command line; raises BadInput with one line."""
    found = _parser(program, smoke).parse_args(arguments)
    checkout = None
    if found.verl is not None:
        checkout = pins.read_checkout(Path(found.verl))
        pin = pins.find(found.pin) if found.pin else pins.pin_of(checkout)
    else:
        pin = pins.find(found.pin or pins.DEFAULT)
        if not pin.on_pypi and not found.no_venv:
            raise BadInput(
                f"--pin {pin.name}: this revision is in git only. "
                f"Clone verl, check out {pin.commit[:8]} and give the folder with --verl PATH"
            )
    for setting in found.overrides:
        if "=" not in setting:
            raise BadInput(f"after --: expected settings of verl such as data.seed=1, found {setting!r}")
    if found.transformers and not re.fullmatch(r"\d+\.\d+(\.\d+)?(\.?\w+)?", found.transformers):
        raise BadInput(f"--transformers: expected a version such as {pin.transformers}, found {found.transformers!r}")
    if found.torch_npu and not re.fullmatch(r"2\.\d+\.\d+(\.post\d+)?", found.torch_npu):
        raise BadInput(f"--torch-npu: expected a version such as 2.13.0 or 2.5.1.post1, found {found.torch_npu!r}")
    pins.check_engine(found.rollout, pin)
    job = jobs.find(found.job if smoke else "grpo", pin).name
    if found.rollout not in jobs.JOBS[job].engines or (found.rollout != pins.SMALL and found.torch_npu):
        going = " or ".join(each.name for each in jobs.JOBS.values() if found.rollout in each.engines)
        raise BadInput(
            f"--rollout {found.rollout}: it goes with --job {going}, and with the virtual Ascend's own torch_npu. "
            "Leave the other option out"
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
