from __future__ import annotations

import datetime
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.jobs import JOBS
from harness.pins import PINS as INSTALLED
from harness.pins import Pin as Installed
from maintain import pins as maintained
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from verl_npu_workbench import pins as module
from verl_npu_workbench.pins import A5, ENVIRONMENTS, PINS, SGLANG, VLLM, Claim, Component, Pins, parse_version

from verl_npu.pins import FILE_NAME, locks_folder

FOLDER = Path(module.__file__).parent

UPSTREAMS = Path(os.environ.get("VERL_NPU_UPSTREAMS", "none"))


def claims(pin: str) -> list[Claim]:
    return [claim for cell in PINS[pin].cells.values() for claim in cell.claims]


def checkout(claim: Claim) -> Path:
    return UPSTREAMS / f"{claim.source.project}-{claim.source.revision}"


# The files, and everything generated from them.


@pytest.mark.parametrize("path", maintained.made(), ids=lambda path: path.name)
def test_what_is_made_of_the_files_is_up_to_date(path: Path) -> None:
    assert maintained.made()[path] == path.read_text()


@pytest.fixture
def folders(tmp_path: Path) -> Callable[[str, str], Pins]:
    """Return a function that adds a file for a v0.7.2, like v0.7.1 but for its number, to copies of all files."""

    def add(old: str, new: str) -> Pins:
        files, locks = tmp_path / "files", tmp_path / "locks"
        shutil.copytree(FOLDER, files)
        shutil.copytree(locks_folder() / "verl", locks / "verl", ignore=shutil.ignore_patterns("lock.json", "*.diff"))
        shutil.copytree(locks / "verl" / "v0.7.1", locks / "verl" / "v0.7.2")
        known = locks / "verl" / "v0.7.2" / FILE_NAME
        known.write_text(known.read_text().replace("0.7.1", "0.7.2"))
        text = (files / "v0.7.1.toml").read_text()
        (files / "v0.7.2.toml").write_text(re.sub(rf"(?m)^{old}\b", new, text, count=1))
        return Pins(files, locks)

    return add


def test_the_releases_of_transformers_are_told_by_their_minor_versions() -> None:
    line = maintained.locked(["5.10.4", "5.9.0", "4.57.6", "4.55.2", "4.55.4", "4.56.2", "5.3.0"], "en")
    assert " 4.55 to 4.57, 5.3, 5.9 to 5.10." in line


@pytest.mark.parametrize(
    ("published", "month"), [((2025, 8, 5), "2027-02"), ((2025, 6, 30), "2026-12"), ((2026, 7, 1), "2028-01")]
)
def test_a_pin_is_supported_for_eighteen_months(published: tuple[int, int, int], month: str) -> None:
    assert maintained.supported_until(datetime.date(*published)) == month


def test_a_pin_that_is_new_reaches_all_that_is_made(folders: Callable[[str, str], Pins]) -> None:
    pins = folders("nightly_checkout = false", "nightly_checkout = true")
    assert [*pins].index("v0.7.2") == [*pins].index("v0.7.1") + 1
    files = {path.name: text for path, text in maintained.made(pins).items()}
    assert re.search(r"(?m)^\| part \|.* `v0\.7\.2` \|", files["versions.md"])
    assert "| `v0.7.2` | PyPI | 2027-09 | GRPO, PPO and SFT train;" in files["README.md"]
    assert "- { pin: v0.7.2, job: sft }" in files["smoke.yml"]
    assert "path: upstreams/verl-v0.7.2\n" in files["nightly.yml"]
    assert pins["v0.7.2"].cells[Component.CANN].claims[0].source.revision == "v0.7.2"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("recipes", "recipies", "top level: expected some of published .*; found recipies"),
        ("transformers", "transformer", "training: expected .*; found transformer"),
        ("id", 'like = "v0"\nid', "expected `like` to name a pin with an environment documents of its own"),
    ],
)
def test_what_nobody_reads_in_a_file_is_refused(
    folders: Callable[[str, str], Pins], old: str, new: str, words: str
) -> None:
    pins = folders(old, new)
    with pytest.raises(maintained.BadPin, match=words):
        maintained.check(pins)


def test_a_pin_without_a_file_is_none_of_these_and_files_are_read_when_they_are_asked_for(
    folders: Callable[[str, str], Pins], tmp_path: Path
) -> None:
    folders("recipes", "recipes")
    (tmp_path / "files" / "v0.7.1.toml").unlink()
    (tmp_path / "files" / "v0.7.2.toml").write_text("no TOML")
    pins = Pins(tmp_path / "files", tmp_path / "locks")
    assert {*pins} == {*PINS, "v0.7.2"} - {"v0.7.1"}
    assert "v0.7.1" not in pins
    assert pins["v0.8.0"].name == "v0.8.0"
    with pytest.raises(ValueError, match="Expected"):
        pins["v0.7.2"]


def test_every_job_of_a_pin_is_there_and_what_ci_trains_is_among_them() -> None:
    for name in PINS:
        assert set(INSTALLED[name].jobs) <= set(JOBS)
        assert {row["job"] for row in PINS.said(name)["smoke"]} <= set(INSTALLED[name].jobs)
    assert {job for pin in INSTALLED.values() for job in pin.jobs} == set(JOBS)


def test_each_note_is_in_chinese_too() -> None:
    assert [claim for pin in PINS for claim in claims(pin) if bool(claim.note) != bool(claim.note_zh)] == []


# The versions that upstream names.


@pytest.mark.parametrize("pin", PINS)
def test_what_no_environment_is_without_is_said_for_each_pin_and_can_be_compared(pin: str) -> None:
    needed = {"python", "cann", "torch", "torch_npu", "vllm", "vllm-ascend", "transformers", "tensordict", "ray"}
    assert needed <= {part.value for part in PINS[pin].cells}
    assert [each.id for each in PINS[pin].environments] in (["documents"], [*ENVIRONMENTS])
    for claim in claims(pin):
        SpecifierSet(claim.needs)
        assert (claim.engine in ("", VLLM, SGLANG), claim.npu in ("", A5)) == (True, True), claim


@pytest.mark.upstream
@pytest.mark.parametrize("pin", PINS)
def test_a_claim_is_in_the_document_that_it_names(pin: str) -> None:
    here = [claim for claim in claims(pin) if checkout(claim).is_dir()]
    if not here:
        pytest.skip("VERL_NPU_UPSTREAMS names no checkouts with its documents")
    for claim in here:
        text = (checkout(claim) / claim.source.document).read_text().lower()
        written = "mindspeed0121" in text  # the one version that is written without its dots
        named = re.findall(r"\d+(?:\.\w+)+|^[0-9a-f]{8,}$", f"{claim.needs}\n{claim.revision}", flags=re.MULTILINE)
        missing = [number for number in named if number.lower().removesuffix(".*") not in text and not written]
        assert not missing, claim


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.9.0.post2+git4c901a4", "2.9.0.post2+git4c901a4"),
        ("8.3.RC1", "8.3rc1"),
        ("8.2.RC1.alpha003", "8.2rc1"),
        ("25.3.rc1.2", "25.3rc1"),
        ("25.5.t3.b001", "25.5"),
        ("unknown", "None"),
    ],
)
def test_versions_of_cann_and_drivers_are_read_as_far_as_they_mean_something(text: str, version: str) -> None:
    assert str(parse_version(text)) == version


def test_a_claim_for_another_engine_or_npu_does_not_count() -> None:
    cell = PINS["v0.9.0"].cells[Component.TRANSFORMERS]
    named = {str(claim) for claim in cell.about()}
    assert named == {"==5.10.4", ">=5.5.3,!=5.6.0,<5.11", "==5.5.4"}
    assert {str(claim) for claim in cell.about([SGLANG])} == {">=5.5.3,!=5.6.0,<5.11", "==5.3.0"}
    assert "==4.57.6" in {str(claim) for claim in cell.about([VLLM], A5)}


def test_what_is_not_supported_accepts_no_version() -> None:
    (claim,) = PINS["v0.7.1"].cells[Component.FLASH_ATTN].claims
    assert not claim.accepts(Version("2.8.3"))


# The packages that the scripts install.


@pytest.mark.parametrize("pin", INSTALLED.values(), ids=INSTALLED)
def test_an_environment_has_what_upstream_imports_on_npus(pin: Installed) -> None:
    # For use_remove_padding and Ulysses; the agent loops; the rewards of geo3k and of recipe/r1_ascend; and upstream's
    # asynchronous rollouts.
    needed = {"einops", "cachetools", "mathruler", "fastapi", "uvicorn", "pyzmq"}
    assert needed <= {re.split(r"[\[=]", line)[0].lower() for line in pin.requirements}
