"""A fault on one rank is an error on every rank, names that rank, and comes in the promised time."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from testing.ranks import Ended, Run

pytestmark = pytest.mark.virtual

NIGHTLY = pytest.mark.nightly("verl_npu/features/weight_sync/transport", "packages/virtual-ascend/virtual_ascend/hccl")
LIMIT = 8
"""The seconds that ranks wait for each other: their VERL_NPU_WEIGHT_SYNC_TIMEOUT."""
PROMISED = LIMIT + 20
"""The seconds after which every rank has its error at the latest, as docs/weight-sync.md says."""

GIVEN = """
given = {f"layer.{i}.weight": torch.full((256, 256), float(i), device=DEVICE) for i in range(16)}
small = Settings(bucket_bytes=1 << 19)

def told(begin, engine, error):
    tell(error=str(error), seconds=time.monotonic() - begin, usable=engine.usable)
    try:
        find("weights").check_usable(); tell(broken=False)
    except WeightSyncError:
        tell(broken=True)
    open(f"{FOLDER}/told{RANK}", "w").close()

def live_on():
    # As a worker of Ray does, which keeps what it serves: here until every rank has its error.
    ends = time.monotonic() + TIMEOUT + 6
    while time.monotonic() < ends and not all(os.path.exists(f"{FOLDER}/told{rank}") for rank in range(SIZE)):
        time.sleep(0.1)
"""

SYNCED = """
begin = time.monotonic()
try:
    sync(group, given, engine, small)
except WeightSyncError as error:
    told(begin, engine, error)
live_on()
"""


def check(ended: list[Ended], named: str) -> None:
    """Check that each of these ranks lives and had, in time, an error that names a rank."""
    for rank in ended:
        assert rank.status == 0, rank.output
        assert named in rank.facts["error"], rank.facts
        assert rank.facts["broken"]
        assert rank.facts["seconds"] < PROMISED


# Faults that a rank reports.

DISAGREEING = (
    GIVEN
    + """
given = {name: tensor[:4] for name, tensor in given.items()}
group, engine = meet(), Engine()
sync(group, given, engine, small)

def other(**changes):
    return {name: tensor for name, tensor in {**given, **changes}.items() if tensor is not None}

at_rank = {
    "shape": other(**{"layer.3.weight": torch.zeros(2, 3, device=DEVICE)}) if RANK else given,
    "dtype": given if RANK else other(**{"layer.3.weight": given["layer.3.weight"].half()}),
    "missing": given if RANK else other(**{"layer.7.weight": None}),
    "extra": given if RANK else other(extra=torch.ones(1, device=DEVICE)),
}
errors = {}
for fault, held in at_rank.items():
    engine.loads = 0
    try:
        sync(group, held, engine, small)
    except WeightSyncError as error:
        errors[fault] = [str(error), engine.loads]
tell(errors=errors)
# The group is as it was: what was refused had not begun.
given = {"layer.0.weight": torch.ones(2, device=DEVICE)}
sync(group, given, engine, small)
tell(after=float(engine.held["layer.0.weight"][0]) if RANK else 1.0)
group.close()
"""
)


def test_a_parameter_that_differs_is_named_on_all_ranks_and_nothing_is_loaded(run_ranks: Run, tmp_path: Path) -> None:
    ended = run_ranks(DISAGREEING, tmp_path)
    assert [rank.status for rank in ended] == [0, 0], ended[0].output + ended[1].output
    named = {"shape": "layer.3.weight", "dtype": "layer.3.weight", "missing": "layer.7.weight", "extra": "extra"}
    for rank in ended:
        for fault, parameter in named.items():
            said, loads = rank.facts["errors"][fault]
            assert f"{parameter}: " in said
            assert loads == 0
        assert rank.facts["after"] == 1.0


UNANNOUNCED = (
    GIVEN
    + """
group, engine = meet(), Engine()
drawn = []
def draw():
    for name, tensor in given.items():
        drawn.append(name)
        yield name, tensor[:1] if name == "layer.9.weight" else tensor
begin = time.monotonic()
try:
    send(group, metadata(given), draw(), small) if RANK == 0 else receive(group, metadata(given), engine)
except WeightSyncError as error:
    told(begin, engine, error)
    tell(loads=engine.loads, drawn=len(drawn))
"""
)
"""Rank 0 draws a parameter that differs from its announcement, while the others wait for it."""


def test_a_parameter_that_is_not_as_announced_ends_the_sync_on_all_ranks(run_ranks: Run, tmp_path: Path) -> None:
    ended = run_ranks(UNANNOUNCED, tmp_path)
    said = "layer.9.weight: expected float32[256, 256] as announced; found layer.9.weight float32[1, 256]"
    assert all(said in rank.facts["error"] for rank in ended), ended
    assert ended[1].facts["loads"] > 0
    assert not ended[1].facts["usable"]
    assert all(rank.facts["seconds"] < 30 for rank in ended), ended  # and not the 60 s that they may wait
    # Other trainers gather their shards together with rank 0, so it draws all parameters.
    assert ended[0].facts["drawn"] == 16


def test_a_rank_that_cannot_begin_says_so_on_all_ranks(run_ranks: Run, tmp_path: Path) -> None:
    program = """
group, engine = meet(), Engine()
given = {"w": torch.ones(2, device=DEVICE)}
try:
    if RANK == 1:
        with preparing(group):
            raise KeyError("no model here")
    sync(group, given, engine)
except (WeightSyncError, KeyError) as error:
    tell(error=str(error))
"""
    for rank in run_ranks(program, tmp_path):
        assert "no model here" in rank.facts["error"]


def test_a_port_in_use_is_named(run_ranks: Run, tmp_path: Path) -> None:
    program = """
import socket
taken = socket.socket()
taken.bind(("0.0.0.0", 0)); taken.listen()
port = taken.getsockname()[1]
try:
    open_meeting("127.0.0.1", port, 5.0)
except WeightSyncError as error:
    tell(error=str(error), port=port)
"""
    (rank,) = run_ranks(program, tmp_path, size=1)
    assert f"messages at 127.0.0.1:{rank.facts['port']}" in rank.facts["error"]


def test_a_group_made_twice_is_refused(run_ranks: Run, tmp_path: Path) -> None:
    program = """
group = meet()
try:
    join("weights", Meeting("127.0.0.1", 1, Secret(b"")), RANK, SIZE, timeout=5, device=DEVICE)
except WeightSyncError as error:
    tell(error=str(error))
group.close()
try:
    find("weights")
except WeightSyncError as error:
    tell(closed=str(error))
"""
    for rank in run_ranks(program, tmp_path):
        assert "has already joined a group with this name" in rank.facts["error"]
        assert "group 'weights': this process has not joined the group" in rank.facts["closed"]


# A rank that dies, hangs or comes late.

KILLED = (
    GIVEN
    + """
group, engine = meet(), Engine()
victim, moment = int(os.environ["VICTIM"]), os.environ["MOMENT"]
sync(group, given, engine, small)
group.messages.exchange("settled", b"")
if RANK == victim:
    # Rank 0 keeps the store: the others must have read the last word of the first sync.
    time.sleep(0.5)
begin = time.monotonic()
def die():
    os.kill(os.getpid(), signal.SIGKILL)
if RANK == victim and moment == "before":
    die()
def draw():
    for number, item in enumerate(given.items()):
        if moment == "during" and number == 10 and RANK == victim:
            die()
        yield item
if moment == "during" and RANK == victim and RANK:
    loads = engine.loads
    true = engine.load
    def load(weights):
        if engine.loads == loads + 3: die()
        true(weights)
    engine.load = load
try:
    if RANK == 0:
        send(group, metadata(given), draw(), small)
    else:
        receive(group, metadata(given), engine)
    if moment == "after":
        if RANK == victim:
            time.sleep(0.5)
            die()
        begin = time.monotonic()
        send(group, metadata(given), draw(), small) if RANK == 0 else receive(group, metadata(given), engine)
except WeightSyncError as error:
    told(begin, engine, error)
"""
)
"""Rank VICTIM is killed before, during or after (MOMENT) the second sync."""


@pytest.mark.parametrize(
    "moment", [pytest.param("before", marks=NIGHTLY), "during", pytest.param("after", marks=NIGHTLY)]
)
@pytest.mark.parametrize("victim", [0, 1], ids=["trainer", "rollout"])
def test_a_rank_that_is_killed_is_named_on_the_others(
    moment: str, victim: int, run_ranks: Run, tmp_path: Path
) -> None:
    ended = run_ranks(KILLED, tmp_path, size=3, VICTIM=str(victim), MOMENT=moment, LIMIT=str(LIMIT))
    assert ended[victim].status == -signal.SIGKILL
    check([rank for number, rank in enumerate(ended) if number != victim], f"rank {victim} (")
    if moment == "during":
        assert not ended[2].facts["usable"]


HUNG = (
    GIVEN
    + """
# 64 MB, which no connection holds: who sends them to a rank that reads nothing has to wait.
given = {name: tensor.repeat(4, 4) for name, tensor in given.items()}
small = Settings(bucket_bytes=1 << 22)
from verl_npu.features.weight_sync.transport import communicator
if os.environ["GROUP"] == "shorter":
    communicator.group_timeout = lambda timeout, hccl: timeout / 2
group, engine = meet(), Engine()
def load(weights, true=engine.load):
    if RANK == 1 and engine.loads == 2: time.sleep(TIMEOUT + 6)
    true(weights)
engine.load = load
"""
    + SYNCED
)
"""The engine of rank 1 hangs in the middle of a sync, for longer than the others wait."""


@NIGHTLY
def test_an_engine_that_hangs_is_an_error_on_every_rank(run_ranks: Run, tmp_path: Path) -> None:
    ended = run_ranks(HUNG, tmp_path, size=3, LIMIT=str(LIMIT), GROUP="ours")
    check(ended, "rank 1 (")
    assert not ended[1].facts["usable"]


@NIGHTLY
def test_a_group_that_waits_no_longer_than_its_ranks_would_lose_the_process(run_ranks: Run, tmp_path: Path) -> None:
    ended = run_ranks(HUNG, tmp_path, size=3, LIMIT="2", GROUP="shorter")
    assert ended[0].status == -signal.SIGABRT, ended[0].output
    assert "entire process down" in ended[0].output


LATE = (
    GIVEN
    + """
group, engine = meet(), Engine()
sync(group, given, engine, small)
if RANK == 1:
    time.sleep(TIMEOUT + 4)
"""
    + SYNCED
)
"""Rank 1 comes to the second sync when the others no longer wait for it."""


@NIGHTLY
def test_a_rank_that_comes_late_to_a_sync_is_an_error_on_every_rank(run_ranks: Run, tmp_path: Path) -> None:
    ended = run_ranks(LATE, tmp_path, size=3, LIMIT=str(LIMIT))
    check([ended[0], ended[2]], "rank 1 (")
    check([ended[1]], "twice, or only after the other ranks had given up")


@NIGHTLY
def test_a_rank_that_comes_late_is_named_and_told(run_ranks: Run, tmp_path: Path) -> None:
    program = """
if RANK == 2:
    TIMEOUT = 3.0
    meeting_there = meeting()
    time.sleep(6)
try:
    if RANK == 2:
        join("weights", meeting_there, RANK, SIZE, timeout=TIMEOUT, device=DEVICE)
    else:
        meet()
except WeightSyncError as error:
    tell(error=str(error))
"""
    ended = run_ranks(program, tmp_path, size=3, LIMIT="2")
    assert all("rank 2 did not answer 'join' within 2 s" in rank.facts["error"] for rank in ended[:2]), ended
    assert "error" in ended[2].facts, ended[2]
    assert "came late" in ended[2].facts["error"] or "given up" in ended[2].facts["error"]
