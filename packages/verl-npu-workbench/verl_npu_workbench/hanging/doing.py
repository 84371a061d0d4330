"""Determines what a process is doing from the functions on its stack.

A single stack only shows where a process is. `verdict` compares several stacks of a process to determine whether the
process is waiting.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from verl_npu.language import gettext as _

from .stacks import MAIN, Frame, Thread


class Kind(enum.Enum):
    """The kind of activity of a process."""

    COLLECTIVE = _("is in a collective")
    MEETING = _("waits for the other ranks")
    SYNC = _("is in the weight sync")
    ENGINE = _("waits for the rollout engine")
    RAY = _("waits in Ray for other processes")
    PROCESS = _("waits for another process")
    LOCK = _("waits for a lock")
    DEVICE = _("waits for its NPU")
    OUTSIDE = _("waits for a network, a file, or another program")
    SLEEP = _("sleeps")
    QUEUE = _("waits for something to do")
    COMPILE = _("compiles")
    CODE = _("is in its own code")
    IDLE = _("has nothing to do")
    UNSEEN = _("cannot be inspected")


FOR_OTHERS = frozenset({Kind.COLLECTIVE, Kind.MEETING, Kind.SYNC, Kind.ENGINE, Kind.RAY, Kind.PROCESS})
"""The activities of a process that waits for another process of the job."""


@dataclass(frozen=True, slots=True)
class Doing:
    """The current activity of one process, and the evidence for it."""

    kind: Kind
    call: str = ""
    """The function that shows the activity, such as `all_reduce` or `ray.get`."""
    place: str = ""
    """The line in the user's, verl's, or an engine's code that called the function."""
    text: str = ""
    """The source code of that line."""
    path: tuple[str, ...] = ()
    """The functions on the stack from the outermost one to `call`, each with its line."""
    thread: str = ""


@dataclass(frozen=True, slots=True)
class _Sign:
    """A function whose presence on a stack reveals the activity of a process."""

    kind: Kind
    file: str
    function: str
    """Patterns for the file, and for the whole name of the function."""
    call: str = ""
    """The name to print for the function. Empty to print its own name."""


_SIGNS = (
    _Sign(
        Kind.MEETING,
        r"torch/distributed/(?:distributed_c10d|rendezvous|device_mesh)\.py$",
        r"init_process_group|new_group|_new_group_with_tag|_store_based_barrier|_create_c10d_store"
        r"|_tcp_rendezvous_handler|init_device_mesh",
    ),
    _Sign(Kind.SYNC, r"verl_npu/features/weight_sync/transport/messages\.py$", r"exchange", "agreement of the ranks"),
    _Sign(Kind.SYNC, r"verl_npu/features/weight_sync/transport/messages\.py$", r"enter", "meeting of the ranks"),
    _Sign(
        Kind.SYNC,
        r"verl_npu/features/weight_sync/transport/(?:communicator|group)\.py$",
        r"finish|wait_for_device|broadcast|prove",
        "transfer of weights",
    ),
    _Sign(
        Kind.COLLECTIVE,
        r"torch/distributed/(?:distributed_c10d|_functional_collectives|_functional_collectives_impl)\.py$",
        r"(?:all_reduce|all_gather|all_to_all|broadcast|gather|scatter|reduce|send|recv)\w{0,60}|_all_gather_base"
        r"|_reduce_scatter_base|barrier|monitored_barrier|irecv|isend|batch_isend_irecv|wait_tensor",
    ),
    _Sign(
        Kind.ENGINE,
        r"/vllm/.{0,100}(?:core_client|async_llm|llm_engine|multiprocessing/client)\.py$",
        r"_?get_output\w{0,60}|call_utility|generate|step",
    ),
    _Sign(Kind.RAY, r"ray/_private/worker\.py$", r"get|get_objects|wait", "ray.get"),
    _Sign(Kind.RAY, r"ray/util/placement_group\.py$", r"wait|ready", "a placement group"),
    _Sign(Kind.PROCESS, r"torch/utils/data/dataloader\.py$", r"_try_get_data|_get_data|_next_data", "the data loader"),
    _Sign(
        Kind.PROCESS, r"(?:multiprocessing|concurrent/futures)/\w{1,40}\.py$", r"join|get|result|wait|recv|poll|_poll"
    ),
    _Sign(
        Kind.LOCK,
        r"(?:threading|multiprocessing/synchronize|filelock/\w{1,40}|portalocker/\w{1,40})\.py$",
        r"acquire|__enter__|wait",
    ),
    _Sign(Kind.DEVICE, r"/(?:torch/npu|torch_npu)/.{0,100}\.py$", r"synchronize|wait|empty_cache"),
    _Sign(Kind.COMPILE, r"torch/(?:_inductor|_dynamo|utils/cpp_extension)", r"\w{1,99}", "a compiler"),
    _Sign(Kind.OUTSIDE, r"/subprocess\.py$", r"wait|communicate|_communicate|_wait|run|check_output", "a program"),
    _Sign(
        Kind.OUTSIDE,
        r"/(?:socket|ssl|http/client|(?:urllib3|requests|httpx|httpcore|fsspec)/.{1,80})\.py$",
        r".{1,200}",
        "a network",
    ),
)
"""The functions that reveal an activity, the most telling ones first. If several are on one stack, the first row that
matches counts."""
_IDLE = (
    (0, r"ray/_private/worker\.py$", "main_loop"),
    (0, r"concurrent/futures/thread\.py$", "_worker"),
    (1, r"asyncio/base_events\.py$", "_run_once"),
    # A library's own thread that runs no Python: Ray's clients have several.
    (0, r"/threading\.py$", "run"),
    (4, r"multiprocessing/resource_sharer\.py$", "_serve"),
)
"""The functions of an idle thread. The number is the maximum number of calls on the stack above the function."""
_WORKER_LOOP, _QUEUES = r"torch/utils/data/_utils/worker\.py$", r"(?:queues|queue)\.py$"
_LINES = (
    (Kind.SLEEP, r"\bsleep\(|signal\.pause\("),
    (Kind.LOCK, r"\bacquire\(|\bwith \S{0,80}[Ll]ock\b|[Ll]ock\("),
    (Kind.DEVICE, r"\.(?:item|tolist|cpu|numpy)\(|\bsynchronize\("),
    (Kind.OUTSIDE, r"\bopen\(|\.(?:read|write|recv\w*|accept|connect)\(|os\.(?:stat|listdir|scandir)\("),
    (Kind.PROCESS, r"\.join\(\)|\.recv\(\)"),
)
"""Patterns for source lines that call C code, because a C function has no Python frame."""
_LIBRARY = re.compile(
    r"/(?:torch|torch_npu|ray|transformers|accelerate|tensordict|numpy|concurrent|multiprocessing|asyncio)/|"
    r"/lib/python3\.\d+/(?!site-packages)|^<|verl/single_controller/"
)
_OWN_THREADS = re.compile(
    r"ray_print_logs|ray_listen_error|raylet|Ray|grpc|_tunnel|QueueFeederThread|pin_memory|tqdm|Dummy"
)


def doing(threads: Sequence[Thread]) -> Doing:
    """Return the activity of a process, based on its most informative thread."""
    found = [each for each in (_doing_of_thread(thread) for thread in threads) if each is not None]
    if not found:
        return Doing(Kind.IDLE)
    return min(found, key=lambda each: (_weight(each), each.thread != MAIN))


def _weight(each: Doing) -> int:
    if each.kind is Kind.IDLE:
        return 3
    # The main thread of a driver or a rank runs the steps, so other threads that only wait count less.
    waits_aside = each.kind in (Kind.QUEUE, Kind.LOCK, Kind.SLEEP, Kind.CODE, Kind.OUTSIDE)
    return 1 if waits_aside and each.thread != MAIN else 0


def _doing_of_thread(thread: Thread) -> Doing | None:
    frames = thread.frames
    if any(_name(each) == "_bootstrap" for each in frames) and _OWN_THREADS.search(thread.name):
        return None
    if _is_idle(frames):
        return Doing(Kind.IDLE, thread=thread.name) if thread.name == MAIN else None
    for sign in _SIGNS:
        for depth, frame in enumerate(frames):
            if re.search(sign.file, frame.file) and re.fullmatch(sign.function, _name(frame)):
                call = sign.call or _name(frame)
                return _made(sign.kind, call, frames, depth, thread.name)
    return _doing_by_line(frames, thread.name)


def _doing_by_line(frames: Sequence[Frame], thread: str) -> Doing:
    innermost = frames[0]
    for kind, pattern in _LINES:
        found = re.search(pattern, innermost.text)
        if found:
            return _made(kind, found[0].strip(" .("), frames, 0, thread)
    if any(re.search(_WORKER_LOOP, frame.file) for frame in frames[:2]) or re.search(_QUEUES, innermost.file):
        return _made(Kind.QUEUE, innermost.function, frames, 0, thread)
    return _made(Kind.CODE, innermost.function, frames, 0, thread)


def _name(frame: Frame) -> str:
    """Return the function's name without its class. py-spy adds the class for some versions of Python."""
    return frame.function.rpartition(".")[2]


def _is_idle(frames: Sequence[Frame]) -> bool:
    return any(
        re.search(file, frame.file) and _name(frame) == function
        for deep, file, function in _IDLE
        for frame in frames[: deep + 1]
    )


def _made(kind: Kind, call: str, frames: Sequence[Frame], depth: int, thread: str) -> Doing:
    caller = next((frame for frame in frames[depth:] if not _LIBRARY.search(frame.file)), frames[depth])
    path = tuple(f"{frame.function} {frame.file}:{frame.line}" for frame in reversed(frames[depth:]))
    return Doing(kind, call, place(caller), caller.text, path, thread)


def place(frame: Frame) -> str:
    """Format a code location as function, file, and line."""
    return f"{frame.function} ({short(frame.file)}:{frame.line})"


def short(file: str) -> str:
    """Shorten a source file's path to the part below site-packages or, for a file outside site-packages, to the last
    two components."""
    _, found, name = file.rpartition("/site-packages/")
    return name if found else "/".join(file.split("/")[-2:])


def own_frames(threads: Iterable[Thread], name: str, most: int) -> list[Frame]:
    """Return the innermost frames of a thread, without frames of libraries."""
    found = next((thread.frames for thread in threads if thread.name == name), ())
    return [frame for frame in found if not _LIBRARY.search(frame.file)][:most]
