"""The plugin knows a pin by three lines beside its lock; verl's documents or a record confirm each."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from verl_npu.errors import DeclarationError
from verl_npu.features.megatron.contract import recorded_as
from verl_npu.pins import FILE_NAME, locks_folder, pins

UPSTREAMS = Path(os.environ.get("VERL_NPU_UPSTREAMS", "none"))


def put(folder: Path, name: str, text: str) -> None:
    path = folder / "verl" / name / FILE_NAME
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_pins_are_in_the_order_of_their_versions() -> None:
    names = [*pins()]
    assert names[0] == "796871d7"
    assert names.index("ccd7d934") == names.index("v0.7.0") - 1  # 0.7.0.dev
    assert names.index("1dda039b") > names.index("v0.9.1")  # 0.10.0.dev


def test_three_lines_make_a_pin(tmp_path: Path) -> None:
    lines = (locks_folder() / "verl" / "v0.9.1" / FILE_NAME).read_text().splitlines()
    assert len(lines[1:-1]) == 3
    put(tmp_path, "v0.9.1", "\n".join(lines))
    put(tmp_path, "v0.10.0", "\n".join(lines).replace("0.9.1", "0.10.0"))
    assert [*pins(tmp_path)] == ["v0.9.1", "v0.10.0"]
    assert pins(tmp_path)["v0.10.0"].engines == {"vllm": "0.23.0", "vllm-ascend": "0.23.*"}


@pytest.mark.parametrize("text", ["", "{", "{}", '{"version": "1", "engines": {}, "mindspeed": "x", "cann": "8"}'])
def test_a_file_that_is_damaged_or_says_what_nobody_reads_is_refused(tmp_path: Path, text: str) -> None:
    put(tmp_path, "v1", text)
    with pytest.raises(DeclarationError, match=rf"v1/{FILE_NAME}: this pin cannot be read"):
        pins(tmp_path)


@pytest.mark.parametrize("pin", pins().values(), ids=pins())
def test_a_pin_is_what_its_lock_was_made_of_and_its_mindspeed_is_recorded(pin) -> None:
    lock = json.loads((locks_folder() / "verl" / pin.name / "lock.json").read_text())
    assert lock["revision"] == (pin.commit or pin.version)
    assert pin.name in (f"v{pin.version}", pin.commit[:8])
    assert recorded_as(pin.mindspeed).revision == pin.mindspeed


@pytest.mark.upstream
@pytest.mark.parametrize("pin", pins().values(), ids=pins())
def test_verls_documents_name_the_releases(pin) -> None:
    folder = UPSTREAMS / f"verl-{pin.name}" / "docs" / "ascend_tutorial"
    if not folder.is_dir():
        pytest.skip(f"VERL_NPU_UPSTREAMS names no folder with verl-{pin.name}/")
    text = "".join(page.read_text() for page in folder.rglob("*.rst"))
    for named in (*pin.engines.values(), pin.mindspeed):
        # No document of 796871d7 names a revision of MindSpeed.
        assert named.removesuffix("*") in text or (pin.name, named) == ("796871d7", pin.mindspeed)
