"""The upstream revisions that the scripts can install and run: the pins of which the workbench has a file.

Standard library only, and what pip brings.
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
    # Nothing is installed yet, and pip brings its own copy.
    from pip._vendor import tomli as tomllib

SCRIPTS = Path(__file__).resolve().parent.parent
PROJECT = SCRIPTS.parent
WORKBENCH = PROJECT / "packages" / "verl-npu-workbench"
DEFAULT = "v0.6.1"


@dataclass(frozen=True)
class Engine:
    """vLLM's build for CPUs and the vllm-ascend that serves on it on virtual NPUs, as a pin's documents name them."""

    vllm_ascend: str
    """The version whose wheel is installed where it is asked for."""
    torch_npu: str
    """What the virtual Ascend says that it is."""
    torch: str
    packages: tuple[str, ...]
    """vLLM and what goes with it: installed without dependencies, for it asks for a torch of its own index, and the
    pin's lists have the others."""
    always: bool = False
    """vLLM is in each environment of the pin: other jobs need it as well."""
    requirements: tuple[str, ...] = ()
    """What it needs beside the pin's own."""
    commit: str = ""
    """The commit of vllm-ascend that is built, from a checkout that the user has, where no release is meant."""
    transformers: str = ""
    """The version that goes with it, if that is not the pin's."""
    mode: str = "async"
    """The `rollout.mode` in which verl of that time serves with it."""
    graphs: bool = False
    """Whether it captures graphs on virtual NPUs: one of simulation/graphs.py's."""

    @property
    def vllm(self) -> str:
        """The version of vLLM."""
        return self.packages[0].partition("==")[2].partition(".post")[0]


@dataclass(frozen=True)
class Pin:
    """A verl revision by name, and what the jobs have to know of it."""

    name: str
    commit: str
    version: str
    """What verl/version/version says in the release, or at the commit if there is no release."""
    transformers: str
    jobs: tuple[str, ...]
    """The names of those that train at it."""
    requirements: tuple[str, ...]
    """What verl runs on here. Nothing is installed from a checkout, so it is complete by itself; verl, torch, vLLM and
    torch_npu come from elsewhere. Without torchvision, whose newest in the registry does not match a CPU torch."""
    megatron_core: str
    """The version that its documents name."""
    recipes: bool
    """Whether `recipe/` lies beside the package in a checkout; no wheel has it."""
    ray_init: str = "ray_kwargs.ray_init"
    """The Hydra path of what goes to ray.init."""
    sft: str = "verl.trainer.sft_trainer"
    """The module of the trainer for supervised fine-tuning."""
    virtual_rollout: str = "virtual"
    """The rollout engine for virtual NPUs; on real ones it is vllm."""
    small: tuple[str, ...] = ()
    """Settings for a small machine without Inductor: verl starts eight actors of a gigabyte each for agent loops."""
    reward: str = "custom_reward_function"
    """The Hydra path of the user's own reward function."""
    in_git: str = ""
    """What that file says in git, if the release says otherwise."""
    torch: str = "2.13.0"
    engine: Engine | None = None

    @property
    def on_pypi(self) -> bool:
        """Whether pip can install it by its version."""
        return is_released(self.name)


def is_released(name: str) -> bool:
    """Tell whether a pin of that name is a release; the others are commits, and in git only."""
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
"""What generates on virtual NPUs: the project's own engine, or the real vllm-ascend."""
SOURCE = "VERL_NPU_VLLM_ASCEND_SOURCE"
"""The variable that names a checkout of vllm-ascend, for a pin whose engine is a commit and no release."""


PINS = _read()
"""The default first, the others oldest first."""


@dataclass(frozen=True)
class Checkout:
    """A folder with verl's source; nothing in it is ever changed."""

    path: Path
    version: str
    revision: str | None
    """The git commit, where the folder is a git checkout."""


def find(name: str) -> Pin:
    """Return the pin of that name; raises BadInput with the known ones."""
    if name not in PINS:
        raise BadInput(
            _("--pin: expected one of {pins}, found {name!r}. Other revisions: --verl PATH").format(
                pins=_(", ").join(PINS), name=name
            )
        )
    return PINS[name]


def check_engine(name: str, pin: Pin) -> None:
    """Raise BadInput unless there is a rollout engine of that name, and the pin has it."""
    if name not in ENGINES:
        raise BadInput(
            _("--rollout: expected one of {engines}, found {name!r}").format(engines=_(", ").join(ENGINES), name=name)
        )
    if name != SMALL and pin.engine is None:
        have = [each.name for each in PINS.values() if each.engine is not None]
        raise BadInput(
            _(
                "--rollout {name}: expected a pin whose vLLM and vllm-ascend can be installed here ({pins}), "
                "found {pin}. Leave it out: the small engine then generates"
            ).format(name=name, pins=_(", ").join(have), pin=pin.name)
        )


def transformers_for(pin: Pin, rollout: str) -> str:
    """Return the version of transformers that is installed unless another is asked for."""
    return (pin.engine.transformers if pin.engine is not None and rollout != SMALL else "") or pin.transformers


def engine_source(engine: Engine) -> Path:
    """Return the checkout that the engine is built from; raises BadInput unless one of its commit is named."""
    named = os.environ.get(SOURCE, "")
    if not (Path(named) / "vllm_ascend" / "__init__.py").is_file():
        raise BadInput(
            _(
                "--rollout vllm-ascend: expected {variable} to be the folder of a checkout of vllm-ascend at "
                "{commit}, found {found}. Clone vllm-ascend, check out {commit} and name the folder"
            ).format(variable=SOURCE, commit=engine.commit, found=named or _("nothing"))
        )
    revision = _revision(Path(named))
    if revision is not None and not revision.startswith(engine.commit):
        raise BadInput(
            _(
                "--rollout vllm-ascend: expected {variable} to be the folder of a checkout of vllm-ascend at "
                "{commit}, found {found} at {revision}. Check out {commit}"
            ).format(variable=SOURCE, commit=engine.commit, found=named, revision=revision[:10])
        )
    return Path(named).resolve()


def read_checkout(path: Path) -> Checkout:
    """Look at a folder that should hold verl; raises BadInput when it does not."""
    version_file = path / "verl" / "version" / "version"
    if not version_file.is_file() or not (path / "verl" / "__init__.py").is_file():
        raise BadInput(
            _(
                "--verl: expected a folder with verl's source (verl/__init__.py and verl/version/version), found "
                "{path}. Give the root of a clone of verl"
            ).format(path=path)
        )
    return Checkout(path.resolve(), version_file.read_text().strip(), _revision(path))


def _revision(path: Path) -> str | None:
    """Return the commit of a git checkout; None of any other folder."""
    if not (path / ".git").exists():
        return None
    command = ["git", "-C", str(path), "rev-parse", "HEAD"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    said = answer.stdout.strip()
    return said if answer.returncode == 0 and re.fullmatch(r"[0-9a-f]{40}", said) else None


def pin_of(checkout: Checkout) -> Pin:
    """Return the pin that a checkout stands for, by commit, else by version; raises BadInput unless it is one."""
    for pin in PINS.values():
        if checkout.revision == pin.commit:
            return pin
    alike = [pin for pin in PINS.values() if checkout.version in (pin.version, pin.in_git)]
    if len(alike) > 1:
        names = _(" and ").join(pin.name for pin in alike)
        raise BadInput(
            _(
                "--verl: {path} says that it is version {version}, as {pins} do, and it is no git checkout of any. "
                "Say which with --pin"
            ).format(path=checkout.path, version=checkout.version, pins=names)
        )
    if alike:
        return alike[0]
    raise BadInput(
        _(
            "--verl: expected a revision near one of {pins}, found version {version} in {path}. "
            "Name the nearest with --pin"
        ).format(
            pins=_(", ").join(f"{pin.name} ({pin.version})" for pin in PINS.values()),
            version=checkout.version,
            path=checkout.path,
        )
    )
