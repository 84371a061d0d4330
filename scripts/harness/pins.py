"""The revisions of verl that the scripts can install and run: the pins for which the workbench has a file.

It uses only the standard library and the packages inside pip.
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
    """The versions of vLLM's build for CPUs and of vllm-ascend that serve together on virtual NPUs. The pin's
    documents name these versions."""

    vllm_ascend: str
    """The version of vllm-ascend."""
    torch_npu: str
    """The version of torch_npu that the virtual Ascend pretends to be."""
    torch: str
    packages: tuple[str, ...]
    """vLLM and its companions. They are installed without dependencies, because vLLM requires a torch of its own
    index, and the pin's lists have the other dependencies."""
    always: bool = False
    """True if every environment of the pin has vLLM, because other jobs need it, too."""
    requirements: tuple[str, ...] = ()
    """Requirements in addition to the pin's own."""
    commit: str = ""
    """The commit of vllm-ascend to build from the user's checkout, if it is not a release."""
    transformers: str = ""
    """The version of transformers for it, if it is not the pin's."""
    mode: str = "async"
    """The `rollout.mode` in which the pin's verl serves with it."""
    graphs: bool = False
    """True if it captures graphs on virtual NPUs (simulation/graphs.py)."""

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
    """All packages that verl needs here, except verl, torch, vLLM, and torch_npu. The list is complete, because
    nothing is installed from a checkout. It has no torchvision, because the newest one does not match a CPU torch."""
    megatron_core: str
    """The version of megatron-core that the pin's documents name."""
    recipes: bool
    """True if a checkout has `recipe/` beside the package; no wheel has it."""
    ray_init: str = "ray_kwargs.ray_init"
    """The Hydra path of the arguments of ray.init."""
    sft: str = "verl.trainer.sft_trainer"
    """The module of the trainer for supervised fine-tuning."""
    virtual_rollout: str = "virtual"
    """The rollout engine for virtual NPUs. On real NPUs it is vllm."""
    small: tuple[str, ...] = ()
    """Settings for a small machine without Inductor. By default verl starts eight agent loop actors of a gigabyte
    each."""
    reward: str = "custom_reward_function"
    """The Hydra path of the user's own reward function."""
    in_git: str = ""
    """The content of that file in git, if it differs from the release."""
    torch: str = "2.13.0"
    engine: Engine | None = None

    @property
    def on_pypi(self) -> bool:
        """Whether pip can install the pin from PyPI by its version."""
        return is_released(self.name)


def is_released(name: str) -> bool:
    """Return whether the pin called `name` is a release. Other pins are commits, which only git has."""
    return name.startswith("v")


def _pin(pin: locked.Pin, said: Mapping[str, Any]) -> Pin:
    of_training = {key: tuple(value) if isinstance(value, list) else value for key, value in said["training"].items()}
    engine = of_training.pop("engine", None)
    if engine is not None:
        of_training["engine"] = Engine(
            vllm_ascend=engine["vllm-ascend"],
            torch_npu=engine["torch_npu"],
            torch=engine["torch"],
            packages=tuple(engine["packages"]),
            always=engine.get("always", False),
            requirements=tuple(engine.get("requirements", ())),
            commit=engine.get("commit", ""),
            transformers=engine.get("transformers", ""),
            mode=engine.get("mode", "async"),
            graphs=engine.get("graphs", False),
        )
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
"""The rollout engines on virtual NPUs: the project's own engine, or the real vllm-ascend."""
SOURCE = "VERL_NPU_VLLM_ASCEND_SOURCE"
"""The variable that names a checkout of vllm-ascend, for a pin whose engine is a commit and not a release."""


PINS = _read()
"""The pins: the default first, then the others from the oldest."""


@dataclass(frozen=True)
class Checkout:
    """A folder with verl's source, in which nothing is ever changed."""

    path: Path
    version: str
    revision: str | None
    """The git commit, if the folder is a git checkout."""


def find(name: str) -> Pin:
    """Return the pin called `name`. If there is no such pin, raise BadInput with the names of all pins."""
    if name not in PINS:
        raise BadInput(
            _(
                "--pin: expected one of {pins}; found {name!r}. To use another revision, give a checkout with --verl "
                "PATH"
            ).format(pins=_(", ").join(PINS), name=name)
        )
    return PINS[name]


def check_engine(name: str, pin: Pin) -> None:
    """Raise BadInput unless there is a rollout engine of this name and the pin has this engine."""
    if name not in ENGINES:
        raise BadInput(
            _("--rollout: expected one of {engines}; found {name!r}").format(engines=_(", ").join(ENGINES), name=name)
        )
    if name != SMALL and pin.engine is None:
        have = [each.name for each in PINS.values() if each.engine is not None]
        raise BadInput(
            _(
                "--rollout {name}: expected a pin whose vLLM and vllm-ascend can be installed here ({pins}); "
                "found {pin}. Leave out --rollout to use verl-npu's small engine"
            ).format(name=name, pins=_(", ").join(have), pin=pin.name)
        )


def transformers_for(pin: Pin, rollout: str) -> str:
    """Return the default version of transformers for a pin and a rollout engine."""
    return (pin.engine.transformers if pin.engine is not None and rollout != SMALL else "") or pin.transformers


def engine_source(engine: Engine) -> Path:
    """Return the checkout from which the engine is built. Raise BadInput unless the environment variable SOURCE names
    a checkout at the right commit."""
    named = os.environ.get(SOURCE, "")
    if not (Path(named) / "vllm_ascend" / "__init__.py").is_file():
        raise BadInput(
            _(
                "--rollout vllm-ascend: expected {variable} to be the folder of a checkout of vllm-ascend at "
                "{commit}; found {found}. Clone vllm-ascend, check out {commit}, and set {variable} to the folder "
                "of the clone"
            ).format(variable=SOURCE, commit=engine.commit, found=named or _("nothing"))
        )
    revision = _revision(Path(named))
    if revision is not None and not revision.startswith(engine.commit):
        raise BadInput(
            _(
                "--rollout vllm-ascend: expected {variable} to be the folder of a checkout of vllm-ascend at "
                "{commit}; found {found}, which is at {revision}. Check out {commit} there"
            ).format(variable=SOURCE, commit=engine.commit, found=named, revision=revision[:10])
        )
    return Path(named).resolve()


def read_checkout(path: Path) -> Checkout:
    """Read the version of verl in a folder. Raise BadInput if the folder contains no verl."""
    version_file = path / "verl" / "version" / "version"
    if not version_file.is_file() or not (path / "verl" / "__init__.py").is_file():
        raise BadInput(
            _(
                "--verl: expected a folder with verl's source (verl/__init__.py and verl/version/version); found "
                "{path}. Give the root of a clone of verl with --verl"
            ).format(path=path)
        )
    return Checkout(path.resolve(), version_file.read_text().strip(), _revision(path))


def _revision(path: Path) -> str | None:
    """Return the commit of a git checkout; None for any other folder."""
    if not (path / ".git").exists():
        return None
    command = ["git", "-C", str(path), "rev-parse", "HEAD"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    said = answer.stdout.strip()
    return said if answer.returncode == 0 and re.fullmatch(r"[0-9a-f]{40}", said) else None


def pin_of(checkout: Checkout) -> Pin:
    """Return the pin of a checkout. It is found by the commit or, if that fails, by the version. Raise BadInput unless
    exactly one pin fits."""
    for pin in PINS.values():
        if checkout.revision == pin.commit:
            return pin
    alike = [pin for pin in PINS.values() if checkout.version in (pin.version, pin.in_git)]
    if len(alike) > 1:
        names = _(" and ").join(pin.name for pin in alike)
        raise BadInput(
            _(
                "--verl: {path} has version {version}, as {pins} do, and is not a git checkout of any of these "
                "pins. Give the right pin with --pin"
            ).format(path=checkout.path, version=checkout.version, pins=names)
        )
    if alike:
        return alike[0]
    raise BadInput(
        _(
            "--verl: expected a revision near one of {pins}; found version {version} in {path}. "
            "Give the nearest pin with --pin"
        ).format(
            pins=_(", ").join(f"{pin.name} ({pin.version})" for pin in PINS.values()),
            version=checkout.version,
            path=checkout.path,
        )
    )
