"""The variables and limits that a host is given."""

from __future__ import annotations

import subprocess
import sys

import pytest

from verl_npu.errors import LaunchError
from verl_npu.launch.interface import Interface
from verl_npu.launch.settings import check_interfaces, variables

ETHERNET = Interface("eth0", "10.0.0.2")


def test_what_the_documents_ask_for_is_set() -> None:
    added = variables({}, ETHERNET, alone=False)
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
    assert not {*mine} & {*variables(mine, ETHERNET, alone=False)}


def test_an_address_does_not_overrule_the_users_interface() -> None:
    assert "HCCL_IF_IP" not in variables({"HCCL_SOCKET_IFNAME": "ib0"}, ETHERNET, alone=False)


def test_a_host_that_is_alone_is_given_no_interface() -> None:
    assert not [
        name for name in variables({}, ETHERNET, alone=True) if "IF" in name.split("_")[1:] or "SOCKET" in name
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


def test_soft_limits_are_raised_to_the_hard_ones() -> None:
    program = (
        "import resource as r; from verl_npu.launch.settings import raise_limits; "
        "r.setrlimit(r.RLIMIT_NOFILE, (100, 900)); raise_limits(); print(r.getrlimit(r.RLIMIT_NOFILE)[0])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "900"
