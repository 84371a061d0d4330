"""rehearse.sh: the environment of a verl revision, and `verl-npu rehearse` in it."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import environment, machine, pins
from harness.errors import BadInput
from harness.start import become, whole

_COMMANDS = environment.PROJECT / "docs" / "reference" / "commands.md"
_LATER = "0.16.0"
"""The megatron-core whose MindSpeed and bridge import more."""
_OF_MINDSPEED = ("triton==3.4.0",)
"""What MindSpeed core_r0.16.0 imports as it is itself imported; triton 3.9 refuses one of its kernels' decorators."""
_OF_BRIDGE = ("nvidia-modelopt==0.47.0",)
"""What Megatron-Bridge imports as a model is made. Itself it comes from where PYTHONPATH says."""
_VISION = {"2.13.0": "0.28.0", "2.8.0": "0.23.0"}
"""The torchvision of a torch."""


def main(program: str, given: Sequence[str], command: str = "rehearse") -> int:
    """Make the environment that the pin and the script need, and pass all other words on to a command of verl-npu."""
    return whole(program, lambda: _main(program, given, command))


def _main(program: str, given: Sequence[str], command: str) -> int:
    doing = f"Make the environment of a verl revision (minutes, once), and run verl-npu {command} in it."
    parser = argparse.ArgumentParser(
        prog=program,
        description=doing,
        epilog=f"All other words are those of verl-npu {command}:\n\n{help_of(command)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--pin", help=f"verl revision: {', '.join(pins.PINS)} (default: the checkout's)")
    parser.add_argument("--verl", metavar="PATH", help="a checkout of verl (default: what the script lies in)")
    own = _before_the_dashes(given)
    asked, words = parser.parse_known_args(own)
    python = environment.make(_recipe(asked, words))
    source = ["--verl", asked.verl] if asked.verl else []
    started = [str(python), "-m", "verl_npu", command, *source, *words, *given[len(own) :]]
    become(started, os.environ)


def help_of(command: str) -> str:
    """Return what a command of verl-npu prints for --help, from its page: its own needs packages of an environment."""
    section = _COMMANDS.read_text().partition(f"\n## verl-npu {command}\n")[2]
    return section.partition("```text\n")[2].partition("```")[0]


def _before_the_dashes(words: Sequence[str]) -> list[str]:
    """What follows -- are the script's own arguments."""
    return list(words[: words.index("--")] if "--" in words else words)


def _recipe(asked: argparse.Namespace, words: list[str]) -> environment.Recipe:
    checkout = pins.read_checkout(Path(asked.verl)) if asked.verl else _checkout_of(words)
    pin = pin_for(asked.pin or "", checkout, words)
    if checkout is None and not pin.on_pypi:
        raise BadInput(f"--pin {pin.name}: this revision is in git only. Give a checkout with --verl PATH")
    found = machine.look(2, sys.executable)
    if not found.virtual:
        raise BadInput("this is for virtual NPUs, and this machine has real ones. Run the script itself")
    return environment.Recipe(
        pin, checkout, pin.transformers, virtual=True, packages=_packages(pin, words), extras="report"
    )


def _checkout_of(words: list[str]) -> pins.Checkout | None:
    """The tree that a script of the command line lies in, if it is verl's."""
    for word in words:
        path = Path(word)
        for folder in path.resolve().parents if path.is_file() else ():
            if (folder / "verl" / "version" / "version").is_file():
                return pins.read_checkout(folder)
    return None


def pin_for(named: str, checkout: pins.Checkout | None, words: list[str]) -> pins.Pin:
    """Return the pin that is named, else the checkout's, else that of a script's line `# pin: v0.6.1`, else ours."""
    if named:
        return pins.find(named)
    if checkout is not None:
        return pins.pin_of(checkout)
    for path in map(Path, words):
        header = re.search(r"(?m)^# pin: (\S+)$", path.read_text(errors="replace")) if path.is_file() else None
        if header:
            return pins.find(header[1])
    return pins.find(pins.DEFAULT)


def speaks_of_megatron(text: str) -> bool:
    """Return whether a script says that it trains on Megatron."""
    return re.search("megatron|mindspeed", text, re.IGNORECASE) is not None


def _packages(pin: pins.Pin, words: list[str]) -> tuple[str, ...]:
    """Megatron, if a script of the command line speaks of it. MindSpeed comes from where VERL_NPU_MINDSPEED says."""
    texts = [Path(word).read_text(errors="replace") for word in words if Path(word).is_file()]
    words = "\n".join(texts).lower()
    megatron = (f"megatron-core=={pin.megatron_core}", "einops==0.8.1", "scipy==1.15.3", "mbridge==0.15.1")
    megatron += (*_OF_MINDSPEED, *_OF_BRIDGE) if pin.megatron_core == _LATER else ()
    # Its compiled part is for CUDA and does not load; what processors of images need of it is Python.
    images = (f"torchvision=={_VISION[pin.torch]}", "qwen-vl-utils==0.0.14", "av==16.0.1")
    return (megatron if speaks_of_megatron(words) else ()) + (
        images if re.search(r"[-_]vl\b|[-_]vl[-_]|\dvl|qwen3[._]5|geo3k", words) else ()
    )


if __name__ == "__main__":
    sys.exit(main("rehearse.sh", sys.argv[1:]))
