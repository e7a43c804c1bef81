"""What all tests share: a watchdog, a hub, and workers as processes."""

import faulthandler
import multiprocessing
import traceback

import pytest

import phub

# A hang, not slowness: the longest test takes some seconds.
WATCHDOG_S = 120


@pytest.fixture(autouse=True)
def watchdog():
    """A test that hangs says where, and ends the run."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def hub():
    with phub.serve(cores=1, idle="sleep", heartbeat_limit=30) as hub:
        yield hub


def _call(queue, rank, work, arguments):
    try:
        queue.put((rank, work(rank, *arguments), None))
    except BaseException:
        queue.put((rank, None, traceback.format_exc()))


def in_processes(world_size, work, *arguments):
    """`work(rank, *arguments)` in a process for each rank, under "spawn"; what they return, in rank order."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [
        context.Process(target=_call, args=(queue, rank, work, arguments), daemon=True) for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    results = {}
    for _ in processes:
        rank, result, error = queue.get(timeout=WATCHDOG_S)
        assert error is None, f"rank {rank}:\n{error}"
        results[rank] = result
    for process in processes:
        process.join()
    return [results[rank] for rank in range(world_size)]
