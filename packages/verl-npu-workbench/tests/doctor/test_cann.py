from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from verl_npu_workbench.doctor.cann import Lack, NotElf, Origin, lacks, origin, read_elf

from .box import Box


def test_the_needed_libraries_are_in_the_order_of_the_file(libraries: Path) -> None:
    assert read_elf(libraries / "torch_npu.so").needed == ("libhccl.so", "libascendcl.so")


def test_the_versions_of_symbols_are_told_by_library(libraries: Path) -> None:
    assert dict(read_elf(libraries / "needs15.so").versions) == {"libstdc++.so.6": ("CXXABI_1.3.15",)}


def test_a_library_says_which_versions_it_has(libraries: Path) -> None:
    assert read_elf(libraries / "stdc++13.so").provides == ("libstdc++.so.6", "CXXABI_1.3.13")


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"#!/bin/sh\n" * 20, b"\x7fELF\x02\x01" + b"\0" * 20):
        (tmp_path / "file.so").write_bytes(content)
        with pytest.raises(NotElf):
            read_elf(tmp_path / "file.so")


def test_a_library_that_is_cut_off_is_refused(libraries: Path, tmp_path: Path) -> None:
    whole = (libraries / "torch_npu.so").read_bytes()
    (tmp_path / "cut.so").write_bytes(whole[:4000])
    with pytest.raises(NotElf):
        read_elf(tmp_path / "cut.so")


@pytest.fixture
def box(make: Callable[..., Box]) -> Box:
    return make("v0.7.1")


def found(box: Box, *preloaded: Path) -> list[Lack]:
    return list(lacks(box.site(), [box.path("site/torch_npu/lib/libtorch_npu.so")], preloaded))


@pytest.mark.parametrize(
    ("library", "whose"),
    [
        ("libhccl.so", Origin.CANN),
        ("libascend_hal.so", Origin.DRIVER),
        ("libatb.so", Origin.NNAL),
        ("libstdc++.so.6", Origin.SYSTEM),
        ("libtorch_cpu.so", Origin.SYSTEM),
        ("libnuma.so.1", Origin.SYSTEM),
    ],
)
def test_a_name_tells_whose_a_library_is(library: str, whose: str) -> None:
    assert origin(library) == whose


def test_all_libraries_of_a_right_environment_are_found(box: Box) -> None:
    assert found(box) == []


def test_a_folder_of_the_systems_configuration_counts(box: Box) -> None:
    box.environ["LD_LIBRARY_PATH"] = ""
    assert [lack.library for lack in found(box)] == ["libhccl.so", "libascendcl.so"]
    box.write("etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
    folders = "/usr/local/Ascend/ascend-toolkit/latest/lib64\n/usr/local/Ascend/driver/lib64/driver\n"
    box.write("etc/ld.so.conf.d/ascend.conf", folders)
    assert found(box) == []


def test_a_library_that_is_loaded_before_counts(box: Box) -> None:
    box.environ["LD_LIBRARY_PATH"] = ""
    lib64 = box.path("usr/local/Ascend/ascend-toolkit/latest/lib64")
    assert found(box, lib64, box.path("usr/local/Ascend/driver/lib64/driver")) == []


def test_what_canns_libraries_need_of_each_other_is_not_reported(box: Box) -> None:
    box.library("hccl-inner.so", "usr/local/Ascend/ascend-toolkit/latest/lib64/libhccl.so")
    assert found(box) == []


def test_a_file_that_cannot_be_read_lacks_nothing(box: Box) -> None:
    box.write("site/torch_npu/lib/libtorch_npu.so", "no library")
    assert found(box) == []
