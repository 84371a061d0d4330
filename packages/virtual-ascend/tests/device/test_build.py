"""Compiling the device: once, with clear errors. The compiler is a script: no test waits for torch's headers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from virtual_ascend import shipping
from virtual_ascend.cache import publish
from virtual_ascend.device import build
from virtual_ascend.errors import BuildError
from virtual_ascend.hccl import library

COMPILER = """#!{python}
import pathlib, subprocess, sys
arguments = sys.argv[1:]
if "-o" not in arguments:
    sys.exit(subprocess.run([{gxx!r}, *arguments]).returncode)
with open({log!r}, "a") as log:
    log.write(arguments[arguments.index("-o") + 1] + "\\n")
if "-MF" in arguments:
    pathlib.Path(arguments[arguments.index("-MF") + 1]).write_text(arguments[arguments.index("-o") + 1] + ":\\n")
source = "#include <Python.h>\\nstatic PyModuleDef d = {{PyModuleDef_HEAD_INIT, {name!r}, 0, -1, 0}};"
source = source.replace("'", '"') + "extern \\"C\\" PyObject *PyInit_{name}() {{ return PyModule_Create(&d); }}"
flags = ["-c"] if "-c" in arguments else ["-shared"]
output = arguments[arguments.index("-o") + 1]
sys.exit(subprocess.run([{gxx!r}, "-x", "c++", "-", "-fPIC", "-I", {include!r}, *flags, "-o", output],
                        input=source, text=True).returncode)
"""


@pytest.fixture
def compiler(tmp_path: Path) -> Path:
    import sysconfig

    script = tmp_path / "cxx"
    script.write_text(
        COMPILER.format(
            python=sys.executable,
            gxx=shutil.which("g++"),
            log=str(tmp_path / "calls"),
            name=build.NAME,
            include=sysconfig.get_path("include"),
        )
    )
    script.chmod(0o755)
    return script


def test_four_processes_that_start_at_once_compile_once(tmp_path: Path, compiler: Path) -> None:
    code = (
        "import pathlib; from virtual_ascend.device import build; "
        f"path = build.library('0.0', pathlib.Path({str(tmp_path / 'cache')!r})); build.load(path); print(path)"
    )
    env = {**os.environ, "CXX": str(compiler)}
    env.pop("VIRTUAL_ASCEND", None)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, outputs
    assert len({stdout for stdout, _ in outputs}) == 1
    linked = [line for line in (tmp_path / "calls").read_text().splitlines() if line.endswith(".so")]
    assert linked == [f"{build.NAME}.so"]
    assert sum("compiling virtual-ascend" in stderr for _, stderr in outputs) == 1


def test_a_process_that_is_killed_leaves_no_compiler_behind(tmp_path: Path) -> None:
    compiler = tmp_path / "cxx"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *-c*) echo $$ > {tmp_path}/running; exec sleep 60;; esac\nexec g++ "$@"\n'
    )
    compiler.chmod(0o755)
    code = (
        f"import pathlib as p; from virtual_ascend.device import build; build.library('0', p.Path({str(tmp_path)!r}))"
    )
    env = {**os.environ, "CXX": str(compiler), "VIRTUAL_ASCEND": ""}
    process = subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.DEVNULL)
    assert within(60, lambda: (tmp_path / "running").is_file() and (tmp_path / "running").read_text().strip())
    process.kill()
    process.wait()
    sleeping = Path("/proc", (tmp_path / "running").read_text().strip(), "cmdline")
    assert within(10, lambda: not sleeping.is_file() or not sleeping.read_bytes())


def within(seconds: float, holds: Callable[[], object]) -> bool:
    ends = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > ends:
            return False
        time.sleep(0.05)
    return True


def test_a_compiler_error_is_one_line_and_leaves_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = tmp_path / "cxx"
    failing.write_text(
        '#!/bin/sh\ncase "$*" in *-c*) echo \'x.cpp:1: error: no such thing\' >&2; exit 1;; esac\nexec g++ "$@"\n'
    )
    failing.chmod(0o755)
    monkeypatch.setenv("CXX", str(failing))
    with pytest.raises(BuildError) as error:
        build.library("0.0", tmp_path)
    assert "\n" not in str(error.value)
    assert "x.cpp:1: error: no such thing" in str(error.value)
    log = tmp_path / build.key("0.0") / "build.log"
    assert str(log) in str(error.value)
    assert log.is_file()
    assert not list(tmp_path.glob("*/build-*"))


def test_no_compiler_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError) as error:
        build.compiler()
    assert str(error.value) == (
        "compiling virtual-ascend: expected a C++ compiler (g++, clang++, or $CXX); found no compiler; "
        "install a compiler, for example with apt-get install g++"
    )


def test_a_shipped_library_of_the_same_key_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = tmp_path / "prebuilt" / build.key("0.0") / f"{build.NAME}.so"
    shipped.parent.mkdir(parents=True)
    shipped.touch()
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "prebuilt")
    assert build.library("0.0", tmp_path / "cache") == shipped


@pytest.mark.nightly(
    "packages/virtual-ascend/virtual_ascend/device/build.py", "packages/virtual-ascend/virtual_ascend/shipping.py"
)
def test_a_device_that_is_shipped_is_the_one_that_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "prebuilt")
    cached = tmp_path / "cache" / build.key("0.0") / f"{build.NAME}.so"
    cached.parent.mkdir(parents=True)
    built = tmp_path / "built"
    built.write_text("compiled")
    publish(built, cached)
    shipped, hccl = shipping.ship("0.0", tmp_path / "cache")
    assert shipped.read_text() == "compiled"
    assert build.library("0.0", tmp_path / "elsewhere") == shipped
    assert list(shipped.parent.iterdir()) == [shipped]
    assert library.library(tmp_path / "elsewhere") == hccl


def test_the_key_changes_with_the_sources_and_with_torch(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text("one")
    one = build.key("2.0", tmp_path)
    (tmp_path / "a.cpp").write_text("two")
    assert build.key("2.0", tmp_path) != one
    (tmp_path / "a.cpp").write_text("one")
    assert build.key("2.1", tmp_path) != one
    assert build.key("2.0", tmp_path) == one


def test_a_file_that_is_no_library_says_to_delete_it(tmp_path: Path) -> None:
    broken = tmp_path / f"{build.NAME}.so"
    broken.write_text("not ELF")
    with pytest.raises(BuildError, match="delete the file; the library is compiled again when a program next starts"):
        build.load(broken)


def test_a_finished_library_in_a_cache_that_cannot_be_written_to_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = tmp_path / build.key("0") / f"{build.NAME}.so"
    finished.parent.mkdir()
    built = finished.with_name("built")
    built.write_bytes(b"\x7fELF")
    publish(built, finished)
    before = sorted(path.name for path in finished.parent.iterdir())
    # No compiler and no lock, because the user who runs the tests may be allowed to write anywhere.
    monkeypatch.setattr(build, "compile_once", lambda target, make: pytest.fail("it was to be compiled"))
    assert build.library("0", tmp_path) == finished
    assert sorted(path.name for path in finished.parent.iterdir()) == before


def test_compiling_is_never_silent_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "EVERY", 0.05)
    failing = tmp_path / "cxx"
    failing.write_text("#!/bin/sh\nsleep 0.5\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("CXX", str(failing))
    with pytest.raises(BuildError):
        build.library("0.0", tmp_path)
    said = capfd.readouterr().err
    assert "once: about" in said
    assert "still compiling: 0 s of about" in said


def test_a_process_that_waits_for_the_compiler_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "EVERY", 0.05)
    monkeypatch.setattr(build, "PATIENCE", 0.2)
    target = tmp_path / "key" / "x.so"
    target.parent.mkdir()
    with FileLock(target.parent / "lock"), pytest.raises(BuildError) as error:
        build.compile_once(target, lambda path: None)
    assert "waiting for another process to compile virtual-ascend" in capfd.readouterr().err
    assert "to finish within 0 s" in str(error.value)


def test_the_announced_time_follows_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr(build, "_unit", lambda: 0.0057)
    idle = build.expected_seconds()
    monkeypatch.setattr(os, "getloadavg", lambda: (6.0, 0.0, 0.0))
    assert build.expected_seconds() == pytest.approx(4 * idle)
    monkeypatch.setattr(build, "_unit", lambda: 6 * 0.0057)
    assert build.expected_seconds() == pytest.approx(24 * idle)
