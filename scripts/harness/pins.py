"""The revisions of verl that the scripts can install and run: the pins that have a file in the workbench.

This module uses only the standard library and the packages inside pip.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import BadInput
from verl_npu import pins as locked
from verl_npu.language import gettext as _

if sys.version_info >= (3, 11):
    import tomllib
else:
    # Nothing is installed yet, but pip contains a copy.
    from pip._vendor import tomli as tomllib

SCRIPTS = Path(__file__).resolve().parent.parent
PROJECT = SCRIPTS.parent
WORKBENCH = PROJECT / "packages" / "verl-npu-workbench"
DEFAULT = "v0.6.1"


@dataclass(frozen=True)
class Engine:
    """The versions of vLLM's CPU build and of vllm-ascend that work together on virtual NPUs. The pin's documentation
    names these versions."""

    vllm_ascend: str
    """The version of vllm-ascend."""
    torch_npu: str
    """The version of torch_npu that virtual-ascend emulates."""
    torch: str
    packages: tuple[str, ...]
    """vLLM and its companions. They are installed without dependencies, because vLLM requires a torch from its own
    package index, and the pin's lists contain the other dependencies."""
    always: bool = False
    """True if every environment of the pin has vLLM, because other jobs also need vLLM."""
    requirements: tuple[str, ...] = ()
    """Requirements in addition to the pin's own."""
    commit: str = ""
    """The commit of vllm-ascend to build from the user's checkout, if the engine is not a release."""
    transformers: str = ""
    """The version of transformers for this engine, if it differs from the pin's version."""
    mode: str = "async"
    """The value of `rollout.mode` that the pin's verl uses for this engine."""
    graphs: bool = False
    """True if the engine captures graphs on virtual NPUs (simulation/graphs.py)."""

    @property
    def vllm(self) -> str:
        """The version of vLLM."""
        return self.packages[0].partition("==")[2].partition(".post")[0]


@dataclass(frozen=True)
class Pin:
    """A revision of verl, and the facts about it that jobs need."""

    name: str
    commit: str
    version: str
    """The content of verl/version/version in the release, or at the commit if there is no release."""
    transformers: str
    jobs: tuple[str, ...]
    """The names of the jobs that train at this pin."""
    requirements: tuple[str, ...]
    """All packages that the pin needs, except verl, torch, vLLM, and torch_npu. The list is complete, because
    nothing is installed from a checkout. torchvision is not in the list, because its newest version does not match a
    CPU build of torch."""
    megatron_core: str
    """The version of megatron-core that the pin's documentation names."""
    recipes: bool
    """True if a checkout has the folder `recipe/` beside the package. No wheel has this folder."""
    ray_init: str = "ray_kwargs.ray_init"
    """The Hydra path of the arguments of ray.init."""
    sft: str = "verl.trainer.sft_trainer"
    """The module of the trainer for supervised fine-tuning."""
    virtual_rollout: str = "virtual"
    """The rollout engine for virtual NPUs. On real NPUs, the engine is vllm."""
    small: tuple[str, ...] = ()
    """Settings for a small machine without Inductor. By default verl starts eight agent loop actors of a gigabyte
    each."""
    reward: str = "custom_reward_function"
    """The Hydra path of the user's own reward function."""
    in_git: str = ""
    """The content of verl/version/version in git, if it differs from the release."""
    torch: str = "2.13.0"
    engine: Engine | None = None

    @property
    def on_pypi(self) -> bool:
        """Whether pip can install the pin's version from PyPI."""
        return is_released(self.name)


def is_released(name: str) -> bool:
    """Return whether the pin called `name` is a release. Any other pin is a commit, which is available only in git."""
    return name.startswith("v")


def _fields(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of a pin's file as the arguments of a dataclass."""
    pairs = ((key.replace("-", "_"), value) for key, value in said.items())
    return {name: tuple(value) if isinstance(value, list) else value for name, value in pairs}


def _pin(pin: locked.Pin, said: Mapping[str, Any]) -> Pin:
    of_training = _fields(said["training"])
    if engine := of_training.get("engine"):
        of_training["engine"] = Engine(**_fields(engine))
    return Pin(
        name=pin.name,
        commit=pin.commit,
        version=pin.version,
        in_git=said.get("version_in_git", ""),
        recipes=said["recipes"],
        **of_training,
    )


def _read() -> dict[str, Pin]:
    known = locked.pins(PROJECT / "patches")
    folder = WORKBENCH / "verl_npu_workbench" / "pins"
    files = {name: folder / f"{name}.toml" for name in (DEFAULT, *(name for name in known if name != DEFAULT))}
    return {
        name: _pin(known[name], tomllib.loads(path.read_text(encoding="utf-8")))
        for name, path in files.items()
        if path.is_file()
    }


SMALL = "small"
ENGINES = (SMALL, "vllm-ascend")
"""The rollout engines on virtual NPUs: verl-npu's small engine, or the real vllm-ascend."""
SOURCE = "VERL_NPU_VLLM_ASCEND_SOURCE"
"""The variable that names a checkout of vllm-ascend, for a pin whose engine is a commit and not a release."""


PINS = _read()
"""The pins: the default first, then the others from the oldest."""


@dataclass(frozen=True)
class Checkout:
    """A folder that contains verl's source. Nothing in this folder is ever changed."""

    path: Path
    version: str
    revision: str | None
    """The git commit, if the folder is a git checkout."""


def find(name: str) -> Pin:
    """Return the pin called `name`. If there is no such pin, raise BadInput with the names of all pins."""
    if name not in PINS:
        raise BadInput(
            _(
                "--pin: expected one of {pins}; found {name!r}. To use another revision, pass a checkout with --verl "
                "PATH"
            ).format(pins=_(", ").join(PINS), name=name)
        )
    return PINS[name]


def check_engine(name: str, pin: Pin) -> None:
    """Raise BadInput unless a rollout engine with this name exists and the pin supports it."""
    if name not in ENGINES:
        raise BadInput(
            _("--rollout: expected one of {engines}; found {name!r}").format(engines=_(", ").join(ENGINES), name=name)
        )
    if name != SMALL and pin.engine is None:
        have = [each.name for each in PINS.values() if each.engine is not None]
        raise BadInput(
            _(
                "--rollout {name}: expected a pin whose vLLM and vllm-ascend can be installed here ({pins}); "
                "found {pin}. Omit --rollout to use verl-npu's small engine"
            ).format(name=name, pins=_(", ").join(have), pin=pin.name)
        )


def transformers_for(pin: Pin, rollout: str) -> str:
    """Return the default version of transformers for a pin and a rollout engine."""
    return (pin.engine.transformers if pin.engine is not None and rollout != SMALL else "") or pin.transformers


def engine_source(engine: Engine) -> Path:
    """Return the checkout that the engine is built from. Raise BadInput unless the environment variable SOURCE names a
    checkout at the required commit."""
    named = os.environ.get(SOURCE, "")
    if not (Path(named) / "vllm_ascend" / "__init__.py").is_file():
        raise BadInput(
            _(
                "--rollout vllm-ascend: expected {variable} to be the path of a vllm-ascend checkout at {commit}; "
                "found {found}. Clone vllm-ascend, check out {commit}, and set {variable} to the path of the clone"
            ).format(variable=SOURCE, commit=engine.commit, found=named or _("nothing"))
        )
    revision = _revision(Path(named))
    if revision is not None and not revision.startswith(engine.commit):
        raise BadInput(
            _(
                "--rollout vllm-ascend: expected {variable} to be the path of a vllm-ascend checkout at {commit}; "
                "found {found} at {revision}. Check out {commit} in that folder"
            ).format(variable=SOURCE, commit=engine.commit, found=named, revision=revision[:10])
        )
    return Path(named).resolve()


def read_checkout(path: Path) -> Checkout:
    """Read the version of verl in a folder. Raise BadInput if the folder does not contain verl."""
    version_file = path / "verl" / "version" / "version"
    if not version_file.is_file() or not (path / "verl" / "__init__.py").is_file():
        raise BadInput(
            _(
                "--verl: expected the root of a verl source tree, with verl/__init__.py and verl/version/version; "
                "found {path}. Pass the root of a verl clone"
            ).format(path=path)
        )
    return Checkout(path.resolve(), version_file.read_text().strip(), _revision(path))


def _revision(path: Path) -> str | None:
    """Return the commit of a git checkout, or None for any other folder."""
    if not (path / ".git").exists():
        return None
    command = ["git", "-C", str(path), "rev-parse", "HEAD"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    said = answer.stdout.strip()
    return said if answer.returncode == 0 and re.fullmatch(r"[0-9a-f]{40}", said) else None


def pin_of(checkout: Checkout) -> Pin:
    """Return the pin that matches a checkout, by commit or, if no commit matches, by version. Raise BadInput unless
    exactly one pin matches."""
    for pin in PINS.values():
        if checkout.revision == pin.commit:
            return pin
    alike = [pin for pin in PINS.values() if checkout.version in (pin.version, pin.in_git)]
    if len(alike) > 1:
        names = _(" and ").join(pin.name for pin in alike)
        raise BadInput(
            _(
                "--verl: {path} has version {version}. The pins {pins} have this version, but {path} is not a git "
                "checkout of any of these pins. Specify the pin with --pin"
            ).format(path=checkout.path, version=checkout.version, pins=names)
        )
    if alike:
        return alike[0]
    raise BadInput(
        _(
            "--verl: expected a revision close to one of {pins}; found version {version} in {path}. "
            "Specify the nearest pin with --pin"
        ).format(
            pins=_(", ").join(f"{pin.name} ({pin.version})" for pin in PINS.values()),
            version=checkout.version,
            path=checkout.path,
        )
    )
