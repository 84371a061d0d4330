"""Fixtures for the tests of several distributions: the wheel of this project, and the sources of the pins.

The sources of verl are wheels from PyPI, and checkouts in the folder that `VERL_NPU_UPSTREAMS` names. Some tests need
more in that folder: `mindspeed-<revision>/`, checkouts of github.com/Ascend/MindSpeed, which is in no registry;
`vllm-ascend-<version>/`, checkouts of github.com/vllm-project/vllm-ascend, whose packages need an NPU;
`vllm-<version>/`, unpacked from the source distribution, because vLLM's wheels are large; and `kuberay-<version>/`, a
checkout of github.com/ray-project/kuberay, for the schema of a RayJob.
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
from hypothesis import HealthCheck, settings

from verl_npu import progress, reporting

from .interpreter import Interpreter

# The tests share the cores, so an example may be slow for no reason of its own.
settings.register_profile("shared cores", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared cores")

PROJECT = Path(__file__).resolve().parents[2]
# The tests compare the output of commands with English texts, whatever the language of the person who runs them.
for _name in ("LC_ALL", "LC_MESSAGES", "LANGUAGE", "VERL_NPU_LANGUAGE"):
    os.environ.pop(_name, None)
os.environ["LANG"] = "C.UTF-8"


def in_order(config: pytest.Config, items: list[pytest.Item], device: Path | None = None) -> None:
    """Order and group the tests for `-n 2 --dist loadgroup --no-loadscope-reorder`.

    First come the tests in the folder `device` that load the virtual device into their own process, all in one
    process: torch's autograd engine counts the devices when it first runs, so it must not have run before. Trainings
    come next, one at a time, because each needs gigabytes. Other tests of one file stay together, because they share
    fixtures.
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
    """Turn off progress lines, because they depend on the speed of the machine."""
    monkeypatch.setattr(progress, "EVERY", 3600.0)


@pytest.fixture(autouse=True)
def nothing_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the lines that were reported. Each line is reported once in a process, and many tests share a process."""
    monkeypatch.setattr(reporting, "_said", set())


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """Make child processes react to Ctrl-C and SIGHUP.

    A shell that starts the tests in the background, or nohup, makes processes ignore these signals.
    """
    before = {
        number: signal.signal(number, handler)
        for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL))
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def make_wheel() -> Callable[[Path, Path], Path]:
    """Return a function that makes the wheel of a distribution in a folder."""

    def run(source: Path, folder: Path) -> Path:
        words = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source)
        subprocess.run([sys.executable, "-m", "pip", "wheel", *words], check=True, stdout=subprocess.DEVNULL)
        return max(folder.glob("*.whl"), key=lambda path: path.stat().st_mtime_ns)

    return run


@pytest.fixture(scope="session")
def wheel(make_wheel: Callable[[Path, Path], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(PROJECT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def source() -> Callable[[str, str], Path]:
    """Return a function that finds the source of an upstream at a pin, with its recipes if they are available."""
    return lambda upstream, pin: all_sources(upstream, pin)[0]


@pytest.fixture(scope="session")
def sources() -> Callable[[str, str], list[Path]]:
    """Return a function that finds every source of an upstream at a pin: a checkout, a wheel, or both."""
    return all_sources


def all_sources(upstream: str, pin: str) -> list[Path]:
    """Return the sources of a pin, downloaded once or from checkouts; skip the test if there are none."""
    from maintain import sources

    try:
        return sources.all_of(upstream, pin)
    except sources.SourceMissing as error:
        if "VERL_NPU_UPSTREAMS" in os.environ and upstream == "verl":
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def importable(source: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that finds a folder to put on PYTHONPATH, to import verl at a pin without installing it."""
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
