from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from verl_npu_workbench.launch import host
from verl_npu_workbench.launch.host import Request, count_npus, look, preload, variables

from tests.doctor.smi import a2
from verl_npu.errors import LaunchError

HERE = {"lo": "127.0.0.1", "eth0": "10.0.0.2"}


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this host n1, at 10.0.0.2; n2 is 10.0.0.3."""
    names = {"n1": "127.0.1.1", "n2": "10.0.0.3"}
    monkeypatch.setattr(host, "here", lambda: HERE)
    monkeypatch.setattr(host, "resolve", lambda name: names.get(name, name))
    monkeypatch.setattr(host, "towards", lambda name: "10.0.0.2")
    monkeypatch.setattr(socket, "gethostname", lambda: "n1.cluster")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (1, True, "127.0.0.1", "127.0.0.1")),
        ({"nodes": 2, "head": "n1"}, (2, True, "10.0.0.2", "10.0.0.2")),
        ({"nodes": 2, "head": "10.0.0.2"}, (2, True, "10.0.0.2", "10.0.0.2")),
        ({"hosts": ("n2", "n1")}, (2, False, "10.0.0.3", "10.0.0.2")),
        ({"hosts": ("n2", "n1"), "head": "n1"}, (2, True, "10.0.0.2", "10.0.0.2")),
    ],
)
def test_a_host_knows_the_head_and_its_own_address(given: Any, expected: tuple[int, bool, str, str]) -> None:
    found = look(Request(command=("true",), **given), {"VIRTUAL_ASCEND": "2"})
    assert (found.nodes, found.is_head, found.head, found.address, found.refusals) == (*expected, [])


@pytest.mark.parametrize(
    ("given", "environ", "said"),
    [
        (
            {"nodes": 2},
            {},
            "--head: expected a name or an address at which the other hosts reach the head; found no head",
        ),
        ({"nodes": 2, "head": "localhost"}, {}, "found localhost"),
        ({"hosts": ("n1", "n1")}, {}, "--hosts: expected 2 different hosts"),
        ({"hosts": ("n1", "n2"), "nodes": 3}, {}, "--hosts: expected 3 different hosts"),
        ({"hosts": ("n1", "n2"), "head": "n3"}, {}, "including the head"),
        ({}, {"SLURM_STEP_NUM_NODES": "4"}, "found SLURM_STEP_NUM_NODES=4; add --hosts"),
    ],
)
def test_the_participants_must_be_given(given: Any, environ: dict[str, str], said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        look(Request(command=("true",), **given), environ)


def test_npus_are_counted(tmp_path: Path) -> None:
    command = tmp_path / "npu-smi"
    command.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{a2()}\nEND\n")
    command.chmod(0o755)
    assert count_npus({"PATH": str(tmp_path)}, None) == 8
    assert count_npus({"VIRTUAL_ASCEND": "4", "ASCEND_RT_VISIBLE_DEVICES": "1,3"}, 2) == 2
    with pytest.raises(LaunchError, match="expected 8; found VIRTUAL_ASCEND=4"):
        count_npus({"VIRTUAL_ASCEND": "4"}, 8)


def test_what_the_documents_ask_for_is_set_unless_the_user_has_set_it() -> None:
    usual = {"HCCL_CONNECT_TIMEOUT": "3600", "HCCL_EXEC_TIMEOUT": "3600", "TASK_QUEUE_ENABLE": "1"}
    usual |= {"RAY_DEDUP_LOGS": "0", "HYDRA_FULL_ERROR": "1", "VLLM_ASCEND_ENABLE_NZ": "0"}
    network = {"HCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0", "HCCL_IF_IP": "10.0.0.2"}
    assert variables({}, HERE, "10.0.0.2") == {**usual, **network}
    assert variables({}, HERE, "") == usual
    mine = {"HCCL_EXEC_TIMEOUT": "60", "GLOO_SOCKET_IFNAME": "lo", "HCCL_SOCKET_IFNAME": "ib0"}
    # The address would take precedence over the user's interface.
    assert not {*mine, "HCCL_IF_IP"} & {*variables(mine, HERE, "10.0.0.2")}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"LD_PRELOAD": "libjemalloc.so.2"}),
        ({"LD_PRELOAD": "/opt/libown.so"}, {"LD_PRELOAD": "libjemalloc.so.2:/opt/libown.so"}),
        ({"LD_PRELOAD": "/usr/lib64/libjemalloc.so.2"}, {}),
    ],
)
def test_jemalloc_is_loaded_before_the_users_libraries_unless_it_is_there(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], expected: dict[str, str]
) -> None:
    monkeypatch.setattr(host, "find_library", lambda name: f"lib{name}.so.2")
    assert preload(given) == expected


def test_jemalloc_is_refused_where_it_is_not_installed_and_left_out_unless_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "find_library", lambda name: None)
    environ = {"VIRTUAL_ASCEND": "2"}
    asked = look(Request(command=("true",), jemalloc=True), environ)
    assert [str(each).partition(":")[0] for each in asked.refusals] == ["--jemalloc"]
    left_out = look(Request(command=("true",)), environ)
    assert (left_out.refusals, "LD_PRELOAD" in left_out.added) == ([], False)


@pytest.mark.parametrize(("name", "value"), [("GLOO_SOCKET_IFNAME", "eth7"), ("HCCL_IF_IP", "10.0.0.9")])
def test_a_variable_with_another_hosts_interface_or_address_is_refused(name: str, value: str) -> None:
    with pytest.raises(
        LaunchError, match=rf"{name}={value}: expected .* found another value than .*(eth0|10\.0\.0\.2)"
    ):
        variables({name: value}, HERE, "10.0.0.2")
