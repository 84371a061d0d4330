"""Ranks that die, hang, or come late, as programs for `ranks.py`; a rank that raised an error tells it, and when."""

from __future__ import annotations

__all__ = ["HUNG", "KILLED", "LATE", "LIMIT", "PROMISED", "UNANNOUNCED"]

LIMIT = 8
"""Seconds that the ranks wait for each other: their VERL_NPU_WEIGHT_SYNC_TIMEOUT."""
PROMISED = LIMIT + 20
"""Seconds after which every rank has its error at the latest, as docs/weight-sync.md says."""

_GIVEN = """
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

_SYNCED = """
begin = time.monotonic()
try:
    sync(group, given, engine, small)
except WeightSyncError as error:
    told(begin, engine, error)
live_on()
"""

KILLED = (
    _GIVEN
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

HUNG = (
    _GIVEN
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
    + _SYNCED
)
"""The engine of rank 1 hangs in the middle of a sync, for longer than the others wait."""

LATE = (
    _GIVEN
    + """
group, engine = meet(), Engine()
sync(group, given, engine, small)
if RANK == 1:
    time.sleep(TIMEOUT + 4)
"""
    + _SYNCED
)
"""Rank 1 comes to the second sync when the others wait for it no more."""

UNANNOUNCED = (
    _GIVEN
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
"""Rank 0 draws a parameter that is not as it was announced, while the others wait for it."""
