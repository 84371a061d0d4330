"""rehearse.sh: make the environment of a verl revision, and run `verl-npu rehearse` in it."""

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
"""The megatron-core whose MindSpeed and Megatron-Bridge need more packages."""
_MINDSPEED_NEEDS = ("triton==3.4.0",)
"""MindSpeed core_r0.16.0 imports triton at once. triton 3.9 refuses the decorator of one of its kernels."""
_BRIDGE_NEEDS = ("nvidia-modelopt==0.47.0",)
"""Megatron-Bridge imports this to create a model. Megatron-Bridge itself is found through PYTHONPATH."""
_VISION = {"2.13.0": "0.28.0", "2.8.0": "0.23.0"}
"""The torchvision for each torch."""


def main(program: str, given: Sequence[str], command: str = "rehearse") -> int:
    """Make the environment that the pin and the script need, and pass all other arguments to a command of verl-npu."""
    return whole(program, lambda: _main(program, given, command))


def _main(program: str, given: Sequence[str], command: str) -> int:
    doing = f"Make the environment of a verl revision (minutes, once), and run verl-npu {command} in it."
    parser = argparse.ArgumentParser(
        prog=program,
        description=doing,
        epilog=f"All other arguments go to verl-npu {command}:\n\n{help_of(command)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--pin", help=f"verl revision: {', '.join(pins.PINS)} (default: the checkout's)")
    parser.add_argument("--verl", metavar="PATH", help="a checkout of verl (default: the script's)")
    own = _before_the_dashes(given)
    asked, words = parser.parse_known_args(own)
    python = environment.make(_recipe(asked, words))
    source = ["--verl", asked.verl] if asked.verl else []
    started = [str(python), "-m", "verl_npu", command, *source, *words, *given[len(own) :]]
    become(started, os.environ)


def help_of(command: str) -> str:
    """Return the --help of a command of verl-npu, from the page of commands, because it needs packages to run."""
    section = _COMMANDS.read_text().partition(f"\n## verl-npu {command}\n")[2]
    return section.partition("```text\n")[2].partition("```")[0]


def _before_the_dashes(words: Sequence[str]) -> list[str]:
    """Return the words before `--`. The words after it are arguments of the script."""
    return list(words[: words.index("--")] if "--" in words else words)


def _recipe(asked: argparse.Namespace, words: list[str]) -> environment.Recipe:
    checkout = pins.read_checkout(Path(asked.verl)) if asked.verl else _checkout_of(words)
    pin = pin_for(asked.pin or "", checkout, words)
    if checkout is None and not pin.on_pypi:
        raise BadInput(f"--pin {pin.name}: this revision is in git only. Give a checkout with --verl PATH")
    found = machine.look(2, sys.executable)
    if not found.virtual:
        raise BadInput("this is for virtual NPUs, and this machine has real NPUs. Run the script itself")
    return environment.Recipe(
        pin, checkout, pin.transformers, virtual=True, packages=_packages(pin, words), extras="report"
    )


def _checkout_of(words: list[str]) -> pins.Checkout | None:
    """Return the checkout of verl that contains a script on the command line, if any."""
    for word in words:
        path = Path(word)
        for folder in path.resolve().parents if path.is_file() else ():
            if (folder / "verl" / "version" / "version").is_file():
                return pins.read_checkout(folder)
    return None


def pin_for(named: str, checkout: pins.Checkout | None, words: list[str]) -> pins.Pin:
    """Return the named pin, else the checkout's, else the one in a script's line `# pin: v0.6.1`, else the default."""
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
    """Return whether a script mentions Megatron or MindSpeed."""
    return re.search("megatron|mindspeed", text, re.IGNORECASE) is not None


def _packages(pin: pins.Pin, words: list[str]) -> tuple[str, ...]:
    """Return the packages of Megatron, if a script mentions it, and those for images, if a script trains on images.

    MindSpeed itself is found through VERL_NPU_MINDSPEED.
    """
    texts = [Path(word).read_text(errors="replace") for word in words if Path(word).is_file()]
    words = "\n".join(texts).lower()
    megatron = (f"megatron-core=={pin.megatron_core}", "einops==0.8.1", "scipy==1.15.3", "mbridge==0.15.1")
    megatron += (*_MINDSPEED_NEEDS, *_BRIDGE_NEEDS) if pin.megatron_core == _LATER else ()
    # torchvision's compiled part is for CUDA and does not load. Image processors only need its Python part.
    images = (f"torchvision=={_VISION[pin.torch]}", "qwen-vl-utils==0.0.14", "av==16.0.1")
    return (megatron if speaks_of_megatron(words) else ()) + (
        images if re.search(r"[-_]vl\b|[-_]vl[-_]|\dvl|qwen3[._]5|geo3k", words) else ()
    )


if __name__ == "__main__":
    sys.exit(main("rehearse.sh", sys.argv[1:]))
