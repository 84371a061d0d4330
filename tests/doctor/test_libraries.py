"""What compiled files lack."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from verl_npu.doctor.libraries import Lack, Origin, lacks, origin

from .box import Box


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
