"""Lists of hosts, as SLURM, a hostfile and a user write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_npu.errors import LaunchError
from verl_npu.launch.hosts import expand, of_file, of_text


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("node[08-10,12],login1", ["node08", "node09", "node10", "node12", "login1"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("a1.x,b[7]-ib", ["a1.x", "b7-ib"]),
    ],
)
def test_a_list_of_slurm_is_expanded(text: str, hosts: list[str]) -> None:
    assert [*expand(text)] == hosts


@pytest.mark.parametrize("text", ["", "node[", "node[a-b]", "node[3-1]", "node[1-99999999]", "a,,b", "a,a"])
def test_a_list_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(LaunchError):
        expand(text)


def test_a_hostfile_has_a_host_a_line(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# our cluster\nnode1 slots=8\n\nnode2:8  # the second\n")
    assert of_file(file) == ("node1", "node2")


@pytest.mark.parametrize("text", ["", "# nothing\n", "node1\nnode1\n"])
def test_a_hostfile_without_hosts_or_with_one_twice_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(LaunchError, match="each host once"):
        of_file(tmp_path / "hosts")


def test_a_hostfile_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="No such file"):
        of_file(tmp_path / "none")


def test_a_typed_list_is_split_at_commas() -> None:
    assert of_text(" a, b,c,") == ("a", "b", "c")
