"""Two processes that split different batches, over gloo, agree on a number, or both raise an error."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl")

from virtual_ascend.testing import free_port

from .upstream import REVISIONS, padded, patched, tokens

pytestmark = pytest.mark.upstream

BUDGET = 100
FEW, MANY, TOO_LONG = [10] * 8, [60] * 6 + [10] * 2, [BUDGET + 1, *[10] * 7]

CASES: dict[str, tuple[list[list[int]], dict[str, object]]] = {
    "agree": ([FEW, MANY], {}),
    "agree in a group": ([FEW, MANY], {"dp_group": "world"}),
    "agree with a divisor": ([FEW, MANY], {"num_batches_divided_by": 4}),
    "need not agree": ([FEW, MANY], {"same_micro_num_in_dp": False}),
    "groups of one": ([FEW, MANY], {"dp_group": "alone"}),
    "one is too long": ([FEW, TOO_LONG], {}),
    "one is too long in a group": ([TOO_LONG, MANY], {"dp_group": "world"}),
    "too few sequences": ([[60] * 6, [10] * 6], {"num_batches_divided_by": 4}),
    "agree again": ([MANY, FEW], {}),
}
"""The lengths of each rank's sequences, and the arguments of rearrange_micro_batches."""


def worker(rank: int, port: int, folder: str) -> None:
    """Run all cases at all revisions, and write the outcome of each: numbers of micro-batches, or an error."""
    import os
    from datetime import timedelta

    from torch import distributed

    from verl_npu.errors import JobSettingError

    os.environ["VERL_NPU_TOKEN_BUDGET"] = "1"
    distributed.init_process_group(
        "gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2, timeout=timedelta(seconds=20)
    )
    groups = {"world": distributed.group.WORLD}
    for each in range(2):
        made = distributed.new_group([each])
        if each == rank:
            groups["alone"] = made
    found: dict[str, dict[str, object]] = {}
    for revision in REVISIONS:
        module: Any = patched(revision)
        found[revision] = {}
        for case, (lengths, asked) in CASES.items():
            arguments = {**asked, "dp_group": groups.get(str(asked.get("dp_group")))}
            try:
                split, _ = module.rearrange_micro_batches(padded(lengths[rank]), max_token_len=BUDGET, **arguments)
                found[revision][case] = [len(split), max(map(tokens, split)) <= BUDGET]
            except JobSettingError as error:
                found[revision][case] = str(error)
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    """Return what each rank found at each revision in each case."""
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing = pytest.importorskip("torch.multiprocessing")
    with pytest.MonkeyPatch.context() as patch:
        # An earlier test may have put virtual NPUs on the path of this process; the ranks would find their torch_npu.
        patch.setattr(sys, "path", [path for path in sys.path if "virtual_ascend/site" not in path])
        multiprocessing.spawn(worker, (free_port(), str(folder)), nprocs=2)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(params=REVISIONS)
def found(request: pytest.FixtureRequest, ranks: list[dict[str, dict[str, Any]]]) -> dict[str, list[Any]]:
    """Return what the two ranks found at one revision, by case."""
    return {case: [rank[request.param][case] for rank in ranks] for case in CASES}


@pytest.mark.parametrize(
    ("case", "numbers"),
    [
        ("agree", [6, 6]),
        ("agree in a group", [6, 6]),
        ("agree with a divisor", [8, 8]),
        ("need not agree", [1, 6]),
        ("groups of one", [1, 6]),
    ],
)
def test_the_ranks_of_a_group_make_the_same_number_of_micro_batches(
    found: dict[str, list[Any]], case: str, numbers: list[int]
) -> None:
    assert found[case] == [[number, True] for number in numbers]


def test_a_sequence_that_is_too_long_is_an_error_on_both_ranks(found: dict[str, list[Any]]) -> None:
    other, own = found["one is too long"]
    assert "found a sequence of 101 tokens on another rank" in other
    assert "found a sequence of 101 tokens, padding included" in own
    own, other = found["one is too long in a group"]
    assert "padding included" in own
    assert "on another rank" in other


def test_a_number_that_neither_rank_can_fill_is_an_error_on_both(found: dict[str, list[Any]]) -> None:
    assert all("found 8 micro-batches (the maximum" in str(each) for each in found["too few sequences"])


def test_after_errors_the_ranks_still_agree(found: dict[str, list[Any]]) -> None:
    assert found["agree again"] == [[6, True], [6, True]]
