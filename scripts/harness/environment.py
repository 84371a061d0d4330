"""The virtual environment of a run: created once, and reused while its inputs stay the same. Standard library only."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from harness.errors import RunFailed
from harness.pins import PROJECT, SCRIPTS, SMALL, WORKBENCH, Checkout, Engine, Pin, engine_source
from verl_npu import progress
from verl_npu.language import gettext as _
from verl_npu.language import translate

VIRTUAL_ASCEND = PROJECT / "packages" / "virtual-ascend"
STAMP = "verl-npu-stamp"
_LATER = "later_outputs.py"
_FROM_LATER = """

from vllm.v1.later_outputs import DraftTokenIds, without_proposals

ModelRunnerOutput.__init__ = without_proposals(ModelRunnerOutput.__init__)
"""
"""Code that is appended to vLLM's outputs.py if the engine is built from a commit; see later_outputs.py."""


@dataclass(frozen=True)
class Recipe:
    """The choices that determine how a Python environment is built: versions, packages, and rollout engine."""

    pin: Pin
    checkout: Checkout | None
    transformers: str
    virtual: bool
    purpose: str = "quickstart"
    extras: str = "report"
    """Extras of the workbench, separated by commas; `dev` is for the tests of all distributions."""
    packages: tuple[str, ...] = ()
    """Packages that are installed last, without their dependencies."""
    rollout: str = SMALL
    """The rollout engine on virtual NPUs, one of pins.ENGINES."""
    torch_npu: str | None = None
    """The version of the torch_npu wheel for virtual NPUs, which determines the version of torch."""

    @property
    def engine(self) -> Engine | None:
        """The rollout engine that is installed for virtual NPUs in addition to verl-npu's small engine."""
        engine = self.pin.engine if self.virtual else None
        return engine if engine is not None and (engine.always or self.rollout != SMALL) else None

    @property
    def torch(self) -> str:
        """The version of torch for virtual NPUs."""
        if self.torch_npu:
            return self.torch_npu.partition(".post")[0]
        return self.pin.torch if self.engine is None else self.engine.torch

    @property
    def folder(self) -> Path:
        """The environment's folder. It is in the folder that VERL_NPU_VENVS specifies, or in the project's root if
        that variable is not set."""
        name = f"{self.purpose}-{self.pin.name}"
        if self.transformers != self.pin.transformers:
            name += f"-transformers-{self.transformers}"
        if self.checkout is not None:
            name += "-checkout"
        if not self.virtual:
            name += "-npu"
        if self.torch_npu:
            name += f"-torch_npu-{self.torch_npu}"
        if self.rollout != SMALL and self.engine is not None:
            name += f"-{self.rollout}-{self.engine.vllm_ascend}"
        if self.packages:
            name += "-" + re.sub(r"[^\w.]+", "-", self.packages[0])
        root = os.environ.get("VERL_NPU_VENVS")
        return Path(root).resolve() / name if root else PROJECT / f".venv-{name}"

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def stamp(self) -> str:
        """Return a hash of all inputs of the environment."""
        parts = [
            sys.version,
            str(self.folder),
            self.transformers,
            str(self.virtual),
            self.extras,
            self.torch,
            self.torch_npu or "",
            *self.engine_packages(),
            self.engine.commit if self.engine is not None and self.rollout != SMALL else "",
            self.requirements(),
            (PROJECT / "pyproject.toml").read_text(),
            (WORKBENCH / "pyproject.toml").read_text(),
            (VIRTUAL_ASCEND / "pyproject.toml").read_text(),
            *self.packages,
            "checkout" if self.checkout else f"verl=={self.pin.version}",
        ]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def ready(self) -> bool:
        """Return whether a complete environment with these inputs exists."""
        mark = self.folder / STAMP
        return self.python.exists() and mark.is_file() and mark.read_text() == self.stamp()

    def requirements(self) -> str:
        """Return the requirements of the pin and of the rollout engine, if any, with the requested version of
        transformers."""
        lines = (*self.pin.requirements, *(self.engine.requirements if self.engine is not None else ()))
        kept = [line for line in lines if not line.startswith("transformers==")]
        return "\n".join([*kept, f"transformers=={self.transformers}", ""])

    def engine_packages(self) -> tuple[str, ...]:
        """Return the vLLM and vllm-ascend packages. They are installed without their dependencies, because the
        dependencies would install a different torch version."""
        if self.engine is None:
            return ()
        served = () if self.rollout == SMALL or self.engine.commit else (f"vllm-ascend=={self.engine.vllm_ascend}",)
        return (*self.engine.packages, *served)


def _pip(recipe: Recipe, *arguments: str, **variables: str) -> None:
    # Of 21,000 modules, the tests import a few thousand, and the first import compiles each.
    lazily = ["--no-compile"] if recipe.purpose == "test" else []
    command = [str(recipe.python), "-m", "pip", "install", "-qq", "--disable-pip-version-check", *lazily, *arguments]
    print(f"  pip install {' '.join(arguments)}", flush=True)
    with progress.shown(), progress.step(f"pip install {arguments[-1]}"):
        done = subprocess.run(command, check=False, env=os.environ | variables)
    if done.returncode != 0:
        raise RunFailed(
            _(
                "pip install {packages} failed; see its output above. Run the script again; it replaces the "
                "incomplete environment"
            ).format(packages=" ".join(arguments))
        )


def make(recipe: Recipe) -> Path:
    """Create the environment if it is not ready, and return the path of its Python. Raise RunFailed if an installation
    fails."""
    if recipe.ready():
        _point(recipe)
        return recipe.python
    if recipe.engine is not None and recipe.rollout != SMALL and recipe.engine.commit:
        engine_source(recipe.engine)  # raises at once, and not after minutes of installing
    print(translate(_("making {folder} (minutes, once)").format(folder=recipe.folder)), flush=True)
    # An incomplete environment, or an environment with other inputs, is not worth keeping.
    shutil.rmtree(recipe.folder, ignore_errors=True)
    # On real NPUs, the machine provides torch, torch_npu, vllm, and vllm-ascend, which must be kept. Nobody has
    # tested yet whether the pin's requirements match their requirements, because no NPU was available.
    venv.create(recipe.folder, with_pip=True, system_site_packages=not recipe.virtual, symlinks=True)
    # Otherwise, pip would make an environment of its own for the build system of each editable install. setuptools
    # builds a dependency that has no wheel.
    torch = [f"torch=={recipe.torch}"] if recipe.virtual else []
    _pip(recipe, "editables", "hatchling>=1.25", "setuptools>=77", *torch)
    own, workbench = ("[dev]", "") if recipe.extras == "dev" else ("", f"[{recipe.extras}]")
    # Editable, so that a later start runs the current state of the project. The project comes first: with extras, pip
    # accepts it as the workbench's requirement only once it is chosen.
    ours = ["--editable", f"{PROJECT}{own}", "--editable", f"{WORKBENCH}{workbench}"]
    if recipe.virtual:
        ours += ["--editable", str(VIRTUAL_ASCEND)]
    _pip(recipe, "--no-build-isolation", *ours)
    listed = recipe.folder / "requirements.txt"
    listed.write_text(recipe.requirements())
    # Compiling the device takes as long as installing the rest, and needs only torch.
    with _compiling(recipe.python) if recipe.virtual and not recipe.torch_npu else nullcontext():
        _pip(recipe, "--requirement", str(listed))
    if recipe.engine is not None:
        _pip(recipe, "--no-deps", *recipe.engine_packages())
        _name_it_vllm(recipe, recipe.engine.vllm)
        if recipe.rollout != SMALL and recipe.engine.commit:
            _build(recipe, recipe.engine)
    if recipe.checkout is None:
        _pip(recipe, "--no-deps", f"verl=={recipe.pin.version}")
    if recipe.torch_npu:
        _pip(recipe, "--no-deps", f"torch_npu=={recipe.torch_npu}")
    if recipe.packages:
        _pip(recipe, "--no-deps", *recipe.packages)
    _point(recipe)
    (recipe.folder / STAMP).write_text(recipe.stamp())
    return recipe.python


def loading(python: Path) -> tuple[list[str], dict[str, str]]:
    """Return a command that loads the virtual device, together with the command's environment variables. The command
    compiles the device if necessary."""
    return [str(python), "-c", "import torch, torch_npu"], {"VIRTUAL_ASCEND": "2"}


@contextmanager
def _compiling(python: Path) -> Iterator[None]:
    """Compile the virtual device for the torch of `python` in the background, unless the device is compiled already.

    If the compilation fails, the compiler's error appears when the device is first loaded.
    """
    command, variables = loading(python)
    with subprocess.Popen(
        command, env=os.environ | variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield
        except BaseException:
            process.terminate()
            raise


def _build(recipe: Recipe, engine: Engine) -> None:
    """Build vllm-ascend from the user's checkout, without its operators, which virtual-ascend replaces."""
    with tempfile.TemporaryDirectory() as folder:
        # The build writes into its source folder.
        source = Path(folder) / "vllm-ascend"
        shutil.copytree(engine_source(engine), source, ignore=shutil.ignore_patterns(".git"))
        variables = {
            "COMPILE_CUSTOM_KERNELS": "0",
            "SOC_VERSION": "ascend910b1",
            "SETUPTOOLS_SCM_PRETEND_VERSION": engine.vllm_ascend,
        }
        _pip(recipe, "--no-deps", "--no-build-isolation", str(source), **variables)
    # vllm-ascend has a sleep mode only if its allocator was compiled. virtual-ascend replaces that allocator.
    said = _packages(recipe) / "vllm_ascend" / "_build_info.py"
    said.write_text(said.read_text().replace("__sleep_mode_enabled__ = False", "__sleep_mode_enabled__ = True"))
    outputs = _packages(recipe) / "vllm" / "v1" / "outputs.py"
    shutil.copy(SCRIPTS / "harness" / _LATER, outputs.with_name(_LATER))
    outputs.write_text(outputs.read_text() + _FROM_LATER)


def _packages(recipe: Recipe) -> Path:
    return next((recipe.folder / "lib").glob("python3.*")) / "site-packages"


def _name_it_vllm(recipe: Recipe, version: str) -> None:
    # verl requires a distribution named vllm, and vLLM finds its platform by `cpu` in that distribution's version.
    metadata = _packages(recipe) / f"vllm-{version}+cpu.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


def _point(recipe: Recipe) -> None:
    # Installing the checkout would write build/ and egg-info into it. A .pth file does not change it.
    if recipe.checkout is not None:
        (_packages(recipe) / "verl-checkout.pth").write_text(f"{recipe.checkout.path}\n")
