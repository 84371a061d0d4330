"""What goes wrong on one rank ends on every rank, in time, with an error that names the rank or the parameter."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..ranks import Run

pytestmark = pytest.mark.virtual

GIVEN = """
given = {f"layer.{i}.weight": torch.full((256, 256), float(i), device=DEVICE) for i in range(16)}
small = Settings(bucket_bytes=1 << 19)
"""


def disagreeing(change: str) -> str:
    return (
        GIVEN
        + f"""
group, engine = meet(), Engine()
sync(group, given, engine, small)
if RANK == 1:
    engine.loads = 0
{change}
try:
    sync(group, given, engine, small)
except WeightSyncError as error:
    tell(error=str(error), loads=engine.loads, usable=engine.usable)
given = {{"layer.0.weight": torch.ones(2, device=DEVICE)}}
sync(group, given, engine, small)
tell(after=float(engine.held["layer.0.weight"][0]) if RANK else 1.0)
group.close()
"""
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("if RANK: given['layer.3.weight'] = torch.zeros(2, 3, device=DEVICE)", "layer.3.weight: rank 0"),
        ("if not RANK: given['layer.3.weight'] = given['layer.3.weight'].half()", "layer.3.weight: rank 0"),
        ("if not RANK: del given['layer.7.weight']", "layer.7.weight: rank 1"),
        ("if not RANK: given['extra'] = torch.ones(1, device=DEVICE)", "extra: rank 0"),
    ],
    ids=["shape", "dtype", "missing", "extra"],
)
def test_a_parameter_that_differs_is_named_on_all_ranks_and_nothing_is_loaded(
    change: str, named: str, run_ranks: Run, tmp_path: Path
) -> None:
    ended = run_ranks(disagreeing(change), tmp_path)
    assert [rank.status for rank in ended] == [0, 0], ended[0].output + ended[1].output
    assert all(named in rank.facts["error"] for rank in ended), [rank.facts for rank in ended]
    assert ended[1].facts["loads"] == 0
    # The group is as it was: what was refused had not begun.
    assert all(rank.facts["after"] == 1.0 for rank in ended)


def test_a_parameter_that_is_not_as_announced_ends_the_sync_on_all_ranks(run_ranks: Run, tmp_path: Path) -> None:
    program = (
        GIVEN
        + """
group, engine = meet(), Engine()
drawn = []
def draw():
    for name, tensor in given.items():
        drawn.append(name)
        yield name, tensor[:1] if name == "layer.9.weight" else tensor
try:
    send(group, metadata(given), draw(), small) if RANK == 0 else receive(group, metadata(given), engine)
except WeightSyncError as error:
    tell(error=str(error), usable=engine.usable, loads=engine.loads, drawn=len(drawn))
"""
    )
    ended = run_ranks(program, tmp_path)
    said = "layer.9.weight: expected float32[256, 256] as announced, found layer.9.weight float32[1, 256]"
    assert all(said in rank.facts["error"] for rank in ended), ended
    assert ended[1].facts["loads"] > 0
    assert not ended[1].facts["usable"]
    # Other trainers gather their shards together with this one: it draws on to the end.
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
        send(group, metadata(given), draw(), small) if RANK == 0 else receive(group, metadata(given), engine)
except WeightSyncError as error:
    tell(error=str(error), seconds=time.monotonic() - begin, usable=engine.usable, loads=engine.loads)
    try:
        find("weights").check_usable(); tell(broken=False)
    except WeightSyncError:
        tell(broken=True)
"""
)


@pytest.mark.parametrize("moment", ["before", "during", "after"])
@pytest.mark.parametrize("victim", [0, 1], ids=["trainer", "rollout"])
def test_a_rank_that_is_killed_is_named_on_the_others(
    moment: str, victim: int, run_ranks: Run, tmp_path: Path
) -> None:
    limit = 5
    ended = run_ranks(KILLED, tmp_path, size=3, VICTIM=str(victim), MOMENT=moment, LIMIT=str(limit))
    assert ended[victim].status == -9
    for rank, result in enumerate(ended):
        if rank == victim:
            continue
        assert result.status == 0, result.output
        assert f"rank {victim} (" in result.facts["error"], result.facts
        assert result.facts["broken"]
        assert result.facts["seconds"] < 60
        if moment == "during" and rank != 0:
            assert not result.facts["usable"]


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
    assert f"127.0.0.1:{rank.facts['port']} cannot be served" in rank.facts["error"]


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
        assert "is in a group 'weights' already" in rank.facts["error"]
        assert "group 'weights': expected a group that this process has joined, found none" in rank.facts["closed"]
