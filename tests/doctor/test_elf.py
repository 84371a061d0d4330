"""What is read of shared libraries, beside what binutils say of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_npu.doctor.elf import NotElf, read


def test_the_needed_libraries_are_in_the_order_of_the_file(libraries: Path) -> None:
    assert read(libraries / "torch_npu.so").needed == ("libhccl.so", "libascendcl.so")


def test_the_versions_of_symbols_are_told_by_library(libraries: Path) -> None:
    assert dict(read(libraries / "needs15.so").versions) == {"libstdc++.so.6": ("CXXABI_1.3.15",)}


def test_a_library_says_which_versions_it_has(libraries: Path) -> None:
    assert read(libraries / "stdc++13.so").provides == ("libstdc++.so.6", "CXXABI_1.3.13")


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"#!/bin/sh\n" * 20, b"\x7fELF\x02\x01" + b"\0" * 20):
        (tmp_path / "file.so").write_bytes(content)
        with pytest.raises(NotElf):
            read(tmp_path / "file.so")


def test_a_library_that_is_cut_off_is_refused(libraries: Path, tmp_path: Path) -> None:
    whole = (libraries / "torch_npu.so").read_bytes()
    (tmp_path / "cut.so").write_bytes(whole[:4000])
    with pytest.raises(NotElf):
        read(tmp_path / "cut.so")
