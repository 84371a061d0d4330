"""Weights of every kind arrive unchanged over a group of real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from testing.ranks import Run

pytestmark = pytest.mark.virtual

TENSORS = """
def tensors(seed=0):
    torch.manual_seed(seed)
    wide = torch.randn(300, 70, device=DEVICE)
    return {
        "float32": wide, "transposed": wide.t(), "every_other": wide[:, ::2], "tied": wide,
        "bfloat16": torch.randn(64, 33, device=DEVICE).to(torch.bfloat16),
        "float16": torch.randn(3, device=DEVICE).half(),
        "float8": torch.randn(16, 16).to(torch.float8_e4m3fn).to(DEVICE),
        "bool": torch.rand(7, 5, device=DEVICE) > 0.5,
        "int8": torch.arange(5, dtype=torch.int8, device=DEVICE),
        "int64": torch.arange(11, device=DEVICE),
        "scalar": torch.tensor(3.5, device=DEVICE),
        "empty": torch.empty(0, 4, device=DEVICE),
        "larger_than_a_bucket": torch.randn(1 << 18, device=DEVICE),
        "most_of_a_bucket": torch.randn(12000, device=DEVICE),
        "not_on_a_word": torch.randn(12001, device=DEVICE)[1:],
        "expert.0": torch.randn(8, 8, device=DEVICE), "expert.1": torch.randn(8, 8, device=DEVICE),
    }
def wrong(engine, given):
    return [name for name, tensor in given.items()
            if engine.held[name].shape != tensor.shape or engine.held[name].dtype != tensor.dtype
            or not torch.equal(bits(engine.held[name]), bits(tensor))]
"""


def test_every_dtype_and_layout_arrives_bit_for_bit_on_all_ranks_sync_after_sync(
    run_ranks: Run, tmp_path: Path
) -> None:
    program = TENSORS + (
        """
group, engine, seen = meet(moves=RANK != 1), Engine(), []
for seed in range(3):
    given = tensors(seed)
    if RANK == 1:
        outcome = follow(group, metadata(given), given.items())
    else:
        outcome = sync(group, given, engine, Settings(bucket_bytes=1 << 16), "same" if seed else None)
    seen.append(wrong(engine, given) if RANK == 2 else [])
group.close()
tell(seen=seen, usable=engine.usable, nbytes=outcome.nbytes, raw=sum(t.nbytes for t in tensors().values()),
     movers=group.movers)
"""
    )
    ended = run_ranks(program, tmp_path, size=3)
    assert [rank.status for rank in ended] == [0, 0, 0], ended[0].output + ended[2].output
    assert all(rank.facts["seen"] == [[], [], []] and rank.facts["usable"] for rank in ended)
    # The trainer that does not send is in no communicator, and tied tensors travel once.
    assert ended[0].facts["movers"] == [0, 2]
    assert ended[0].facts["nbytes"] < ended[0].facts["raw"]


def test_checks_pass_over_ipv6_and_a_second_group_follows_the_first(run_ranks: Run, tmp_path: Path) -> None:
    program = TENSORS + (
        """
import socket
try:
    socket.socket(socket.AF_INET6).bind(("::1", 0)); host = "::1"
except OSError:
    host = "127.0.0.1"
seen = []
for number in range(2):
    FOLDER = os.environ["FOLDER"] + f"/{number}"
    os.makedirs(FOLDER, exist_ok=True)
    group, engine = join("weights", meeting(f"[{host}]"), RANK, SIZE, timeout=TIMEOUT, device=DEVICE), Engine()
    given = tensors(number)
    outcome = sync(group, given, engine, Settings(bucket_bytes=1 << 16, check=Check.ENGINE))
    seen.append([outcome.number, outcome.seen.digest, wrong(engine, given) if RANK else []])
    group.close()
tell(seen=seen)
"""
    )
    ended = run_ranks(program, tmp_path)
    assert [rank.status for rank in ended] == [0, 0], ended[0].output + ended[1].output
    first, second = (rank.facts["seen"] for rank in ended)
    assert first == second
    assert [entry[0] for entry in first] == [1, 1]
    assert [entry[2] for entry in second] == [[], []]


def test_a_damaged_bucket_is_refused_before_it_is_loaded(run_ranks: Run, tmp_path: Path) -> None:
    program = """
group, engine = meet(), Engine()
if RANK == 1:
    # A link that changes a byte: the first broadcast of a sync is the first bucket.
    from verl_npu.features.weight_sync.transport import communicator
    true = communicator.broadcast
    class Damaged:
        def __init__(self, work, tensor): self.work, self.tensor = work, tensor
        def wait(self, limit):
            self.work.wait(limit)
            if self.tensor.dtype == torch.uint8: self.tensor[3] += 1
        def is_completed(self): return self.work.is_completed()
    communicator.broadcast = lambda made, tensor, limit: Damaged(true(made, tensor, limit), tensor)
given = {"w": torch.randn(64, 64, device=DEVICE)}
try:
    sync(group, given, engine, Settings(check=Check.CHECKSUMS))
except WeightSyncError as error:
    tell(error=str(error), loads=engine.loads)
"""
    for rank in run_ranks(program, tmp_path):
        assert "bucket 0 (w to w) with a different checksum" in rank.facts["error"], rank
        assert rank.facts["loads"] == 0
