"""The table lists each name of vLLM and vllm-ascend that we use, and describes each release correctly."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from maintain import record_engine_names as recording

from verl_npu.features import PATCH_MODULES
from verl_npu.features.engine_names import NAMES, Form, Name, accepts, find, lacks
from verl_npu.pins import pins
from verl_npu.registry.source.tree import SourceTree

RECORD: recording.Record = json.loads(recording.RECORD.read_text())
PROJECT = recording.PROJECT
VIRTUAL = PROJECT / "packages" / "virtual-ascend"
ROOTS = {
    "verl_npu": PROJECT,
    "verl_npu_entry": PROJECT,
    "verl_npu_workbench": PROJECT / "packages" / "verl-npu-workbench",
    "virtual_ascend": VIRTUAL,
}

# The table against our own source.


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.title)
def test_what_the_table_says_of_our_modules_is_so(name: Name) -> None:
    assert name.uses
    for use in name.uses:
        module, _, word = use.partition(":")
        path = ROOTS[module.partition(".")[0]].joinpath(*module.split("."))
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        assert word in source.read_text(), use


def test_every_patch_module_of_vllm_ascend_is_in_the_table() -> None:
    read = {module.name for module in PATCH_MODULES if module.name.startswith("vllm_ascend.")}
    assert read == {name.title for name in NAMES if name.title.startswith("vllm_ascend.patch.")}


def test_no_title_is_there_twice() -> None:
    assert len({(name.package, name.title) for name in NAMES}) == len(NAMES)


# The table against the releases.


def test_the_releases_of_every_pin_that_can_be_installed_are_recorded() -> None:
    for name in recording.INSTALLED:
        assert all(recording.release_of(pins()[name], package) for package in recording.RELEASES)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.title)
def test_the_releases_that_must_have_a_name_have_it_as_we_use_it(name: Name) -> None:
    for release in recording.RELEASES[name.package]:
        found = recording.read(RECORD, name, release)
        assert (found is not None) is name.expected_in(release), release
        if found is not None and name.arguments is not None:
            assert accepts(found[found.index("(") :], name.arguments), release


@pytest.mark.upstream
@pytest.mark.parametrize(
    ("package", "release"), [(package, one) for package, releases in recording.RELEASES.items() for one in releases]
)
def test_the_record_is_what_the_source_says(package: str, release: str, source: Callable[[str, str], Path]) -> None:
    tree = SourceTree.at(source(package.replace("_", "-"), f"v{release}"), (package,))
    names = [name for name in NAMES if name.package == package]
    said = {name.title: recording.read(RECORD, name, release) for name in names}
    assert {name.title: recording.described(name, tree) for name in names} == said


@pytest.mark.upstream
@pytest.mark.parametrize("release", recording.RELEASES["vllm_ascend"][1:])
def test_the_virtual_hccl_has_the_functions_that_pyhccl_looks_up(
    release: str, source: Callable[[str, str], Path]
) -> None:
    tree = SourceTree.at(source("vllm-ascend", f"v{release}"), ("vllm_ascend",))
    module = "vllm_ascend.distributed.device_communicators.pyhccl_wrapper"
    wanted = {word for word in tree.used_names(f"{module}:HCCLLibrary") if re.fullmatch(r"Hccl[A-Z]\w+", word)}
    library = (VIRTUAL / "virtual_ascend" / "hccl" / "libhccl.cpp").read_text()
    assert len(wanted) >= 6
    assert {word for word in wanted if not re.search(rf"\b{word}\(", library)} == set()


@pytest.mark.parametrize("language", recording.PAGES)
def test_the_page_has_the_table(language: str) -> None:
    text = recording.PAGES[language].read_text()
    begin, end = text.index(recording.BEGIN) + len(recording.BEGIN), text.index(recording.END)
    assert text[begin:end].strip("\n") == recording.render(RECORD, language)


# Looking up a name.

SOURCE = """
import os
SWITCH = os.environ.get("VLLM_SWITCH")

class Base:
    size: int = 1

    def __init__(self):
        self.rank = 0
        other.width = 0

    def move(self, tensor, stream=None): ...
"""


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "base.py").write_text(SOURCE)
    return SourceTree.at(tmp_path, ("vllm",))


def name(place: str, form: Form, arguments: int | None = None, since: str = "0.9.1") -> Name:
    return Name("it", (place,), ("verl_npu.activation:it",), "nothing works", form, arguments, since)


@pytest.mark.parametrize(
    ("form", "place", "there"),
    [
        (Form.MODULE, "vllm.base", True),
        (Form.MODULE, "vllm.other", False),
        (Form.DEFINED, "vllm.base:Base.move", True),
        (Form.DEFINED, "vllm.base:Base.rank", False),
        (Form.SET, "vllm.base:Base.rank", True),
        (Form.SET, "vllm.base:Base.size", True),
        (Form.SET, "vllm.base:Base.width", False),
        (Form.SET, "vllm.base:Other.rank", False),
        (Form.READ, "vllm.base:VLLM_SWITCH", True),
        (Form.READ, "vllm.base:VLLM_OTHER", False),
    ],
)
def test_a_name_is_found_in_its_form(form: Form, place: str, there: bool, tree: SourceTree) -> None:
    assert (find(name(place, form), tree) is not None) is there


@pytest.mark.parametrize(
    ("signature", "arguments", "accepted"),
    [
        ("(self, tensor, stream=None)", 1, True),
        ("(self, tensor, stream=None)", 2, True),
        ("(self, tensor, stream=None)", 3, False),
        ("(self, tensor, out)", 1, False),
        ("(self, *tensors)", 4, True),
        ("(self, tensor, *, stream)", 1, False),
        ("(self, tensor, *, stream=None)", 1, True),
        ("()", 0, True),
    ],
)
def test_a_signature_accepts_our_call_or_not(signature: str, arguments: int, accepted: bool) -> None:
    assert accepts(signature, arguments) is accepted


@pytest.mark.parametrize(
    ("one", "release", "found"),
    [
        (name("vllm.base:Base.move", Form.DEFINED, 1), "0.11.0", []),
        (name("vllm.base:Base.gone", Form.DEFINED), "0.11.0", ["no vllm.base:Base.gone"]),
        (name("vllm.base:Base.gone", Form.DEFINED), "0.7.3", []),
        (
            name("vllm.base:Base.move", Form.DEFINED, 3),
            "0.11.0+empty",
            ["vllm.base:Base.move(self, tensor, stream=None), which verl-npu calls with 3 arguments"],
        ),
    ],
)
def test_what_an_installed_release_lacks_is_said(one: Name, release: str, found: list[str], tree: SourceTree) -> None:
    assert [lack.found for lack in lacks([one], tree, {"vllm": release})] == found


def test_a_package_that_is_not_installed_lacks_nothing(tree: SourceTree) -> None:
    assert list(lacks([name("vllm.base:Base.gone", Form.DEFINED)], tree, {})) == []
