"""A worker's session, with keys by name and windows as NumPy arrays."""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
import time
import urllib.request
import weakref
from types import TracebackType
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type, Union

import numpy as np
import numpy.typing as npt

from . import _compression, _optimizers, _phub, _pull, _state
from ._hub import Hub, serve
from ._launch import Worker, worker

Array = npt.NDArray[Any]

# How long a worker waits before it asks again for a hub that rank 0 is only starting, in seconds.
_RETRY = 0.05
# How long the hub of rank 0 waits at its end for workers that have not left yet, in seconds.
_OTHERS = 30.0


@dataclasses.dataclass(frozen=True)
class Key:
    """A tensor of the model.

    Attributes:
        shape: extent of each dimension.
        dtype: "f32", "f16" or "bf16". NumPy has no bf16: its arrays are of uint16, the bits.
        lr_mult: multiplies the job's learning rate.
        wd_mult: multiplies the job's weight decay.
    """

    shape: Tuple[int, ...]
    dtype: str = "f32"
    lr_mult: float = 1.0
    wd_mult: float = 1.0


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the hub's disk: the round that a job goes on with from it, its size, and how long it took."""

    round: int
    bytes: int
    milliseconds: int


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes of gradients and weights."""

    sent: int
    received: int


@dataclasses.dataclass(frozen=True)
class Way:
    """How a session reaches a hub: transport, why by this one, and which NICs where there is a choice."""

    transport: str
    reason: str
    paths: List[str]


_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def _key(name: str, given: Union[Key, Sequence[int], Array]) -> Key:
    if isinstance(given, Key):
        return given
    if isinstance(given, np.ndarray):
        dtype = _DTYPES.get(given.dtype.name)
        if dtype is None:
            raise _phub.SettingsError(
                f"key {name!r} is an array of {given.dtype}; a hub takes float32, float16 and bf16 "
                f"(phub.Key(shape, 'bf16')): convert it first"
            )
        return Key(given.shape, dtype)
    return Key(tuple(int(extent) for extent in given))


class Session:
    """A worker's membership in a job: write gradients, push, wait, read weights.

    A key is *under way* from its push to its wait. Meanwhile its gradient and weights are the hub's: do not touch
    the arrays. The exchange goes on by itself, on a thread that needs no GIL.

    The arrays of `gradient` and `weights` are the memory that the hub reads and writes, and stay good as long as
    they are held, also after the session. A session belongs to the process that made it: a child of `fork` gets a
    ForkError. With `multiprocessing`'s "spawn" there is nothing to mind.
    """

    def __init__(
        self,
        hub: Union[str, Hub, None] = None,
        rank: Optional[int] = None,
        world_size: Optional[int] = None,
        *,
        keys: Mapping[str, Union[Key, Sequence[int], Array]],
        optimizer: _optimizers.Optimizer,
        job: Optional[str] = None,
        compression: Optional[_compression.Compression] = None,
        seed: int = 0,
        consistency: str = "bsp",
        on_loss: str = "stop",
        schedule: str = "sliced",
        slice_bytes: Optional[int] = None,
        credit: Union[int, str, None] = None,
        pull: Optional[str] = None,
        pull_layers: Optional[Sequence[Sequence[str]]] = None,
        weights: str = "shared",
        transport: Optional[str] = None,
        cores: Optional[int] = None,
        nics: Optional[str] = None,
        chunk_bytes: Optional[int] = None,
        join_limit: float = 60.0,
        wait_limit: float = 1800.0,
        state: Optional[_state.State] = None,
    ) -> None:
        """Joins a job and waits until all its workers are there. The first one to come makes the job; the others
        must say the same of everything but their rank.

        Args:
            hub: `host:port` of its control port, or a `phub.serve()`; several with commas between them where a job is
                spread over hubs, the same for all workers. Default: what the launcher's environment says
                (`phub.worker`); under torchrun, and without a launcher, rank 0 starts one.
            rank: this worker's number, from 0. Default: the launcher's.
            world_size: how many workers take part. Default: the launcher's.
            keys: the model, in the order of the forward pass: a shape, a `Key` or an array (for its shape and type)
                by name.
            optimizer: what the hub does with the sum, such as `phub.Adam(learning_rate=1e-3)`.
            job: name of the job. Default: by the launcher.
            compression: how gradients and weights are made smaller, such as `phub.Qsgd(bits=8)` or `phub.TopK(0.01)`.
                Default: not at all.
            seed: where the randomness of compression comes from.
            consistency: "bsp", "ssp:N" or "asp": how far workers may be apart.
            on_loss: "stop" or "continue": what becomes of the job when a worker is lost.
            schedule: "kvstore", "layerwise", "sliced" or "p3": in what order gradients and weights leave. With "p3" the
                first keys overtake the others.
            slice_bytes: the most bytes of a unit of the schedule. Default: a chunk.
            credit: bytes that may be under way on each link, "auto" or "none". Default: what the schedule needs.
            pull: with "kvstore", in which batches of layers weights are pulled: "ibatch" (those that overlap the
                forward pass best), "greedy", "layer" or "all". What layers take is seen by when `wait` is called for
                which key; all keys of a round are pushed before one is waited for. Default: each key as soon as it can be.
            pull_layers: keys that are needed together, in the order of the forward pass. Default: each key by itself.
            weights: "shared": read in place, where nobody can write; "private": in a copy of this worker's.
            transport: "shm", "verbs" or "tcp". Default: the best that leads to the hub.
            cores: how many of the hub's cores the job gets. Default: all.
            nics: RDMA NICs of this worker, as NCCL_IB_HCA names them.
            chunk_bytes: size of a chunk in bytes, a multiple of 64. Default: 32 KiB.
            join_limit: seconds to wait for the other workers at the start.
            wait_limit: seconds to wait for a key while all workers live.
            state: what a new job begins with, in place of a broadcast: weights and optimizer state, such as another
                session's `state()`. Rank 0's counts, others' are not looked at. A job that has weights already, or a
                checkpoint at its hub, goes on with its own: `next_round` tells.

        Raises:
            SettingsError, UnreachableError, RefusedError, ConnectError, MissingWorkersError, ...: see each.
        """
        if not keys:
            raise _phub.SettingsError("keys: a model has at least one tensor")
        self._owner = os.getpid()
        self._keys = {name: _key(name, given) for name, given in keys.items()}
        self._numbers = {name: number for number, name in enumerate(self._keys)}
        if pull is None and pull_layers is not None:
            raise _phub.SettingsError("pull_layers without pull: say which batches of them, such as pull='ibatch'")
        self.pull = pull
        self._layers = [[key] for key in self._keys] if pull_layers is None else [list(each) for each in pull_layers]
        layers = _pull.numbers(self._layers, self._numbers)
        me = worker()
        self.rank = me.rank if rank is None else rank
        self.world_size = me.world_size if world_size is None else world_size
        self.job = me.job if job is None else job
        address = hub.address if isinstance(hub, Hub) else hub if hub is not None else self._find_hub(me)
        self.hub_address = address
        described = [(name, list(key.shape), key.dtype, key.lr_mult, key.wd_mult) for name, key in self._keys.items()]
        shapes = {name: tuple(key.shape) for name, key in self._keys.items()}
        deadline = time.monotonic() + join_limit
        while True:
            try:
                self._native = _phub.Session(
                    address,
                    self.job,
                    self.rank,
                    self.world_size,
                    described,
                    _optimizers.to_json(optimizer),
                    None if compression is None else _compression.to_json(compression),
                    seed,
                    consistency,
                    on_loss,
                    schedule,
                    slice_bytes,
                    None if credit is None else str(credit),
                    pull,
                    layers,
                    weights,
                    transport,
                    cores,
                    nics,
                    chunk_bytes,
                    max(deadline - time.monotonic(), 0.001),
                    wait_limit,
                    None
                    if state is None or self.rank != 0
                    else (state.round, _state.pieces(state, shapes, optimizer)),
                )
                break
            except _phub.UnreachableError:
                # Only a hub that rank 0 starts may come later than the others.
                if hub is not None or me.serve_at is None or time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY)
        self._arrays: Dict[Tuple[str, str], Array] = {}
        _SESSIONS.add(self)

    def _find_hub(self, me: Worker) -> str:
        if me.hub is not None:
            return me.hub
        if me.serve_at is None:
            raise _phub.SettingsError(
                "no hub: say hub='host:port' or set PHUB_HUB to one that runs (phub-server serve); under torchrun, and "
                "without a launcher, rank 0 starts one by itself"
            )
        if self.rank > 0 and me.serve_at.endswith(":0"):
            raise _phub.SettingsError(
                f"rank {self.rank} without a launcher has no way to know the hub of rank 0: say hub='host:port'"
            )
        return _serve_for(me.serve_at) if self.rank == 0 else me.serve_at

    # ---- keys

    @property
    def keys(self) -> List[str]:
        """The names of all keys, in the order of the forward pass."""
        return list(self._keys)

    def _number(self, key: str) -> int:
        number = self._numbers.get(key)
        if number is None:
            raise _phub.OrderError(
                f"key {key!r} is none of this job's {len(self._keys)}; keys are fixed at the join: first "
                f"{next(iter(self._keys))!r}, last {next(reversed(self._keys))!r}"
            )
        return number

    def _array(self, key: str, which: str) -> Array:
        array = self._arrays.get((key, which))
        if array is None:
            number = self._number(key)
            window = self._native.gradient(number) if which == "gradient" else self._native.weights(number)
            array = self._arrays[(key, which)] = np.asarray(window)
        return array

    def gradient(self, key: str) -> Array:
        """A key's gradient, to write while the key is not under way: an array of the key's shape and type over the
        window itself. It still holds what was last written; with `SlimDP` zero, where that was sent."""
        return self._array(key, "gradient")

    def weights(self, key: str) -> Array:
        """A key's weights (with `Average`: the mean of the gradients), to read while the key is not under way: an
        array of the key's shape and type over the window itself. It changes with each wait; NumPy refuses to write
        it, unless `weights` is "private" or the compression `SlimDP`."""
        return self._array(key, "weights")

    # ---- rounds

    def broadcast(self, weights: Optional[Mapping[str, npt.ArrayLike]] = None) -> None:
        """Gives every worker rank 0's weights, and waits for them. Once, before the first push; every worker calls
        it. What is not in `weights` is taken from `gradient(key)` as rank 0 has written it.

        A worker that came to a job that has weights already (`next_round` is not 0) keeps those: then this does
        nothing, so that a script that is started again need not know."""
        if self.rank == 0 and self.next_round == 0:
            for key, value in (weights or {}).items():
                np.copyto(self.gradient(key), value, casting="same_kind")
        self._native.broadcast_written()

    def push(self, *keys: str) -> None:
        """Sends gradients to the hub and returns at once; without names, all of them.

        Raises:
            OrderError: a key is under way.
            JobFailedError, HubLostError, ...: the session is over.
        """
        for key in keys or self._keys:
            self._native.push(self._number(key))

    def wait(self, *keys: str) -> None:
        """Waits until the answers of these keys are there; without names, of all. The GIL is free meanwhile, and
        Ctrl-C raises KeyboardInterrupt; the session lives on. With `pull`, waits with names are what the forward pass
        is seen by.

        Raises:
            OrderError: with `pull`, a key that cannot come before others are pushed.
            PeerLeftError, StalledError: the answer cannot come.
            JobFailedError, HubLostError, ...: the session is over.
        """
        for key in keys:
            self._native.wait(self._number(key))
        if not keys:
            self._native.wait_all()

    def settle(self, *keys: str) -> None:
        """As `wait`, for keys that are not computed with next: with `pull` it is no part of the forward pass."""
        for key in keys or self._keys:
            self._native.settle(self._number(key))

    def is_ready(self, key: str) -> bool:
        """Whether the key's answer is there. Waits for nothing."""
        return self._native.is_ready(self._number(key))

    def push_pull(self, key: str, gradient: npt.ArrayLike) -> Array:
        """Pushes a copy of `gradient`, of the key's shape, waits, and gives the new weights: `weights(key)`."""
        np.copyto(self.gradient(key), gradient, casting="same_kind")
        self.push(key)
        self.wait(key)
        return self.weights(key)

    def average(self, values: Mapping[str, npt.ArrayLike]) -> Dict[str, Array]:
        """The mean over all workers of each of these, as copies: for a session whose optimizer is `Average`. Every
        worker calls it with the same keys."""
        for key, value in values.items():
            np.copyto(self.gradient(key), value, casting="same_kind")
        self.push(*values)
        self.wait(*values)
        return {key: self.weights(key).copy() for key in values}

    @property
    def next_round(self) -> int:
        """The first round of which no key has its answer; round 0 is the broadcast."""
        return self._native.next_round

    def set_learning_rate(self, learning_rate: float) -> None:
        """Changes the learning rate from the next round on, for all workers. When nothing is under way; every worker
        may call it with the same value."""
        self._native.set_learning_rate(learning_rate)

    def pull_by(self, layers: Sequence[Sequence[str]]) -> None:
        """With `pull`: by other layers from now on, when nothing is under way. For a caller that learns only as it
        computes in what order its layers are needed; what they take is measured anew. Workers need not agree."""
        self._native.pull_by(_pull.numbers(layers, self._numbers))
        self._layers = [list(layer) for layer in layers]

    @property
    def pull_plan(self) -> Optional[_pull.PullPlan]:
        """With `pull`: in which batches weights are pulled, and how well the prediction came true; None as long as not
        enough is seen for a plan."""
        return _pull.plan(self._native.pull_plan(), self._layers)

    def checkpoint(self) -> Checkpoint:
        """Writes the job's weights and optimizer state to its checkpoint at the hub now, and returns when they are on
        the disk.

        Raises:
            RefusedError: the hub writes no checkpoints, or cannot.
        """
        return Checkpoint(*self._native.checkpoint())

    def state(self) -> _state.State:
        """The job's weights and optimizer state as they are now, from the hub: as they are before `next_round`, when
        nothing of this worker is under way. The other workers may go on meanwhile. It is all in f32, and may be as long
        as three models.

        Raises:
            RefusedError: there are no weights yet, the optimizer is `Average`, or the job is on several hubs.
            HubLostError: the hub is gone.
        """
        if self._owner != os.getpid():
            raise _phub.ForkError(f"job {self.job!r}: this session belongs to process {self._owner}")
        return _state.fetch(self.hub_address.split(",")[0], self.job)

    def members(self) -> List[int]:
        """The ranks that take part now."""
        return self._native.members()

    @property
    def traffic(self) -> Traffic:
        """Bytes of gradients and weights that have crossed so far, as they cross."""
        return Traffic(*self._native.traffic())

    @property
    def not_finite(self) -> int:
        """Gradients that were NaN or infinite when they were compressed, since the join."""
        return self._native.not_finite()

    @property
    def ways(self) -> List[Way]:
        """How this session reaches each of its hubs."""
        return [Way(*way) for way in self._native.ways]

    # ---- the end

    def leave(self) -> None:
        """Waits for whatever is under way, and leaves the job."""
        self._native.leave()
        self.close()

    def close(self) -> None:
        """Ends the session now: by leaving, when nothing is under way; else the others hear that this worker is lost.
        A second call does nothing."""
        self._native.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if error is None:
            self.leave()
        else:
            self.close()


# The hubs that rank 0 has started for its sessions, by address. They go with the process.
_HUBS: Dict[str, Hub] = {}


def _serve_for(address: str) -> str:
    """A hub at this address; where it is found."""
    if address not in _HUBS:
        # On every address, unless it is this machine's own: MASTER_ADDR may be a name, or lead here by another way.
        host, _, port = address.rpartition(":")
        here = host.startswith("127.") or host == "localhost"
        try:
            _HUBS[address] = serve(f"{'127.0.0.1' if here else '0.0.0.0'}:{port}")
        except _phub.HubStartError as error:
            raise _phub.HubStartError(f"{error}. Under torchrun, PHUB_PORT chooses the port") from None
    return _HUBS[address].address if address.endswith(":0") else address


def _wait_for_jobs(hub: str) -> None:
    """Until the last worker has left."""
    deadline = time.monotonic() + _OTHERS
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"http://{hub}/v1/hub", timeout=5) as answer:
            jobs = json.load(answer)["jobs"]
        if all(job.get("state") == "failed" for job in jobs):
            return
        time.sleep(_RETRY)


# A script that ends without a word leaves in good order where it can: else the others would be told that it died.
_SESSIONS: "weakref.WeakSet[Session]" = weakref.WeakSet()


def _close_all() -> None:
    for session in list(_SESSIONS):
        if session._owner == os.getpid():
            session.close()
    for hub in _HUBS.values():
        if hub.is_own:
            _wait_for_jobs(hub.address.replace("0.0.0.0", "127.0.0.1"))
            hub.stop("rank 0, which started it, is done")


atexit.register(_close_all)
