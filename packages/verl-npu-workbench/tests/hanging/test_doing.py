from __future__ import annotations

import pytest
from verl_npu_workbench.hanging.doing import Kind, doing
from verl_npu_workbench.hanging.stacks import Frame, Thread

SITE = "/venv/lib/python3.11/site-packages/"
MINE = Frame("fit", "/home/me/train.py", 12, "self.step()")


def frame(function: str, file: str, text: str = "") -> Frame:
    return Frame(function, file if file.startswith("/") else SITE + file, 1, text)


STACKS = {
    Kind.COLLECTIVE: frame("all_reduce", "torch/distributed/distributed_c10d.py", "work.wait()"),
    Kind.MEETING: frame("init_process_group", "torch/distributed/distributed_c10d.py"),
    Kind.SYNC: frame("Messages.exchange", "verl_npu/features/weight_sync/transport/messages.py"),
    Kind.RAY: frame("Worker.get_objects", "ray/_private/worker.py"),
    Kind.PROCESS: frame("_MultiProcessingDataLoaderIter._try_get_data", "torch/utils/data/dataloader.py"),
    Kind.LOCK: frame("Condition.wait", "/usr/lib/python3.11/threading.py", "waiter.acquire()"),
    Kind.DEVICE: frame("loss_of", "/home/me/train.py", "return loss.item()"),
    Kind.OUTSIDE: frame("recv_into", "/usr/lib/python3.11/socket.py"),
    Kind.SLEEP: frame("wait", "/home/me/train.py", "time.sleep(5)"),
    Kind.COMPILE: frame("compile_fx", "torch/_inductor/compile_fx.py"),
    Kind.CODE: frame("tokenize", "/home/me/train.py", "ids += more"),
    Kind.ENGINE: frame("SyncMPClient.get_output", "vllm/v1/engine/core_client.py"),
}


@pytest.mark.parametrize("kind", STACKS, ids=[kind.name for kind in STACKS])
def test_each_kind_of_stack_is_recognized(kind: Kind) -> None:
    found = doing([Thread("MainThread", (STACKS[kind], MINE))])
    assert found.kind is kind


def test_the_place_is_the_users_line_that_called_it() -> None:
    found = doing([Thread("MainThread", (STACKS[Kind.COLLECTIVE], MINE))])
    assert (found.call, found.place, found.text) == ("all_reduce", "fit (me/train.py:12)", "self.step()")


def test_a_path_ends_where_the_waiting_begins() -> None:
    below = frame("poll", "/usr/lib/python3.11/selectors.py")
    one, other = (doing([Thread("MainThread", (*more, STACKS[Kind.RAY], MINE))]) for more in ((), (below,)))
    assert one.path == other.path


def test_a_worker_without_a_task_is_idle() -> None:
    loop = frame("Worker.main_loop", "ray/_private/worker.py")
    assert doing([Thread("MainThread", (loop,))]).kind is Kind.IDLE


def test_an_event_loop_without_an_event_is_idle_and_one_with_a_callback_is_not() -> None:
    select = frame("EpollSelector.select", "/usr/lib/python3.11/selectors.py")
    once = frame("BaseEventLoop._run_once", "/usr/lib/python3.11/asyncio/base_events.py")
    handle = frame("Handle._run", "/usr/lib/python3.11/asyncio/events.py")
    assert doing([Thread("MainThread", (select, once))]).kind is Kind.IDLE
    assert doing([Thread("MainThread", (MINE, handle, once))]).kind is Kind.CODE


def test_a_library_s_own_thread_that_runs_no_python_tells_nothing() -> None:
    loop = frame("Worker.main_loop", "ray/_private/worker.py")
    native = frame("Thread.run", "/usr/lib/python3.11/threading.py")
    assert doing([Thread("MainThread", (loop,)), Thread("Thread-3", (native,))]).kind is Kind.IDLE


def test_a_thread_that_waits_for_others_tells_more_than_a_main_thread_without_a_task() -> None:
    loop = frame("Worker.main_loop", "ray/_private/worker.py")
    found = doing([Thread("MainThread", (loop,)), Thread("AsyncIO Thread", (STACKS[Kind.COLLECTIVE], MINE))])
    assert (found.kind, found.thread) == (Kind.COLLECTIVE, "AsyncIO Thread")


def test_the_main_threads_own_code_tells_more_than_what_waits_beside_it() -> None:
    queue = frame("get", "/usr/lib/python3.11/queue.py")
    found = doing([Thread("writer", (queue,)), Thread("MainThread", (STACKS[Kind.CODE], MINE))])
    assert found.kind is Kind.CODE


def test_no_threads_at_all_have_nothing_to_do() -> None:
    assert doing([]).kind is Kind.IDLE
