"""pip installs the compiler once, from the configured index; each failure is one clear error."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from verl_npu_workbench.kernels import toolchain
from verl_npu_workbench.kernels.toolchain import PAIRS, Soc

from verl_npu import environment
from verl_npu.errors import CommandError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(environment.KERNELS.name, str(tmp_path / "kernels"))
    return tmp_path / "kernels"


@pytest.mark.skipif(sys.version_info[:2] not in ((3, 10), (3, 11)), reason="triton-ascend has no release for it")
def test_without_wheels_and_network_the_error_says_how_to_get_them(tmp_path: Path, elsewhere: Path) -> None:
    (tmp_path / "wheels").mkdir()
    with pytest.raises(CommandError, match=r"triton-ascend 3\.2\.0 with .*pip download --no-deps.* `--wheels wheels`"):
        toolchain.prepare(PAIRS[0], wheels=tmp_path / "wheels")
    assert not list(elsewhere.glob("compilers/*"))


@pytest.mark.skipif(sys.version_info[:2] not in ((3, 10), (3, 11)), reason="triton-ascend has no release for it")
@pytest.mark.parametrize("content", ["", "12345"])
def test_a_compiler_that_was_cut_short_is_named_and_judges_nothing(elsewhere: Path, content: str) -> None:
    python = f"py{'{}{}'.format(*toolchain._python('').version)}"
    folder = elsewhere / "compilers" / f"{PAIRS[0].front}-{PAIRS[0].back}-{python}"
    (folder / "x-1.dist-info").mkdir(parents=True)
    elsewhere.chmod(0o700)
    (folder / "toolchain.json").write_text("{}")
    (folder / "x-1.dist-info" / "RECORD").write_text("compile,sha256=a,10\n../bin/x,sha256=b,1\nx.pyc,,\n")
    (folder / "compile").write_text("0123456789")
    assert toolchain.prepare(PAIRS[0]).folder == folder
    (folder / "compile").write_text(content)
    with pytest.raises(CommandError, match="found compile is missing or has an unexpected size; delete this folder"):
        toolchain.prepare(PAIRS[0])


@pytest.mark.parametrize("named", ["/no/such/python", "/bin/true"])
def test_an_interpreter_that_cannot_be_used_is_named(named: str) -> None:
    with pytest.raises(CommandError, match=f"{named} .*--python PATH"):
        toolchain.prepare(PAIRS[0], python=named)


def test_a_folder_that_others_can_write_to_is_refused(elsewhere: Path) -> None:
    elsewhere.mkdir()
    elsewhere.chmod(0o777)
    with pytest.raises(CommandError, match="a folder that only you can write to"):
        toolchain.checked(elsewhere)


def test_the_compiler_s_process_sees_its_own_folder_before_all_others(tmp_path: Path) -> None:
    chain = toolchain.Toolchain(tmp_path, PAIRS[0], toolchain.Python(sys.executable, (3, 11), (sys.prefix,)))
    variables = chain.environment()
    assert variables["PYTHONPATH"].startswith(f"{tmp_path}:")
    assert variables["PATH"].startswith(f"{tmp_path}/ascendnpuir/bin:")


def test_variables_of_the_caller_do_not_change_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = toolchain.Toolchain(tmp_path, PAIRS[0], toolchain.Python(sys.executable, (3, 11), (sys.prefix,)))
    before = chain.environment()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("LD_PRELOAD", "/x.so")
    assert chain.environment() == before


def test_each_generation_names_an_npu() -> None:
    assert len({str(soc.question["arch"]) for soc in Soc}) == len(Soc)
