"""A process that runs idioms, one after the other, as one rank."""

import dataclasses
import faulthandler
import os
import signal
import warnings

import torch
import torch.distributed as dist

from .context import Context
from .failure import of_exception


@dataclasses.dataclass
class Result:
    """The records of one run on one rank, and its failure if there is one."""

    values: list
    failure: object


def work(rank, world, backend, store, hub, traces, requests):
    """Runs the idioms that the connection `requests` asks for, until it is closed. On the signal USR1 the process writes the
    stacks of its threads to the file `traces`."""
    faulthandler.register(signal.SIGUSR1, file=open(traces, "w"))  # noqa: SIM115, because the file stays open
    os.environ["PHUB_HUB"] = hub
    torch.set_num_threads(1)
    if backend == "phub":
        import phub.c10d  # noqa: F401, because the import registers the backend
    dist.init_process_group(backend, f"file://{store}", rank=rank, world_size=world)
    while True:
        try:
            idiom, way, job = requests.recv()
        except EOFError:
            break
        requests.send(_run(idiom, Context(way, rank, world, hub, job)))
    os._exit(0)  # an ordinary exit may wait for ranks that have ended


def _run(idiom, ctx):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            idiom.body(ctx)
            ctx.finish()
        return Result(ctx.records.values, None)
    except BaseException as error:
        ctx.abandon()
        return Result(ctx.records.values, of_exception(idiom, error))
