"""What the tests of several distributions use: the wheel of this project, and the sources of the pins.

Those come from PyPI as wheels, and as the checkouts that `VERL_NPU_UPSTREAMS` names. MindSpeed is in no registry, and
vllm-ascend's packages bring an NPU's own: their tests run where that folder has `mindspeed-<revision>/`, checkouts of
github.com/Ascend/MindSpeed, and `vllm-ascend-<version>/`, of github.com/vllm-project/vllm-ascend. vLLM's wheels are
large: tests of its source need `vllm-<version>/`, unpacked from the source distribution. `kuberay-<version>/`, of
github.com/ray-project/kuberay, has the schema of a RayJob.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from verl_npu import progress, reporting

from .interpreter import Interpreter

PROJECT = Path(__file__).resolve().parents[2]
# What the commands print is compared with English texts, whoever runs the tests.
for _name in ("LC_ALL", "LC_MESSAGES", "LANGUAGE", "VERL_NPU_LANGUAGE"):
    os.environ.pop(_name, None)
os.environ["LANG"] = "C.UTF-8"


def in_order(config: pytest.Config, items: list[pytest.Item], device: Path | None = None) -> None:
    """Put tests in the order in which processes may share them out (`-n 2 --dist loadgroup --no-loadscope-reorder`).

    The tests below the folder `device` that load the virtual device into their own process are first, and all in one:
    torch's autograd engine must not have run before, as it counts the devices once. Trainings come next, one at a
    time: each needs gigabytes. A file of other tests stays together, because its fixtures are shared.
    """

    def group(item: pytest.Item) -> str:
        if device is not None and "npu" in getattr(item, "fixturenames", ()) and item.path.is_relative_to(device):
            return "device"
        return "e2e" if item.get_closest_marker("e2e") else str(item.path)

    order = ("device", "e2e")
    items.sort(key=lambda item: order.index(group(item)) if group(item) in order else len(order))
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            item.add_marker(pytest.mark.xdist_group(group(item)))


@pytest.fixture(autouse=True)
def no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process prints is not to depend on how fast this machine is."""
    monkeypatch.setattr(progress, "EVERY", 3600.0)


@pytest.fixture(autouse=True)
def nothing_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line is said once in a process, and the tests of many files share one."""
    monkeypatch.setattr(reporting, "_said", set())


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """Have what is started meanwhile heed Ctrl-C and SIGHUP: a shell that starts tests in the background, or nohup,
    has them ignore these."""
    before = {
        number: signal.signal(number, handler)
        for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL))
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(PROJECT)]
    subprocess.run(command, check=True)
    (made,) = folder.glob("verl_npu-*.whl")
    return made


@pytest.fixture(scope="session")
def source() -> Callable[[str, str], Path]:
    """Give the source of an upstream at a pin, with the recipes if it has any and they are here."""
    return lambda upstream, pin: all_sources(upstream, pin)[0]


@pytest.fixture(scope="session")
def sources() -> Callable[[str, str], list[Path]]:
    """Give every source of an upstream at a pin: a checkout, a wheel, or both."""
    return all_sources


def all_sources(upstream: str, pin: str) -> list[Path]:
    """Downloaded once, or checkouts; skips if none can be had."""
    from maintain import sources

    try:
        return sources.all_of(upstream, pin)
    except sources.NotHere as error:
        if "VERL_NPU_UPSTREAMS" in os.environ and upstream == "verl":
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def importable(source: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Give a folder from which verl at a pin is imported, by PYTHONPATH; nothing is installed."""
    unpacked: dict[str, Path] = {}

    def find(pin: str) -> Path:
        found = source("verl", pin)
        if found.is_dir():
            return found
        if pin not in unpacked:
            unpacked[pin] = tmp_path_factory.mktemp(f"verl-{pin}")
            with zipfile.ZipFile(found) as wheel:
                wheel.extractall(unpacked[pin])
        return unpacked[pin]

    return find


@pytest.fixture
def interpreter(tmp_path: Path) -> Interpreter:
    made = Interpreter(tmp_path / "site")
    made.site.mkdir()
    return made
