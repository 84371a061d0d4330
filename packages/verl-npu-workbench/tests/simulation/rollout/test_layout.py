from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from testing.ranks import Ranks

pytestmark = [pytest.mark.virtual, pytest.mark.upstream]


@pytest.mark.parametrize(
    ("sizes", "rank", "expected"),
    [
        ({}, 3, (3, 0, 1)),
        ({"tensor_model_parallel_size": 2}, 3, (1, 1, 2)),
        ({"tensor_model_parallel_size": 2, "data_parallel_size": 2, "pipeline_model_parallel_size": 2}, 9, (1, 1, 8)),
    ],
)
def test_the_ranks_of_a_replica_are_next_to_each_other(
    sizes: dict[str, int], rank: int, expected: tuple[int, int, int]
) -> None:
    from verl_npu_workbench.simulation.rollout.layout import place

    found = place(sizes, rank)
    assert (found.replica, found.rank, found.size) == expected
    assert found.leads == (expected[1] == 0)


SHARE = """
from torch.distributed.device_mesh import init_device_mesh
from verl_npu_workbench.simulation.rollout.layout import share
torch.distributed.init_process_group("hccl", init_method=f"file://{FOLDER}/meet", rank=RANK, world_size=SIZE)
mesh = init_device_mesh("npu", (2, 2, 2), mesh_dim_names=("dp", "infer_tp", "infer_pp"))
tell(has=share(torch.full((2,), RANK, device=DEVICE), mesh).tolist())
"""


def test_all_ranks_of_a_replica_have_what_its_first_has(tmp_path: Path) -> None:
    with closing(Ranks()) as server:
        ended = server.run(SHARE, tmp_path, size=8)
    assert [rank.facts.get("has") for rank in ended] == [[0, 0]] * 4 + [[4, 4]] * 4, ended[0].output
