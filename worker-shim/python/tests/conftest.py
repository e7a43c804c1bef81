"""The shared parts of all tests: a watchdog, a hub, and workers as processes."""

import atexit
import ctypes
import faulthandler
import multiprocessing
import multiprocessing.reduction
import os
import signal
import traceback

import pytest
from forkserver import FORKS

import phub

# A test that takes this many seconds hangs: the longest test takes some seconds.
WATCHDOG_S = 240
STDERR = pytest.StashKey()


def pytest_configure(config):
    # The real stderr, kept before pytest captures stderr.
    config.stash[STDERR] = os.dup(2)
    # A shell that starts a run in the background makes it ignore SIGINT. Some tests need the signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def watchdog_s():
    """The longest time that a test may take, in seconds."""
    return WATCHDOG_S


@pytest.fixture(autouse=True)
def watchdog(request, watchdog_s):
    """Yields while a watchdog runs: if the test hangs, the watchdog writes the stacks of all threads, and ends the run."""
    faulthandler.dump_traceback_later(watchdog_s, exit=True, file=request.config.stash[STDERR])
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def hub():
    with phub.serve(cores=1, idle="sleep", heartbeat_limit_s=30) as hub:
        yield hub


@pytest.fixture
def hubs():
    """The hubs of two machines."""
    both = [phub.serve(cores=1, idle="sleep", heartbeat_limit_s=30) for _ in range(2)]
    yield both
    for each in both:
        each.stop()


def mesh(hubs, machine):
    """Returns the setting `mesh` for the workers of this machine, in a mesh of these hubs."""
    return f"{machine}/{len(hubs)}@{hubs[0].address}"


def end_gloo():
    """Ends the default process group, which is a group of gloo, and never frees the group's memory.

    When torch 1.13 frees a group of gloo, it joins a thread while it holds the GIL, and that thread may wait for the GIL. Two
    runs of 100 and 200 trainings both hung.
    """
    import torch.distributed as dist

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.distributed_c10d._get_default_group()))
    dist.destroy_process_group()


class _Output:
    """Stdout or stderr of this process, for a process that another process forks."""

    def __init__(self, fd):
        self.fd = fd

    def __reduce__(self):
        return _take_output, (self.fd, multiprocessing.reduction.DupFd(self.fd))


def _take_output(fd, copy):
    os.dup2(copy.detach(), fd)


def _call(result, rank, work, arguments, environment, *_):
    # The worker's watchdog is earlier than the test's watchdog, so that the stacks of the worker are written.
    faulthandler.dump_traceback_later(WATCHDOG_S - 60, exit=True)
    os.environ.clear()
    os.environ.update(environment)
    try:
        result.send((work(rank, *arguments), None))
    except BaseException:
        result.send((None, traceback.format_exc()))
    atexit._run_exitfuncs()  # as at the end of a script: a forked process ends without it


def in_processes(world_size, work, *arguments, context=FORKS):
    """Runs `work(rank, *arguments)` in a process of `context` for each rank. Returns the results, in rank order."""
    workers = []
    for rank in range(world_size):
        ours, theirs = context.Pipe(duplex=False)
        worker = context.Process(
            target=_call,
            args=(theirs, rank, work, arguments, dict(os.environ), _Output(1), _Output(2)),
            daemon=True,
        )
        worker.start()
        theirs.close()  # the worker then has the only end, so that its death ends the pipe
        workers.append((worker, ours))
    results = []
    for rank, (worker, result) in enumerate(workers):
        try:
            value, error = result.recv()
        except EOFError:
            worker.join()
            value, error = None, f"it ended without a word, status {worker.exitcode}"
        assert error is None, f"rank {rank}: {error}"
        results.append(value)
    for worker, _ in workers:
        worker.join()
    return results
