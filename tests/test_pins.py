"""The pins: each is one file, complete, found in the documents that it names, and what is made of it is up to date."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from harness.jobs import JOBS
from harness.pins import PINS as INSTALLED
from harness.pins import Pin as Installed
from maintain import pins as maintained
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import verl_npu
from verl_npu.pins import A5, PINS, SGLANG, VLLM, Claim, Component, parse_version, pins_of

PROJECT = Path(verl_npu.__file__).resolve().parents[1]

UPSTREAMS = Path(os.environ.get("VERL_NPU_UPSTREAMS", "none"))


def claims(pin: str) -> list[Claim]:
    return [claim for cell in PINS[pin].cells.values() for claim in cell.claims]


def checkout(claim: Claim) -> Path:
    return UPSTREAMS / f"{claim.source.project}-{claim.source.revision}"


# The files, and what is made of them.


@pytest.mark.parametrize("path", maintained.made(), ids=lambda path: path.name)
def test_what_is_made_of_the_files_is_up_to_date(path: Path) -> None:
    assert maintained.made()[path] == path.read_text()


def pin_file(**changed: object) -> str:
    """The file of a pin with other words in it."""
    text = (PROJECT / "pins" / "v0.7.1.toml").read_text()
    for old, new in changed.items():
        text = re.sub(rf"(?m)^{old}\b", str(new), text, count=1)
    return text


def test_a_pin_that_is_new_reaches_all_that_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(PROJECT / "pins", tmp_path / "pins")
    text = pin_file().replace('version = "0.7.1"', 'version = "0.7.2"').replace("released = true", "released = false")
    (tmp_path / "pins" / "v0.7.2.toml").write_text(text.replace("nightly_checkout = false", "nightly_checkout = true"))
    pins = maintained.read(tmp_path / "pins")
    assert [*pins].index("v0.7.2") == [*pins].index("v0.7.1") + 1
    monkeypatch.setattr(maintained, "read", lambda: pins)
    files = {path.name: text for path, text in maintained.made().items()}
    assert re.search(r"(?m)^\| part \|.* `v0\.7\.2` \|", files["doctor.md"])
    assert "| `v0.7.2` | git | GRPO, PPO and SFT train;" in files["README.md"]
    assert "- { pin: v0.7.2, job: sft, commit: bec9ef74768dd201881cd4e54cd0385e87caae27 }" in files["smoke.yml"]
    assert "path: upstreams/verl-v0.7.2\n" in files["nightly.yml"]
    assert (
        pins_of(json.loads(files["pins.json"]))["v0.7.2"].cells[Component.CANN].claims[0].source.revision == "v0.7.2"
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("recipes", "recipies", "top level: expected some of commit version .*, found recipies"),
        ("transformers", "transformer", "training: expected .*, found transformer"),
        ("id", 'like = "v0"\nid', "expected `like` to name a pin with an environment documents of its own"),
    ],
)
def test_what_nobody_reads_in_a_file_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    (tmp_path / "v0.7.1.toml").write_text(pin_file(**{old: new}))
    with pytest.raises(maintained.BadPin, match=words):
        maintained.read(tmp_path)


def test_every_job_of_a_pin_is_there_and_what_ci_trains_is_among_them() -> None:
    for name, pin in maintained.read().items():
        assert set(INSTALLED[name].jobs) <= set(JOBS)
        assert {row["job"] for row in pin["smoke"]} <= set(INSTALLED[name].jobs)
    assert {job for pin in INSTALLED.values() for job in pin.jobs} == set(JOBS)


def test_each_note_is_in_chinese_too() -> None:
    assert [claim for pin in PINS for claim in claims(pin) if bool(claim.note) != bool(claim.note_zh)] == []


# The versions that upstream names.


@pytest.mark.parametrize("pin", PINS)
def test_what_no_environment_is_without_is_said_for_each_pin_and_can_be_compared(pin: str) -> None:
    needed = {"python", "cann", "torch", "torch_npu", "vllm", "vllm-ascend", "transformers", "tensordict", "ray"}
    assert needed <= {part.value for part in PINS[pin].cells}
    assert PINS[pin].environments[0].id == "documents"
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


# What the scripts install.


@pytest.mark.parametrize("pin", INSTALLED.values(), ids=INSTALLED)
def test_an_environment_has_what_upstream_imports_on_npus(pin: Installed) -> None:
    # For use_remove_padding and Ulysses; the agent loops; the rewards of geo3k and of recipe/r1_ascend; and upstream's
    # asynchronous rollouts.
    needed = {"einops", "cachetools", "mathruler", "fastapi", "uvicorn", "pyzmq"}
    assert needed <= {re.split(r"[\[=]", line)[0].lower() for line in pin.requirements}
