"""A made-up environment of files: packages that consist of metadata, a CANN, an npu-smi, a driver."""

from __future__ import annotations

import json
import platform
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from verl_npu_workbench.doctor import Judged, Site
from verl_npu_workbench.pins import PINS

ENTRY_POINTS = "[torch.backends]\nverl_npu = verl_npu_entry:torch_backends\n"


@dataclass(frozen=True)
class Right:
    """An environment as the documents of a pin describe it, written by hand and not taken from the matrix."""

    pin: str
    python: str
    cann: str
    packages: Mapping[str, str]
    driver: str = "25.5.0"
    environment: str = ""
    """The name of the pin's environment, unless it is that of verl's documents."""
    commits: Mapping[str, str] = field(default_factory=dict)
    """The commits of the packages that were installed from git."""

    @property
    def name(self) -> str:
        return f"{self.pin}'s {self.environment}" if self.environment else self.pin


def _of(text: str) -> dict[str, str]:
    return dict(each.split("==") for each in text.split())


_OLD = "tensordict==0.8.3 numpy==1.26.4 einops==0.8.1 ray==2.46.0 peft==0.15.2 pyarrow==20.0.0"
_NEW = "tensordict==0.10.0 numpy==1.26.4 einops==0.8.1 ray==2.54.0 peft==0.18.1 pyarrow==21.0.0"
_CORE_12 = "mindspeed==0.12.1 megatron-core==0.12.1 mbridge==0.15.1"
_CORE_16 = "mindspeed==0.16.0 megatron-core==0.16.0 mbridge==0.15.1"

RIGHT = (
    Right(
        "796871d7",
        "3.10.14",
        "8.1.RC1",
        _of(f"torch==2.5.1 torch_npu==2.5.1rc1 torchvision==0.20.1 vllm==0.7.3+empty vllm-ascend==0.7.3.post1 {_OLD}")
        | _of("transformers==4.52.4"),
    ),
    Right(
        "796871d7",
        "3.10.0",
        "8.3.RC1",
        _of("torch==2.7.1 torch_npu==2.7.1 vllm==0.10.1.1+empty vllm-ascend==0.10.0rc2.dev53+g1de16ead8")
        | _of(f"transformers==4.56.0.dev0 mindspeed==0.12.1 megatron-core==0.12.1 {_OLD}"),
        driver="25.3.rc1",
        environment="image",
        commits={"transformers": "836570e925", "vllm": "3821787aa7", "vllm-ascend": "1de16ead8e"},
    ),
    Right(
        "v0.6.1",
        "3.11.10",
        "8.2.RC1",
        _of("torch==2.5.1+cpu torch_npu==2.5.1.post1 torchvision==0.20.1+cpu vllm==0.9.1+empty vllm-ascend==0.9.1")
        | _of(f"transformers==4.52.4 mindspeed==0.12.1 megatron-core==0.12.1 {_OLD}"),
    ),
    *(
        Right(
            pin,
            "3.11.13",
            "8.3.RC1",
            _of("torch==2.7.1 torch_npu==2.7.1 torchvision==0.22.1 vllm==0.11.0+empty vllm-ascend==0.11.0rc1")
            | _of(f"transformers==4.57.6 triton-ascend==3.2.0rc4 {_CORE_12} {_NEW}"),
        )
        for pin in ("ccd7d934", "v0.7.0")
    ),
    Right(
        "v0.7.1",
        "3.11.14",
        "8.5.0",
        _of("torch==2.8.0 torch_npu==2.8.0.post2 torchvision==0.23.0 vllm==0.13.0+empty vllm-ascend==0.13.1.dev3")
        | _of(f"transformers==4.57.6 triton-ascend==3.2.0 {_CORE_12} {_NEW}"),
    ),
    Right(
        "v0.8.0",
        "3.11.14",
        "9.0.0",
        _of("torch==2.9.0 torch_npu==2.9.0.post2 torchvision==0.24.0 vllm==0.18.0+empty vllm-ascend==0.18.0")
        | _of(f"transformers==5.3.0 triton==3.5.0 triton-ascend==3.2.1 TransferQueue==0.1.7 {_CORE_16} {_NEW}"),
        driver="26.0.rc1",
    ),
    *(
        Right(
            pin,
            "3.12.12",
            "9.1.0",
            _of("torch==2.10.0 torch_npu==2.10.0.post4 torchvision==0.25.0 vllm==0.23.0+empty vllm-ascend==0.23.0")
            | _of(f"transformers==5.10.4 triton-ascend==3.2.2 TransferQueue==0.1.8 {_CORE_16} {_NEW}"),
            driver="26.0.rc2",
        )
        for pin in ("v0.9.0", "v0.9.1", "1dda039b")
    ),
)


@dataclass
class Box:
    """One environment, whose parts can be changed before the doctor looks."""

    folder: Path
    libraries: Path
    """A folder with compiled libraries to copy."""
    pin: str | None
    python: str = "3.11.10"
    environ: dict[str, str] = field(default_factory=dict)
    judged: Judged | None = None
    shared_memory: int | None = 64 << 30
    open_files: int = 1 << 20
    arch: str = "x86"

    @classmethod
    def of(cls, right: Right, folder: Path, libraries: Path, smi: str) -> Box:
        """Return a right environment on a machine with these NPUs."""
        box = cls(folder, libraries, right.pin, right.python, judged=Judged(right.pin, True, ()))
        box.environ["PATH"] = str(box.path("usr/local/bin"))
        box.npu_smi(smi.replace("25.5.0", right.driver))
        box.driver(right.driver)
        box.cann(right.cann)
        for name, version in right.packages.items():
            box.install(name, version)
        box.install("verl", right.pin.removeprefix("v") if right.pin.startswith("v") else "0.7.0.dev0")
        for name, commit in right.commits.items():
            vcs = {"vcs": "git", "commit_id": commit.ljust(40, "0")}
            box.install(name, right.packages[name], url="https://example.invalid/repository", vcs_info=vcs)
        box.install("verl-npu", "0.1.0", entry_points=ENTRY_POINTS)
        box.library("torch_npu.so", "site/torch_npu/lib/libtorch_npu.so")
        box.path("sys/class/net/eth0").mkdir(parents=True)
        box.path("sys/class/net/lo").mkdir(parents=True)
        return box

    def path(self, inside: str) -> Path:
        """Return a path in the environment's file system."""
        return self.folder / inside

    def write(self, inside: str, text: str) -> Path:
        """Write a file, and return its path."""
        file = self.path(inside)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def install(
        self, name: str, version: str, requires: Sequence[str] = (), entry_points: str = "", **direct_url: object
    ) -> None:
        """Install a package, in place of any other version of it."""
        self.uninstall(name)
        folder = f"site/{name.replace('-', '_')}-{version}.dist-info"
        asked = "".join(f"Requires-Dist: {each}\n" for each in requires)
        self.write(f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{asked}")
        if entry_points:
            self.write(f"{folder}/entry_points.txt", entry_points)
        if direct_url:
            self.write(f"{folder}/direct_url.json", json.dumps(direct_url))

    def uninstall(self, *names: str) -> None:
        """Remove packages."""
        for name in names:
            for folder in self.path("site").glob(f"{name.replace('-', '_')}-*.dist-info"):
                shutil.rmtree(folder)

    def npu_smi(self, text: str, status: int = 0) -> None:
        """Install an `npu-smi` that prints this text."""
        answer = self.write("usr/local/bin/answer.txt", text)
        script = self.write("usr/local/bin/npu-smi", f"#!/bin/sh\n/bin/cat {answer}\nexit {status}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)

    def no_npus(self) -> None:
        """Remove `npu-smi` and the devices."""
        self.path("usr/local/bin/npu-smi").unlink()

    def driver(self, version: str) -> None:
        """Install a driver and a firmware, with the driver's library on the loader's path."""
        for name in ("driver", "firmware"):
            self.write(f"usr/local/Ascend/{name}/version.info", f"Version={version}\n")
        self.library("hal.so", "usr/local/Ascend/driver/lib64/driver/libascend_hal.so")
        self.prepend("LD_LIBRARY_PATH", "usr/local/Ascend/driver/lib64/driver")
        self.write("dev/davinci_manager", "")

    def cann(self, version: str, sourced: bool = True, nnal: bool = True) -> None:
        """Install a CANN and nnal."""
        home = f"usr/local/Ascend/ascend-toolkit/{version}"
        info = f"package_name=Ascend-cann-toolkit\nversion={version}\n"
        self.write(f"{home}/{platform.machine()}-linux/ascend_toolkit_install.info", info)
        self.library("hccl.so", f"{home}/lib64/libhccl.so")
        self.library("ascendcl.so", f"{home}/lib64/libascendcl.so")
        self.write("usr/local/Ascend/ascend-toolkit/set_env.sh", "")
        latest = self.path("usr/local/Ascend/ascend-toolkit/latest")
        latest.unlink(missing_ok=True)
        latest.symlink_to(self.path(home))
        if sourced:
            self.environ["ASCEND_HOME_PATH"] = str(latest)
            self.environ["ASCEND_OPP_PATH"] = str(latest / "opp")
            self.prepend("LD_LIBRARY_PATH", "usr/local/Ascend/ascend-toolkit/latest/lib64")
        if nnal:
            self.path("usr/local/Ascend/nnal/atb/latest").mkdir(parents=True, exist_ok=True)
            self.write("usr/local/Ascend/nnal/atb/set_env.sh", "")
            self.environ["ATB_HOME_PATH"] = str(self.path("usr/local/Ascend/nnal/atb/latest"))

    def not_sourced(self) -> None:
        """Unset the variables that CANN's set_env.sh sets."""
        for name in ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "LD_LIBRARY_PATH"):
            self.environ.pop(name)

    def no_cann(self) -> None:
        """Remove CANN, as in a container without it."""
        self.not_sourced()
        self.environ.pop("ATB_HOME_PATH", None)
        for name in ("ascend-toolkit", "nnal"):
            shutil.rmtree(self.path(f"usr/local/Ascend/{name}"))

    def library(self, name: str, inside: str) -> None:
        """Copy one of the compiled libraries."""
        file = self.path(inside)
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.libraries / name, file)

    def prepend(self, variable: str, inside: str) -> None:
        """Prepend a folder to a variable."""
        before = self.environ.get(variable)
        self.environ[variable] = ":".join(filter(None, (str(self.path(inside)), before)))

    def site(self) -> Site:
        """Return the site that the doctor examines."""
        return Site(
            PINS.get(self.pin or ""),
            self.judged,
            environ=self.environ,
            path=(str(self.path("site")),),
            python=self.python,
            prefix=self.path("usr"),
            root=self.folder,
            shared_memory=self.shared_memory,
            open_files=self.open_files,
            arch=self.arch,
        )
