"""A process that runs idioms, one after the other, as a rank of one or two."""

import dataclasses
import faulthandler
import os
import signal
import traceback
import warnings

import torch
import torch.distributed as dist

import phub

from .context import Context
from .idiom import idioms


@dataclasses.dataclass
class Failure:
    """An exception that ended an idiom."""

    kind: str
    text: str
    is_the_hubs: bool
    lines: tuple
    """Lines of the idiom that the traceback or the text names, the innermost last."""
    traceback: str


@dataclasses.dataclass
class Result:
    """What one rank has to say of one run."""

    values: list
    failure: object


def work(rank, world, backend, store, hub, traces, requests):
    """Runs what comes by `requests`, a connection, until it ends. A signal USR1 writes tracebacks to `traces`."""
    faulthandler.register(signal.SIGUSR1, file=open(traces, "w"))  # noqa: SIM115, as long as the process
    os.environ["PHUB_HUB"] = hub
    torch.set_num_threads(1)
    if backend == "phub":
        import phub.c10d  # noqa: F401, it registers the backend
    dist.init_process_group(backend, f"file://{store}", rank=rank, world_size=world)
    while True:
        try:
            name, way, job = requests.recv()
        except EOFError:
            break
        requests.send(_run(idioms()[name], Context(way, rank, world, hub, job)))
    os._exit(0)  # a group that is over may wait for its peers


def _run(idiom, ctx):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            idiom.body(ctx)
            ctx.finish()
        return Result(ctx.records.values, None)
    except BaseException as error:
        ctx.abandon()
        return Result(ctx.records.values, _failure(idiom, error))


def _failure(idiom, error):
    file, body = idiom.place()
    with open(file) as source:
        lines = source.read().splitlines()
    frames = traceback.extract_tb(error.__traceback__)
    named = [frame.lineno for frame in frames if frame.filename == file]
    named += [number for number in body if any(f"{mark}{number}" in str(error) for mark in _marks(file))]
    return Failure(
        type(error).__name__,
        str(error),
        isinstance(error, phub.Error) or str(error).split(":")[0] in _ERRORS,
        tuple(lines[number - 1].strip() for number in named if number in body),
        "".join(traceback.format_exception(type(error), error, error.__traceback__)),
    )


# DDP's own error has the name of the hub's in front of its text.
_ERRORS = [name for name, each in vars(phub).items() if isinstance(each, type) and issubclass(each, phub.Error)]


def _marks(file):
    return f"{file}:", f'"{file}", line ', f"{os.path.basename(file)}:"
