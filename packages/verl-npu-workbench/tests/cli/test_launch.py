from __future__ import annotations

import socket

import pytest
from verl_npu_workbench.launch.network import here
from virtual_ascend.testing import free_port

from .conftest import Run


@pytest.fixture(autouse=True)
def virtual_npus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ASCEND", "2")
    for name in ("GLOO_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME", "HCCL_IF_IP"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def own() -> str:
    """Return an address at which other hosts would find this host."""
    outside = [address for address in here().values() if not address.startswith("127.")]
    if not outside:
        pytest.skip("this host has no network")
    return outside[0]


def test_the_head_is_planned(run: Run, own: str) -> None:
    status, said = run(
        "launch",
        "--dry-run",
        "--nodes=4",
        f"--head={own}",
        "--ray=--temp-dir=/my tmp",
        "--ray=--num-cpus=64",
        "--",
        "run.sh",
        columns=250,
    )
    assert status == 0
    assert f"{socket.gethostname()}: the head; 4 nodes" in said
    assert f"start --head --port=6766 --node-ip-address={own} '--resources={{\"NPU\": 2}}'" in said
    assert "'--temp-dir=/my tmp' --num-cpus=64" in said
    assert f"HCCL_IF_IP={own}" in said


def test_one_node_is_no_nodes(run: Run) -> None:
    status, said = run("launch", "--dry-run", "--", "true", columns=250)
    assert status == 0
    assert said.startswith(f"{socket.gethostname()}: the head; 1 node\n")


def test_another_node_is_planned_on_a_login_node(run: Run, own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIRTUAL_ASCEND")
    monkeypatch.setenv("PATH", "")
    hosts = f"198.51.100.7,{own}"
    status, said = run("launch", "--dry-run", "--hosts", hosts, "--port=7000", "--", "true", columns=250)
    assert status == 0
    assert "a node of the head 198.51.100.7; 2 nodes" in said
    assert "start --address=198.51.100.7:7000" in said
    assert "could not be started on this machine: NPUs of this host: expected at least one" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Missing argument 'COMMAND...'"),
        (("--nodes", "2", "--", "true"), "add --head HOST"),
        (("--nodes", "2", "--head", "nobody.invalid", "--", "true"), "nobody.invalid: expected the name"),
        (
            ("--nodes", "2", "--head", "255.255.255.255", "--", "true"),
            "255.255.255.255: expected a route to this host",
        ),
        (("--npus", "8", "--", "true"), "NPUs of this host: expected 8; found VIRTUAL_ASCEND=2"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(run: Run, arguments: tuple[str, ...], said: str) -> None:
    status, output = run("launch", *arguments, columns=250)
    assert status == 2
    assert said in output


def test_a_port_that_is_taken_is_refused(run: Run) -> None:
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        status, output = run("launch", "--no-doctor", "--port", str(port - 1), "--", "true", columns=250)
    assert (status, output.count("\n")) == (2, 1)
    assert output.startswith(f"verl-npu: port {port}: expected a free port; found Address already in use")


@pytest.mark.parametrize("verdict", ["error", "warning"])
def test_an_error_of_the_doctor_refuses(run: Run, own: str, monkeypatch: pytest.MonkeyPatch, verdict: str) -> None:
    answer = f'[{{"name": "cann", "verdict": "{verdict}", "found": "none", "needed": "8.2", "fix": "install it"}}]'
    monkeypatch.setattr("verl_npu_workbench.launch.launching.own_python", lambda *words: ["echo", answer])
    port = f"--port={free_port() - 1}"
    status, output = run("launch", "--nodes=2", f"--head={own}", "--wait=1", port, "--", "true", columns=250)
    assert status == 2
    assert ("cann: none (needed: 8.2; install it)" in output) == (verdict == "error")
    assert ("1 of 2 nodes are there" in output) == (verdict == "warning")


@pytest.mark.parametrize("answer", ["ImportError: libhccl.so", "[1]"])
def test_a_doctor_that_answers_otherwise_is_one_error(run: Run, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr("verl_npu_workbench.launch.launching.own_python", lambda *words: ["echo", answer])
    status, output = run("launch", "--", "true", columns=250)
    assert status == 2
    assert "the head: expected a host that can take part; found verl-npu doctor gave no result" in output
    assert answer in output
    assert output.count("\n") == 1
