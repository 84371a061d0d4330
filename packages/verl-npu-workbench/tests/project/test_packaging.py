"""The distributions: the wheel judges an upstream as the checkout does, and the source archive has the tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from email.parser import Parser
from pathlib import Path

import pytest
from maintain import release
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from verl_npu.features import locks_folder
from verl_npu.version import __version__

PROJECT = Path(__file__).resolve().parents[4]


def check(path: Path, *arguments: str) -> tuple[str, str]:
    program = (
        "import sys; sys.argv[0] = 'verl-npu'\n"
        "from verl_npu.features import locks_folder; print(locks_folder())\n"
        "from verl_npu.cli import main; main(standalone_mode=False)"
    )
    # 1 where something drifted: the installed verl may be no pin.
    result = subprocess.run(
        [sys.executable, "-c", program, "check", "--json", *arguments],
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
        cwd=path,
    )
    assert result.returncode in (0, 1), result.stderr
    folder, _, content = result.stdout.partition("\n")
    return folder, content


def unconditional(requirements: Sequence[str]) -> set[str]:
    """Return the packages that an installation without extras brings, by their normalized names."""
    parsed = [Requirement(line) for line in requirements]
    wanted = [one for one in parsed if one.marker is None or one.marker.evaluate({"extra": ""})]
    return {canonicalize_name(one.name) for one in wanted}


@pytest.fixture(scope="session")
def requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(metadata).decode()).get_all("Requires-Dist", [])


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return the files of the source archive, below its one folder."""
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", folder, PROJECT]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (made,) = folder.glob("verl_npu-*.tar.gz")
    with tarfile.open(made) as archive:
        return {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}


def test_a_wheel_works_as_the_checkout_does(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    own, from_wheel = check(tmp_path)
    assert own == str(tmp_path / "verl_npu" / "patches")
    _, from_checkout = check(PROJECT)
    assert json.loads(from_wheel) == json.loads(from_checkout)


def test_the_wheel_holds_every_lock_and_catalogue_no_tests_and_nothing_of_the_virtual_ascend(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    locks = {
        f"verl_npu/patches/{path.relative_to(locks_folder())}"
        for path in locks_folder().rglob("*.*")
        if path.is_file()
    }
    locks.discard("verl_npu/patches/.gitkeep")
    assert locks <= names
    assert {f"verl_npu/locale/zh_CN/LC_MESSAGES/verl_npu.{kind}" for kind in ("po", "mo")} <= names
    assert not [name for name in names if name.endswith(".pth") or "virtual_ascend" in name]
    assert not [name for name in names if name.startswith(("tests/", "scripts/", "benchmarks/"))]


def test_a_plain_installation_brings_these_and_no_others(requirements: list[str]) -> None:
    assert unconditional(requirements) == {"click", "packaging", "wrapt"}


def test_the_distributions_have_one_version() -> None:
    expected = release.versioned(__version__)
    assert {path: path.read_text() for path in expected} == expected


def test_a_release_changes_every_file_that_has_the_version(tmp_path: Path) -> None:
    for path in (*release.VERSIONS, *release.REQUIREMENTS, *release.CHANGELOGS):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / path, tmp_path / path)
    assert release.undated("7.8.9", tmp_path) == [*map(str, release.CHANGELOGS)]
    for path, text in (release.versioned("7.8.9", tmp_path) | release.dated("7.8.9", "2030-01-02", tmp_path)).items():
        path.write_text(text)
    assert release.stated(tmp_path) == "7.8.9"
    assert release.undated("7.8.9", tmp_path) == []
    files = {path: (tmp_path / path).read_text() for path in (*release.VERSIONS, *release.REQUIREMENTS)}
    assert [path for path, text in files.items() if "7.8.9" not in text] == []
    assert [path for path, text in files.items() if f'"{__version__}"' in text] == []


def tracked() -> set[str]:
    """Return the files of the checkout; skip where git does not know them, as in an unpacked source archive."""
    answer = subprocess.run(["git", "-C", str(PROJECT), "ls-files"], capture_output=True, text=True, check=False)
    if answer.returncode:
        pytest.skip("this is no git checkout")
    return {name for name in answer.stdout.splitlines() if (PROJECT / name).is_file()}


def test_the_source_archive_holds_the_tests_the_scripts_and_the_documents(sdist: set[str]) -> None:
    left_out = {name for name in tracked() - sdist if not name.startswith(".ci/")}
    assert not left_out


def test_the_source_archive_holds_nothing_that_is_not_checked_in(sdist: set[str]) -> None:
    # PKG-INFO is made with the archive; a file that is new in this checkout may be about to be added.
    new = subprocess.run(
        ["git", "-C", str(PROJECT), "ls-files", "--others", "--exclude-standard"], capture_output=True, text=True
    ).stdout.splitlines()
    assert sdist - tracked() - set(new) <= {"PKG-INFO"}


def test_the_workbenchs_wheel_holds_its_package_with_all_data_and_nothing_else(
    make_wheel: Callable[[Path, Path], Path], tmp_path: Path
) -> None:
    package = "packages/verl-npu-workbench"
    made = zipfile.ZipFile(make_wheel(PROJECT / package, tmp_path))
    names = {name for name in made.namelist() if ".dist-info/" not in name}
    folder = f"{package}/verl_npu_workbench/"
    assert names == {name.removeprefix(f"{package}/") for name in tracked() if name.startswith(folder)}
    # They include the catalogue and the pins.
    assert "verl_npu_workbench/locale/zh_CN/LC_MESSAGES/verl_npu_workbench.mo" in names
    assert "verl_npu_workbench/pins/v0.6.1.toml" in names
