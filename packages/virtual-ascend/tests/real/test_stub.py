"""The stub CANN has the symbols that a wheel's libraries leave undefined, and none of them was recorded."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import pytest
from virtual_ascend.device import build
from virtual_ascend.errors import BuildError
from virtual_ascend.real import stub, wheel
from virtual_ascend.settings import Settings

pytestmark = pytest.mark.nightly("packages/virtual-ascend/virtual_ascend/real")

SOURCE = """
extern "C" {
int aclrtFirst(int);
int aclrtGetDeviceCount(unsigned*);
int HcclNobodyKnows(void*);
const char* names[] = {"aclnnSomethingGetWorkspaceSize", "aclnnOther"};
int use() { unsigned n; HcclNobodyKnows(nullptr); return aclrtFirst(1) + aclrtGetDeviceCount(&n); }
}
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a torch_npu whose library takes the symbols in SOURCE from CANN, from a library that is not there."""
    folder = tmp_path / "torch_npu"
    (folder / "lib").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (tmp_path / "a.cpp").write_text(SOURCE)
    (tmp_path / "empty.cpp").write_text("")
    cann = ["g++", "-shared", "-fPIC", "-Wl,-soname,libcannpart.so", str(tmp_path / "empty.cpp")]
    subprocess.run([*cann, "-o", str(tmp_path / "libcannpart.so")], check=True)
    options = ["-Wl,--no-as-needed", f"-L{tmp_path}", "-lcannpart"]
    output = str(folder / "lib" / "libtorch_npu.so")
    subprocess.run(["g++", "-shared", "-fPIC", str(tmp_path / "a.cpp"), "-o", output, *options], check=True)
    return folder


def test_what_a_wheel_needs_is_read_from_its_libraries(package: Path, tmp_path: Path) -> None:
    needs = wheel.read_needs(package, tmp_path / "no-torch")
    assert needs.libraries == ("libcannpart.so",)
    assert needs.symbols == ("HcclNobodyKnows", "aclrtFirst", "aclrtGetDeviceCount")
    assert needs.operators == ("aclnnOther", "aclnnSomething")


def test_the_stub_has_each_name_and_each_library(package: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folder = stub.build_stub(package, tmp_path / "cache")
    assert {"libcannpart.so", "libascendcl.so", "libopapi.so", "libhccl.so", stub.CORE} <= {
        path.name for path in folder.iterdir()
    }
    core = ctypes.CDLL(str(folder / stub.CORE))
    assert core.aclrtFirst(1) == 0
    assert core.aclnnSomething(None, 0, None, None) == core.aclnnSomethingGetWorkspaceSize() == 0
    assert stub.build_stub(package, tmp_path / "cache") == folder


@pytest.mark.parametrize("damaged", ["libcannpart.so", "libraries.json", stub.CORE])
@pytest.mark.parametrize("share", [0, 2])
def test_a_stub_that_was_cut_short_is_made_anew(package: Path, tmp_path: Path, damaged: str, share: int) -> None:
    pytest.importorskip("torch")
    folder = stub.build_stub(package, tmp_path / "cache")
    size = (folder / damaged).stat().st_size
    os.truncate(folder / damaged, size // share if share else 0)
    assert stub.build_stub(package, tmp_path / "cache") == folder
    assert (folder / damaged).stat().st_size == size


def test_a_stub_with_something_else_in_it_says_to_delete_it(package: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folder = stub.build_stub(package, tmp_path / "cache")
    (folder / stub.CORE).write_bytes(bytes((folder / stub.CORE).stat().st_size))
    with pytest.raises(BuildError, match="delete the file; the library is compiled again when a program next starts"):
        stub.load(folder, Settings.read({"VIRTUAL_ASCEND": "2"}))


def test_a_collective_that_nobody_wrote_fails_and_says_so(
    package: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    core = ctypes.CDLL(str(stub.build_stub(package, tmp_path / "cache") / stub.CORE))
    assert core.HcclNobodyKnows(None) != 0
    assert "HcclNobodyKnows is not implemented" in capfd.readouterr().err


def test_another_wheel_has_another_stub(package: Path) -> None:
    before = stub.key(package)
    (package / "lib" / "libmore.so").write_bytes(b"more")
    assert stub.key(package) != before


def test_sources_that_do_not_compile_are_one_error(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(build, "compiler", lambda: "false")
    with pytest.raises(BuildError, match=r"compiling libhccl\.so: expected the compiler to succeed; found no output"):
        stub.build_stub(package, tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_without_binutils_it_says_what_to_install(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BuildError, match="the program nm is not installed; install binutils"):
        wheel.read_needs(package, Path("no-torch"))
