"""How many NPUs a host gives, its variables and limits, and whether a restart goes on where the job was."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from verl_npu_workbench.launch.network import Interface
from verl_npu_workbench.launch.preparation import (
    check_interfaces,
    check_restarts,
    count_npus,
    host_variables,
    raise_limits,
)

from tests.doctor.smi import a2
from verl_npu.errors import LaunchError


def test_virtual_npus_are_counted() -> None:
    assert count_npus({"VIRTUAL_ASCEND": "4"}, None) == 4
    assert count_npus({"VIRTUAL_ASCEND": "4", "ASCEND_RT_VISIBLE_DEVICES": "1,3"}, 2) == 2


def test_another_number_than_the_expected_one_is_refused() -> None:
    with pytest.raises(LaunchError, match="expected 8, found 4 virtual; say --npus 4"):
        count_npus({"VIRTUAL_ASCEND": "4"}, 8)


def test_a_host_without_npus_is_refused() -> None:
    with pytest.raises(LaunchError, match="no command npu-smi"):
        count_npus({"PATH": ""}, None)


def test_npu_smi_is_asked(tmp_path: Path) -> None:
    command = tmp_path / "npu-smi"
    command.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{a2()}\nEND\n")
    command.chmod(0o755)
    assert count_npus({"PATH": str(tmp_path)}, None) == 8


ETHERNET = Interface("eth0", "10.0.0.2")


def test_what_the_documents_ask_for_is_set() -> None:
    added = host_variables({}, ETHERNET, alone=False)
    assert added == {
        "HCCL_CONNECT_TIMEOUT": "3600",
        "HCCL_EXEC_TIMEOUT": "3600",
        "TASK_QUEUE_ENABLE": "1",
        "RAY_DEDUP_LOGS": "0",
        "HYDRA_FULL_ERROR": "1",
        "VLLM_ASCEND_ENABLE_NZ": "0",
        "HCCL_SOCKET_IFNAME": "=eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "HCCL_IF_IP": "10.0.0.2",
    }


def test_what_the_user_set_stays() -> None:
    mine = {"HCCL_EXEC_TIMEOUT": "60", "GLOO_SOCKET_IFNAME": "ib0", "TASK_QUEUE_ENABLE": "2"}
    assert not {*mine} & {*host_variables(mine, ETHERNET, alone=False)}


def test_an_address_does_not_overrule_the_users_interface() -> None:
    assert "HCCL_IF_IP" not in host_variables({"HCCL_SOCKET_IFNAME": "ib0"}, ETHERNET, alone=False)


def test_a_host_that_is_alone_is_given_no_interface() -> None:
    assert not [
        name for name in host_variables({}, ETHERNET, alone=True) if "IF" in name.split("_")[1:] or "SOCKET" in name
    ]


@pytest.mark.parametrize("name", ["GLOO_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"])
def test_an_interface_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(LaunchError, match=rf"{name}=eth7.*no such interface"):
        check_interfaces({name: "eth7"}, (ETHERNET,))


def test_an_address_of_another_host_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"HCCL_IF_IP=10.0.0.9.*here are 10.0.0.2"):
        check_interfaces({"HCCL_IF_IP": "10.0.0.9"}, (ETHERNET,))


def test_what_is_there_is_not_refused() -> None:
    check_interfaces({"GLOO_SOCKET_IFNAME": "lo", "HCCL_IF_IP": "10.0.0.2"}, (ETHERNET,))


def test_soft_limits_are_raised_to_the_hard_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {resource.RLIMIT_NOFILE: (100, 900), resource.RLIMIT_NPROC: (50, resource.RLIM_INFINITY)}
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    raise_limits()
    assert limits == {
        resource.RLIMIT_NOFILE: (900, 900),
        resource.RLIMIT_NPROC: (resource.RLIM_INFINITY, resource.RLIM_INFINITY),
    }


PPO = ("python", "-m", "verl.trainer.main_ppo")


def test_a_job_that_would_begin_anew_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"trainer\.resume_mode=disable"):
        [*check_restarts([*PPO, "trainer.resume_mode=disable"])]


@pytest.mark.parametrize("saves", [(), ("trainer.save_freq=-1",), ("+trainer.save_freq=0",)])
def test_a_job_that_saves_nothing_is_warned_of(saves: tuple[str, ...]) -> None:
    assert "save_freq" in "".join(check_restarts([*PPO, *saves]))


def test_a_job_that_goes_on_from_one_checkpoint_is_warned_of() -> None:
    assert "resume_path" in "".join(check_restarts([*PPO, "trainer.resume_mode=resume_path", "trainer.save_freq=5"]))


@pytest.mark.parametrize(
    "command", [("bash", "run.sh"), (*PPO, "trainer.save_freq=5"), (*PPO, "trainer.save_freq=${every}")]
)
def test_nothing_is_said_of_what_goes_on_or_cannot_be_seen(command: tuple[str, ...]) -> None:
    assert [*check_restarts(command)] == []
