"""Names that vllm-ascend and MindSpeed look up beside operators: options of groups, acl, torchair's names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from virtual_ascend.testing.fixtures import Run

pytest.importorskip("torch")

PROGRAM = """
import ctypes, json, torch, torch_npu, acl, torchair.scope
import torch.distributed as dist
from acl.rt import memcpy
from torch_npu._C._distributed_c10d import ProcessGroupHCCL
from torch_npu.profiler import dynamic_profile

def error(call):
    try: call()
    except Exception as found: return f"{type(found).__name__}: {found}"

options = ProcessGroupHCCL.Options()
config = options.hccl_config
config["hccl_buffer_size"] = 200
said = {"untouched": options.hccl_config}
options.hccl_config = config
said["config"] = options.hccl_config
said["asked of the class"] = hasattr(ProcessGroupHCCL.Options, "hccl_config")
said["no number"] = error(lambda: setattr(options, "hccl_config", {"size": 1.5}))
said["arguments"] = error(lambda: ProcessGroupHCCL.Options(True))

dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=1)
group = dist.new_group([0], pg_options=options)
backends = [each._get_backend(torch.device("npu")) for each in (dist.group.WORLD, group)]
said["names"] = [backend.get_hccl_comm_name(0) for backend in backends]
said["rank"] = error(lambda: backends[0].get_hccl_comm_name(-1))

npu, host = torch.arange(4.0, device="npu"), torch.zeros(4)
said["copied"] = [memcpy(host.data_ptr(), 16, npu.data_ptr(), 16, 2), host.tolist()]
said["no room"] = memcpy(host.data_ptr(), 8, npu.data_ptr(), 16, 2)
said["nowhere"] = memcpy(0, 16, npu.data_ptr(), 16, 2)
said["counted"] = acl.rt.get_device_count()
said["graphs"] = [error(call) for call in (
    torchair.patch_for_hcom, torchair.scope.super_kernel, torchair.CompilerConfig, dynamic_profile.step)]
print(json.dumps(said))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def said(python: Run) -> dict[str, Any]:
    done = python(PROGRAM)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_groups_options_are_filled_and_taken(said) -> None:
    assert (said["untouched"], said["config"]) == ({}, {"hccl_buffer_size": 200})
    assert said["asked of the class"] is True
    assert said["no number"].startswith("TypeError: hccl_config: expected a mapping from names to numbers or strings")
    assert said["arguments"].startswith("TypeError")


def test_each_group_has_a_name_of_its_own(said) -> None:
    assert len(set(said["names"])) == 2
    assert all(name.startswith("virtual_hccl_") for name in said["names"])
    assert "Invalid rank -1" in said["rank"]


def test_acl_copies_between_an_npu_and_the_host_as_far_as_there_is_room(said) -> None:
    assert said["copied"] == [0, [0, 1, 2, 3]]
    assert (said["no room"], said["nowhere"]) == (100000, 100000)
    assert said["counted"][1] == 0


def test_names_of_graphs_and_profiles_are_there_and_raise(said) -> None:
    assert all(error.startswith("NotImplementedError: ") for error in said["graphs"])
