"""The matrix of versions: complete for each pin, and found in the documents that it names."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from harness.pins import PINS as PINNED
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from verl_npu.ascend.matrix import A5, PINS, SGLANG, VLLM, Claim, Component, parse_version

CLAIMS = [
    pytest.param(claim, id=f"{pin.name}-{part.value}-{number}")
    for pin in PINS.values()
    for part, cell in pin.cells.items()
    for number, claim in enumerate(cell.claims)
]


def checkout(claim: Claim) -> Path:
    folder = os.environ.get("VERL_NPU_UPSTREAMS")
    if not folder:
        pytest.skip("VERL_NPU_UPSTREAMS names no checkouts")
    found = Path(folder) / f"{claim.source.project}-{claim.source.revision}"
    if not found.is_dir():
        pytest.skip(f"no {found.name} in VERL_NPU_UPSTREAMS")
    return found


def test_every_pin_is_there_with_its_commit() -> None:
    assert {name: pin.commit for name, pin in PINS.items()} == {name: pin.commit for name, pin in PINNED.items()}


@pytest.mark.parametrize("pin", PINS)
def test_what_no_environment_is_without_is_said_for_each_pin(pin: str) -> None:
    needed = {"python", "cann", "torch", "torch_npu", "vllm", "vllm-ascend", "transformers", "tensordict", "ray"}
    assert needed <= {part.value for part in PINS[pin].cells}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_can_be_compared(claim: Claim) -> None:
    SpecifierSet(claim.needs)
    assert claim.engine in ("", VLLM, SGLANG)
    assert claim.npu in ("", A5)


@pytest.mark.upstream
@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_is_in_the_document_that_it_names(claim: Claim) -> None:
    document = checkout(claim) / claim.source.document
    text = document.read_text().lower()
    written = "mindspeed0121" in text  # the one version that is written without its dots
    named = re.findall(r"\d+(?:\.\w+)+|^[0-9a-f]{8,}$", f"{claim.needs}\n{claim.revision}", flags=re.MULTILINE)
    assert [number for number in named if number.lower().removesuffix(".*") not in text and not written] == []


def test_versions_of_python_packaging_are_read_as_they_are() -> None:
    assert parse_version("2.9.0.post2+git4c901a4") == Version("2.9.0.post2+git4c901a4")


@pytest.mark.parametrize(
    ("text", "version"),
    [("8.3.RC1", "8.3rc1"), ("8.2.RC1.alpha003", "8.2rc1"), ("25.3.rc1.2", "25.3rc1"), ("25.5.t3.b001", "25.5")],
)
def test_versions_of_cann_and_drivers_are_read_as_far_as_they_mean_something(text: str, version: str) -> None:
    assert parse_version(text) == Version(version)


def test_what_has_no_number_is_no_version() -> None:
    assert parse_version("unknown") is None


def test_a_claim_for_another_engine_or_npu_does_not_count() -> None:
    cell = PINS["v0.9.0"].cells[Component.TRANSFORMERS]
    named = {str(claim) for claim in cell.about()}
    assert named == {"==5.10.4", ">=5.5.3,!=5.6.0,<5.11", "==5.5.4"}
    assert {str(claim) for claim in cell.about([SGLANG])} == {">=5.5.3,!=5.6.0,<5.11", "==5.3.0"}
    assert "==4.57.6" in {str(claim) for claim in cell.about([VLLM], A5)}


def test_what_is_not_supported_accepts_no_version() -> None:
    (claim,) = PINS["v0.7.1"].cells[Component.FLASH_ATTN].claims
    assert not claim.accepts(Version("2.8.3"))
