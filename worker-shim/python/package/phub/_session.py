"""A worker's session, with keys by name, and gradients and weights as NumPy arrays."""

from __future__ import annotations

import atexit
import dataclasses
import logging
import numbers
import os
import time
import warnings
import weakref
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import numpy.typing as npt

from . import _compression, _failure, _optimizers, _phub, _pull, _run, _secret, _state
from ._hub import RETRY_S, Hub, serve_beside, serve_for, stop_own_hubs
from ._keys import Array, Key, check_unmasked, described, keys_of
from ._launch import Machine, Worker, place_of, wait_for_hub

_LOG = logging.getLogger("phub")

# The largest number of optimizers for groups of keys, besides the job's own.
_MOST_GROUPS = 255

# The settings by which a session reaches its hub.
_OF_PLACE = ("transport", "tcp_congestion", "nics", "rails", "mesh", "token", "hub_wait")


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the hub's disk.

    Attributes:
        round: the round with which a job continues from the checkpoint.
        bytes: the size of the checkpoint.
        milliseconds: the time that the checkpoint took.
    """

    round: int
    bytes: int
    milliseconds: int


@dataclasses.dataclass(frozen=True)
class Traffic:
    """The bytes of gradients and weights: `sent` to hubs and `received` from hubs."""

    sent: int
    received: int


@dataclasses.dataclass(frozen=True)
class Times:
    """The times of a session, in seconds, since the session has its weights. `str()` gives a line of text.

    Attributes:
        rounds: rounds that are finished.
        total: the whole time.
        computing: the time outside of `push` and of calls that wait.
        pushing: the time in `push`.
        waiting: the time in calls that wait for the hub.
        sent, received: bytes of gradients and weights.
        summary: the text of `str()`.
    """

    rounds: int
    total: float
    pushing: float
    waiting: float
    sent: int
    received: int
    summary: str

    @property
    def computing(self) -> float:
        return max(0.0, self.total - self.pushing - self.waiting)

    def __str__(self) -> str:
        return self.summary


@dataclasses.dataclass(frozen=True)
class Returns:
    """The number of times that a lost hub returned, and the total number of rounds that were lost."""

    times: int
    lost_rounds: int


class Norm(NamedTuple):
    """The norm of the mean gradient of all keys in a round, before clipping."""

    round: int
    value: float


@dataclasses.dataclass(frozen=True)
class Way:
    """The path by which a session reaches a hub: the transport, the reason for this transport, and the NICs if
    there is a choice."""

    transport: str
    reason: str
    paths: List[str]


class Session:
    """A worker's membership in a job: write gradients, push, wait, read weights.

    A key is *in flight* from its push to its wait. While a key is in flight, do not touch its arrays: the hub uses them.
    A background thread, which needs no GIL, sends and receives.

    The arrays of `gradient` and `weights` are the memory that the hub reads and writes. An array stays valid as long as the
    script holds it, also after the end of the session. A session belongs to the process that made it: in a child of `fork`
    its methods raise a ForkError. With `multiprocessing`, use "spawn".
    """

    def __init__(
        self,
        hub: Union[str, Hub, None] = None,
        rank: Optional[int] = None,
        world_size: Optional[int] = None,
        *,
        keys: Mapping[str, Union[Key, Sequence[int], Array]],
        optimizer: _optimizers.Optimizer,
        job: Union[str, _run.Helper, None] = None,
        compression: Optional[_compression.Compression] = None,
        seed: int = 0,
        clip_norm: Optional[float] = None,
        clip_norm_last: Optional[float] = None,
        skip_nonfinite: bool = False,
        skip_spikes: Optional[float] = None,
        ema: Optional[float] = None,
        maximize: bool = False,
        consistency: str = "bsp",
        on_loss: str = "stop",
        schedule: str = "sliced",
        slice_bytes: Optional[int] = None,
        answers_ahead: bool = False,
        credit: Union[int, str, None] = None,
        pull: Optional[str] = None,
        pull_layers: Optional[Sequence[Sequence[str]]] = None,
        weights: str = "shared",
        dma_buf: Union[int, Tuple[int, int], None] = None,
        transport: Optional[str] = None,
        cores: Optional[int] = None,
        nics: Optional[str] = None,
        rails: Optional[str] = None,
        checksum: Optional[bool] = None,
        tcp_congestion: Optional[str] = None,
        mesh: Optional[str] = None,
        token: Optional[str] = None,
        chunk_bytes: Optional[int] = None,
        compare_every: int = 0,
        join_limit: float = 60.0,
        hub_wait: Optional[float] = None,
        wait_limit: float = 1800.0,
        state: Optional[_state.State] = None,
    ) -> None:
        """Joins a job and waits until all its workers have joined. The first worker creates the job; the
        other workers must give the same settings, except their rank.

        Args:
            hub: `host:port` of the hub's control port, or the `Hub` that `phub.serve()` returned. For a job that is spread
                over hubs: several addresses with commas between them, the same for all workers. Default: from the launcher's
                environment (`phub.worker`); under torchrun, and without a launcher, rank 0 starts a hub.
            rank: this worker's number, from 0. Default: the launcher's.
            world_size: the number of workers. Default: the launcher's.
            keys: the tensors of the model by name, in the order of the forward pass. Each is a shape, a `Key`, or an array, of
                which only shape and type count.
            optimizer: the rule by which the hub makes steps, such as `phub.Adam(learning_rate=1e-3)`.
            job: name of the job. Default: `PHUB_JOB`, else the launcher's name of the run with a random word that no other
                run has. The second session without a name gets the suffix "-2", the third "-3"; so all workers must make their
                sessions in the same order. With `on_loss` "continue" no word is added, because workers may join later.
            compression: the codec of gradients and weights, such as `phub.Qsgd(bits=8)` or `phub.TopK(0.01)`. Default: none.
            seed: seed of the random numbers of compression.
            clip_norm: the largest norm that the mean gradient of a round may have, over all keys together. The hub scales a
                longer gradient down, as `torch.nn.utils.clip_grad_norm_` does. The hub answers no key of a round before all
                keys are pushed: push every key of a round before you wait for one. For "bsp", and not with Slim-DP.
                Default: no bound.
            clip_norm_last: clips a round by the norm of the previous round: if that norm was above `clip_norm_last`, the hub
                scales this round's mean gradient by `clip_norm_last / norm`. The results differ from those of `clip_norm`, and
                no key waits for the other keys. The first round is not scaled. The property `norm` is always `None`. For
                "bsp", without `clip_norm`, `skip_nonfinite` and `skip_spikes`. Default: no bound.
            skip_nonfinite: whether the job skips a round if its mean gradient has a value that is infinite or NaN. Weights,
                optimizer state and numbers of steps then do not change. `skipped` counts the skipped rounds. As with
                `clip_norm`, push every key of a round before you wait for one. Works without a codec, with "f16" and with
                "bf16": other codecs send such values as zero.
            skip_spikes: skips a round, as `skip_nonfinite` does, if its norm is above this factor times the running mean of
                norms, such as 3.0, or if its mean gradient is not finite. The running mean covers about the last hundred
                rounds that were not skipped. Until ten rounds are in the mean, no norm is too large. Works with the codecs
                of `skip_nonfinite`. Default: no bound.
            ema: the decay of an average of the weights that the hub keeps, such as 0.999. The average begins with the first
                weights. After each step it is `ema * average + (1 - ema) * weights`. A key that makes no step in a round, because
                no worker has a gradient or the round is skipped, keeps its average. The method `ema()` fetches the average, and
                checkpoints have it. Default: no average.
            maximize: whether steps go up the gradient and not down, as with PyTorch's `maximize`.
            consistency: "bsp", "ssp:N" or "asp". With "bsp" all workers are in the same round; with "ssp:N" no worker is more
                than N rounds ahead of the slowest; with "asp" there is no bound.
            on_loss: "stop" or "continue": whether the job ends or continues when a worker is lost.
            schedule: "kvstore", "layerwise", "sliced" or "p3": the order in which gradients and weights are sent. With "p3"
                the first keys of the model overtake later keys.
            slice_bytes: the largest number of bytes that the schedule sends as one unit. Default: a chunk.
            answers_ahead: whether the hub may answer gradients of `send_ahead` before their `push`. `weights(key)` may then
                change from `send_ahead` on, and is valid after the wait that follows the `push`. The hub needs memory for
                another copy of the model.
            credit: bytes that may be in flight on each link, "auto" or "none". Default: depends on the schedule.
            pull: with the schedule "kvstore", the batches of layers in which weights are pulled: "ibatch" (batches that
                overlap the forward pass best), "greedy", "layer" or "all". The session measures the times of layers from the
                calls of `wait`. Push all keys of a round before the first wait. Default: each key is pulled as soon as it
                can be.
            pull_layers: for `pull`, the keys of each layer, in the order of the forward pass. Default: each key is a layer.
            weights: "shared": read in place, and read-only; "private": a copy that belongs to this worker.
            dma_buf: the memory of the gradients, if a device such as a GPU writes them: the file descriptor of a dma-buf, or
                a tuple of file descriptor and offset in bytes. `phub.places` returns the place of each key from the offset
                on. The session duplicates the descriptor. NICs read the memory, so `dma_buf` needs RDMA, and
                excludes compression. Default: memory of the session.
            transport: "shm", "verbs" or "tcp". Default: the best transport that leads to the hub.
            cores: the number of the hub's cores that the job gets. Default: all.
            nics: the RDMA NICs of this worker, in the syntax of NCCL_IB_HCA.
            rails: pairs of a NIC of this worker and a NIC of the hub, such as "mlx5_0=mlx5_2,mlx5_1=mlx5_3". Default:
                `PHUB_RAILS`, else by subnet, by name, and by the order of names.
            checksum: whether gradients and weights over TCP have checksums, in both directions. The hub may
                ask for checksums, too. Default: `PHUB_CHECKSUM`, such as 1 or 0; else no.
            tcp_congestion: TCP's congestion control for the bytes that this worker sends: a name that the kernel knows, such
                as "cubic", or "system" or "auto". Default: `PHUB_TCP_CONGESTION`, else "auto".
            mesh: for jobs with a hub on each machine: the number of this machine, the number of machines and the address of
                the first machine's hub, such as "1/4@10.0.0.1:7077". `rank` and `world_size` are then the worker's rank and
                the number of workers on this machine, and `hub` is this machine's hub. Default: from the launcher's
                environment.
            token: the secret of the hubs, or a token for this job (`phub-server token`). Default: `PHUB_TOKEN`, the file
                `PHUB_TOKEN_FILE`, or this user's own file; under torchrun on several machines, a secret that this run's
                workers share through torch's store.
            chunk_bytes: size of a chunk in bytes, a multiple of 64. Default: 32 KiB up to 2.1 GB of weights, more for larger
                models.
            compare_every: the interval, in rounds, at which the hub compares a digest of each worker's weights. If the digests
                differ, then memory, a network or a program has altered weights, and the job ends with an error. Weights that
                workers write themselves are compared in each round in which workers write them. For "bsp" without `SlimDP`;
                the same at all workers. 0: never.
            join_limit: seconds to wait for the other workers at the start.
            hub_wait: seconds to wait for a hub that is not there at the start, and for a lost hub to return. When a lost hub
                returns, the session continues from the hub's checkpoint with the same arrays; `returns` counts the lost
                rounds. For "bsp" without `SlimDP`. In other jobs, and with a hub that a worker or this script started, the
                loss of the hub ends the session. Default: `PHUB_HUB_WAIT`, or 60.
            wait_limit: seconds to wait for the answer for a key while all workers are alive.
            state: weights and optimizer state for a new job, such as another session's `state()`, in place of a broadcast.
                Only the state of rank 0 counts. A job that already has weights, or a checkpoint at its hub, ignores
                `state`: the session's `next_round` is then not the round of `state`.

        Raises:
            SettingsError: a setting is invalid, or two settings exclude each other.
            UnreachableError: no hub answers at the address within `hub_wait`.
            RefusedError: the hub refuses this worker: other settings than the job's, a rank that is taken, or a wrong token.
            ConnectError: no transport leads to the hub.
            MissingWorkersError: the other workers did not join within `join_limit`.
        """
        _check_place(hub, rank, world_size, job)
        check_truths(skip_nonfinite=skip_nonfinite, maximize=maximize, answers_ahead=answers_ahead, checksum=checksum)
        if state is not None and not isinstance(state, _state.State):
            raise _phub.SettingsError(f"state is {state!r:.60}: expected a phub.State, such as another session's state()")
        if not 0.0 < _seconds(join_limit) < float("inf"):
            raise _phub.SettingsError(f"join_limit is {join_limit!r:.60}: expected a number of seconds, more than 0")
        _compression.check(compression, optimizer)
        if hub_wait is not None and not 0.0 <= _seconds(hub_wait) < float("inf"):
            raise _phub.SettingsError(f"hub_wait is {hub_wait!r:.60}: expected a number of seconds, 0 or more")
        self._owner = os.getpid()
        self._keys = keys_of(keys)
        self._numbers = {name: number for number, name in enumerate(self._keys)}
        if pull is None and pull_layers is not None:
            raise _phub.SettingsError("pull_layers without pull: say how layers form batches, such as pull='ibatch'")
        self.pull = pull
        self.skips_nonfinite, self.keeps_ema = bool(skip_nonfinite), ema is not None
        self._keeps_weights = _optimizers.keeps_weights(optimizer)
        self._skips = bool(skip_nonfinite) or skip_spikes is not None
        of_layers = [[key] for key in self._keys] if pull_layers is None else pull_layers
        layers = _pull.numbers(of_layers, self._numbers)
        self._layers = [list(each) for each in of_layers]
        is_hub_known = hub is not None or bool(os.environ.get("PHUB_HUB"))
        me = place_of(is_hub_known and rank is not None and world_size is not None)
        self.rank = me.rank if rank is None else rank
        self.world_size = me.world_size if world_size is None else world_size
        settings: Dict[str, object] = {
            "compression": None if compression is None else _compression.to_text(compression),
            "seed": seed,
            "clip_norm": clip_norm,
            "clip_norm_last": clip_norm_last,
            "skip_nonfinite": str(bool(skip_nonfinite)).lower(),
            "skip_spikes": skip_spikes,
            "ema": ema,
            "maximize": str(bool(maximize)).lower(),
            "consistency": consistency,
            "on_loss": on_loss,
            "schedule": schedule,
            "slice_bytes": slice_bytes,
            "answers_ahead": str(bool(answers_ahead)).lower(),
            "credit": credit,
            "pull": pull,
            "weights": weights,
            "dma_buf": ":".join(map(str, dma_buf)) if isinstance(dma_buf, tuple) else dma_buf,
            "transport": transport,
            "cores": cores,
            "nics": nics,
            "rails": rails,
            "tcp_congestion": tcp_congestion,
            "checksum": None if checksum is None else str(bool(checksum)).lower(),
            "chunk_bytes": chunk_bytes,
            "wait_limit": wait_limit,
            "compare_every": compare_every,
            "mesh": mesh,
        }
        if token is None:
            shared = me.store if me.shares_secret else None
            token = hub.token if isinstance(hub, Hub) else _secret.of_run(shared) if hub is None else None
        if token is None and hub is None and self.world_size == 1 and (me.serve_at or "").endswith(":0"):
            token = _secret.of_lone_process()
        self._token = settings["token"] = token
        is_me = (self.rank, self.world_size) == (me.rank, me.world_size) and mesh is None
        is_plain = isinstance(job, str) or (job is None and (me.is_named or on_loss == "continue"))
        word, is_served = None, False
        if is_me and (not is_plain or (hub is None and me.hub is None)):
            agreed = _run.agree(me, token, is_hub_named=hub is not None)
            word, is_served = agreed.word, agreed.is_served
            me = dataclasses.replace(me, serve_at=agreed.serve_at, machine=agreed.machine)
        machine = self._machine(me, hub, mesh, settings)
        # Nobody restarts a hub that a worker or this script started, so no session waits for such a hub.
        is_own = isinstance(hub, Hub) or (hub is None and me.hub is None)
        self._hub_wait = 0.0 if is_own else wait_for_hub() if hub_wait is None else hub_wait
        settings["hub_wait"] = self._hub_wait
        local = (self.rank, self.world_size)
        if machine is not None:
            local, settings["mesh"] = (machine.rank, machine.world_size), machine.mesh
        self._ranks = range(self.world_size) if machine is None else machine.ranks
        address = hub.address if isinstance(hub, Hub) else hub if hub is not None else self._find_hub(me, machine, is_served)
        self.hub_address = address
        shapes = {name: tuple(key.shape) for name, key in self._keys.items()}
        deadline = time.monotonic() + join_limit

        def join(
            name: str, keys: Mapping[str, Key], to_do: _optimizers.Optimizer, given: Dict[str, object], *rest: Any
        ) -> _phub.Session:
            while True:
                given["join_limit"] = max(deadline - time.monotonic(), 0.001)
                try:
                    return _phub.Session(address, name, *local, described(keys), _optimizers.to_json(to_do), _given(given), *rest)
                except _phub.UnreachableError:
                    # A hub that rank 0 starts may start later than the workers, so the workers try again.
                    if hub is not None or me.serve_at is None or time.monotonic() > deadline:
                        raise
                    time.sleep(RETRY_S)

        def meet(name: str) -> str:
            of_place = {setting: settings[setting] for setting in _OF_PLACE if setting in settings}
            return _run.meet(self.rank, lambda keys, to_do: join(name, keys, to_do, of_place, [[0]], None))

        levels = mesh or (machine.mesh if machine is not None else None)
        if not is_plain and self.world_size == 1 and machine is None and mesh is None and (hub is not None or me.hub is not None):
            below = self._machine_below()
            if below is not None:  # the workers of other machines need the same word
                word, levels = None, f"machine {below}"
        at = _run.Place(address, self.rank, self.world_size, levels)
        naming = _run.Naming(at, me.job, None if is_plain else word or _run.word_at(at, me.job, meet))
        self.job = job if isinstance(job, str) else naming.take(job)
        brought = None
        if state is not None and self.rank == 0:
            brought = state.round, _state.steps(state, shapes), _state.pieces(state, shapes, optimizer, ema is not None)
        try:
            self._native = join(self.job, self._keys, optimizer, settings, layers, brought)
        except BaseException:
            naming.give_back()
            raise
        self.is_alone = self.world_size == 1 and not self._native.is_below_others()
        """Whether this worker is the only worker of its job."""
        self.has_local_rank = machine is None and (mesh is not None or self._native.is_below_others())
        """Whether `rank` and `world_size` count only the workers of this machine, although the job has workers of other machines."""
        self.is_first = self.rank == 0
        """Whether this worker is the first of the job's workers. With `has_local_rank`, it is rank 0 of machine 0."""
        if self.is_first and self.has_local_rank:
            self.is_first = (int(mesh.partition("/")[0]) if mesh else self._machine_below()) == 0
        if self.rank == 0 and self.next_round > (0 if state is None else state.round) and self._keeps_weights:
            _LOG.warning(
                "job %s continues before round %s, with weights that its hub already had; to train from the start, give the job "
                "another name (job= or PHUB_JOB)",
                *(self.job, self.next_round),
            )
        self._arrays: Dict[Tuple[str, str], Array] = {}
        self._is_logged = False
        _SESSIONS.add(self)

    def _machine_below(self) -> Optional[int]:
        """Returns the number of this machine among the members of the hubs above the session's hub; None without hubs above. Waits
        for the hub for at most `hub_wait`."""
        deadline = time.monotonic() + self._hub_wait
        while "," not in self.hub_address:  # several hubs are below no others
            try:
                return _phub.machine_below(self.hub_address, self._token)
            except _phub.UnreachableError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_S)
        return None

    def _machine(
        self, me: Worker, hub: Union[str, Hub, None], mesh: Optional[str], settings: Mapping[str, object]
    ) -> Optional[Machine]:
        """Returns the worker's position on this machine, if this session uses a hub on each machine; otherwise None."""
        machine = me.machine
        is_me = (self.rank, self.world_size) == (me.rank, me.world_size)
        if machine is None or not is_me or mesh is not None or (hub is not None and machine.starts):
            return None
        why = _phub.refused_below(_given(settings)) if machine.starts else None
        if why is not None:
            if self.rank == 0:
                warnings.warn(f"this job has one hub, at rank 0, instead of one on each machine: {why}", stacklevel=3)
            return None
        return machine

    def _find_hub(self, me: Worker, machine: Optional[Machine], is_served: bool) -> str:
        if machine is not None:
            if machine.starts and machine.rank == 0 and not is_served:
                serve_beside(machine.hub, self._token)
            return machine.hub
        if me.hub is not None:
            return me.hub
        if me.serve_at is None:
            raise _phub.SettingsError(
                "no hub is known: give hub='host:port', or set PHUB_HUB to the address of a running hub (phub-server serve). Workers start "
                "hubs themselves only under torchrun and Slurm, without a launcher, and under mpiexec on one machine or with "
                "MASTER_ADDR and MASTER_PORT"
            )
        if is_served:
            return me.serve_at
        if me.launcher and self.world_size > 1 and me.serve_at.endswith(":0"):
            raise _phub.SettingsError(
                f"{me.launcher}: its workers cannot tell each other where their hub is: set PHUB_PORT to a port for the hub, or "
                f"PHUB_HUB to the address of a running hub"
            )
        if self.rank > 0 and me.serve_at.endswith(":0"):
            raise _phub.SettingsError(
                f"rank {self.rank} without a launcher does not know the address of rank 0's hub: give hub='host:port'"
            )
        if me.machine is not None and self.rank == 0:
            serve_beside(me.machine.hub, self._token)
            return me.serve_at
        if self.rank > 0:
            return me.serve_at
        return serve_for(me.serve_at, self._token, is_here=me.is_on_one_machine)

    # ---- keys

    @property
    def keys(self) -> List[str]:
        """The names of all keys, in the order of the forward pass."""
        return list(self._keys)

    def _number(self, key: str) -> int:
        number = self._numbers.get(key) if isinstance(key, str) else None  # a list of names has no hash
        if number is None:
            raise _phub.OrderError(
                f"key {key!r} is not one of this job's {len(self._keys)} keys, which are fixed at the join: the first "
                f"is {next(iter(self._keys))!r}, the last is {next(reversed(self._keys))!r}"
            )
        return number

    def _numbered(self, keys: Iterable[str]) -> List[int]:
        try:
            return [self._numbers[key] for key in keys]
        except (KeyError, TypeError):
            return [self._number(key) for key in keys]

    def _array(self, key: str, which: str) -> Array:
        array = self._arrays.get((key, which))
        if array is None:
            number = self._number(key)
            window = self._native.gradient(number) if which == "gradient" else self._native.weights(number)
            array = self._arrays[(key, which)] = np.asarray(window)
        return array

    def gradient(self, key: str) -> Array:
        """Returns a key's gradient: an array of the key's shape and type, over the memory from which pushes are sent. Write it
        while the key is not in flight. The array keeps the values of the last push; with `SlimDP` the values that were sent
        become zero.

        Raises:
            OrderError: there is no such key, or the session has a `dma_buf`, which has no address in this process.
        """
        return self._array(key, "gradient")

    def _write(self, key: str, values: npt.ArrayLike) -> None:
        """Copies values of the key's shape into its gradient.

        Raises:
            OrderError: the key is in flight, so the hub still uses its gradient.
            SettingsError: the values have another shape, even if NumPy could broadcast it, or a type that cannot be the key's. Or
                values are masked.
        """
        check_unmasked(f"key {key!r}", values)
        gradient, dtype = self.gradient(key), self._keys[key].dtype
        if not self.ready(key):
            raise _phub.OrderError(f"key {key!r} is in flight: wait for it before its gradient is written again")
        try:
            if np.shape(values) == gradient.shape:
                # Without "equiv", NumPy would take truth values and small numbers for the bits of bf16.
                return np.copyto(gradient, values, casting="equiv" if dtype == "bf16" else "same_kind")
        except (TypeError, ValueError) as error:
            bits = "; bf16 is written as uint16 with its bits" if dtype == "bf16" else ""
            raise _phub.SettingsError(f"key {key!r}: the values are not {dtype}: {error}{bits}") from None
        seen, expected = np.shape(values), gradient.shape
        raise _phub.SettingsError(f"key {key!r}: the values have the shape {seen}: expected {expected}, the key's shape")

    def weights(self, key: str) -> Array:
        """Returns a key's weights (with `Average`: the mean of the gradients). The array has the key's shape and type, and is
        over the memory into which answers are received. Read it while the key is not in flight. Its values change in each round. The
        array is read-only, unless `weights` is "private" or the compression is `SlimDP`.

        Raises:
            OrderError: there is no such key.
        """
        return self._array(key, "weights")

    # ---- rounds

    def broadcast(self, weights: Optional[Mapping[str, npt.ArrayLike]] = None) -> None:
        """Gives every worker rank 0's weights, and waits for them. Every worker calls `broadcast` once, before its first push.

        If the job already has weights (`next_round` is not 0), `broadcast` does nothing, and the worker keeps the job's
        weights. So a script that is started again may call `broadcast` as at its first start.

        Args:
            weights: arrays of the keys' shapes, by name. Only the arrays of rank 0 count. For keys that are not in `weights`,
                rank 0 writes the weights to `gradient(key)` before the call.

        Raises:
            SettingsError: an array does not have its key's shape.
            OrderError: this session has made a round since its broadcast, or any round with the optimizers `Average` and `Sum`.
                So the weights would not change.
        """
        if self.rank == 0 and self.next_round == 0:
            for key, value in (weights or {}).items():
                self._write(key, value)
        self._native.broadcast_written()

    def push(self, *keys: str, rewritten: bool = False) -> None:
        """Sends gradients to the hub and returns at once.

        Args:
            keys: the names of the keys; without names, all keys. `push(*names)` with an empty list is `push()`, and
                pushes all keys.
            rewritten: whether the gradients were written again after `send_ahead`, and must be sent again. Otherwise bytes
                that `send_ahead` has sent are not sent again.

        Raises:
            OrderError: a key is in flight.
            JobFailedError, HubLostError, ...: the session is over.
        """
        push = self._native.push_rewritten if rewritten else self._native.push
        push(self._numbered(keys or self._keys))

    def push_nothing(self, *keys: str) -> None:
        """Pushes keys for which this worker has no gradient in this round; without names, no key. The missing gradient counts
        as zeros. If no worker has a gradient of a key, the key's weights and optimizer state do not change: see
        `was_left_alone`.

        Raises:
            OrderError: a key is in flight, or the job takes gradients only (SSP, ASP, Slim-DP).
        """
        self._native.push_nothing(self._numbered(keys))

    def push_weights(self, *keys: str) -> None:
        """Pushes keys with new weights that replace the old weights; without names, no key. Every worker writes the new
        weights to `gradient(key)` and pushes them in the same round. The weights of the lowest rank count. The optimizer's
        state does not change.

        Raises:
            OrderError: a key is in flight, or the job takes gradients only (SSP, ASP, Slim-DP).
            JobFailedError: raised by a later call, if another worker pushed the key by `push` or `push_nothing` in this round.
        """
        self._native.push_weights(self._numbered(keys))

    def send_ahead(self, *keys: str) -> None:
        """Sends the bytes of these keys' gradients now, if that saves time; without names, of all keys' gradients. The hub does
        not count the gradients before the `push`, which then sends no bytes. A gradient may change after `send_ahead`: call
        `push` with `rewritten=True`, or `send_ahead` again.

        Nothing is sent early over shared memory, with a codec, checksums, SSP, ASP or the schedule "kvstore", nor for small
        keys.

        Raises:
            OrderError: a key is in flight.
        """
        self._native.send_ahead(self._numbered(keys))

    def leaves_ahead(self) -> List[str]:
        """Returns the keys for which `send_ahead` sends bytes, over the current links."""
        leave = self._native.leave_ahead(list(self._numbers.values()))
        return [key for key, leaves in zip(self._keys, leave) if leaves]

    def was_left_alone(self, key: str) -> bool:
        """Whether the key's last answer did not change its weights: no worker had a gradient, or the job skipped
        the round."""
        return self._native.was_left_alone(self._number(key))

    def wait(self, *keys: str) -> None:
        """Waits until the answers of these keys have arrived; without names, of all keys. The wait releases the GIL. Ctrl-C
        raises KeyboardInterrupt, and the session continues. With `pull`, the planner learns the times of the forward pass
        from waits with names.

        Raises:
            OrderError: with `pull`, a key whose answer cannot arrive before other keys are pushed.
            PeerLeftError: another worker has left, so the answer cannot arrive.
            StalledError: the answer did not arrive within `wait_limit`.
            JobFailedError, HubLostError, ...: the session is over.
        """
        for key in keys:
            self._native.wait(self._number(key))
        if not keys:
            self._native.wait_all()

    def settle(self, *keys: str) -> None:
        """Waits like `wait`, for keys whose weights the caller does not use next. With `pull` the planner learns no times from
        `settle`."""
        for key in keys or self._keys:
            self._native.settle(self._number(key))

    def is_ready(self, key: str) -> bool:
        """Whether the key's answer has arrived. Does not wait."""
        return self._native.is_ready(self._number(key))

    def ready(self, *keys: str) -> List[str]:
        """Returns the named keys whose answers have arrived. Does not wait. With `pull` the planner learns no times from
        `ready`."""
        are_ready = self._native.are_ready(self._numbered(keys))
        return [key for key, is_ready in zip(keys, are_ready) if is_ready]

    def push_pull(self, key: str, gradient: npt.ArrayLike) -> Array:
        """Copies `gradient`, which has the key's shape, into the key's gradient. Pushes the key, waits, and returns
        `weights(key)` with the new values.

        Raises:
            OrderError: the key is in flight.
            SettingsError: `gradient` does not have the key's shape, or its type cannot become the key's.
        """
        self._write(key, gradient)
        self.push(key)
        self.wait(key)
        return self.weights(key)

    def average(self, values: Mapping[str, npt.ArrayLike]) -> Dict[str, Array]:
        """Returns the mean of each array over all workers, as a copy, by key. For a session with the optimizer `Average` (with
        `Sum`: the sum). Every worker calls `average` with the same keys. Without keys it does nothing.

        Raises:
            OrderError: a key is in flight.
            SettingsError: the hub has an optimizer with steps, or skips rounds. Or an array does not have its key's shape, or its
                type cannot become the key's.
        """
        if self._keeps_weights:
            raise _phub.SettingsError(
                f"average: job {self.job!r} has an optimizer, so its hub answers with weights and not with means: make another session "
                f"with optimizer=phub.Average(), or use push_pull for steps"
            )
        if self._skips:
            raise _phub.SettingsError(
                f"average: job {self.job!r} skips rounds, and a skipped round has no mean: leave skip_nonfinite and skip_spikes out, "
                f"and look for NaN in the means"
            )
        if not values:
            return {}  # `push()` without names would push all keys, with values of an earlier round
        for key, value in values.items():
            self._write(key, value)
        self.push(*values)
        self.wait(*values)
        return {key: self.weights(key).copy() for key in values}

    @property
    def next_round(self) -> int:
        """The first round in which no key has been answered. Round 0 is the broadcast."""
        return self._native.next_round

    def set_learning_rate(self, learning_rate: float) -> None:
        """Changes the learning rate from the next round on, for all workers. The rules are those of `set_optimizer`."""
        self._native.set_learning_rate(learning_rate)

    def set_optimizer(
        self,
        optimizer: _optimizers.Optimizer,
        keys: Optional[Mapping[str, Tuple[float, float]]] = None,
        reset: Sequence[str] = (),
        groups: Optional[Mapping[str, _optimizers.Optimizer]] = None,
    ) -> None:
        """Changes the hyperparameters of the optimizer from the next round on, for all workers: learning rate, weight decay,
        momentum, betas, epsilon. Call it when no key is in flight; every worker may call it with the same values.

        Args:
            optimizer: the new hyperparameters, all of them, in an optimizer of the same class as the job's.
            keys: for each key of the job, by name: the multiplier of its learning rate and the multiplier of its weight decay.
                Default: the multipliers do not change.
            reset: names of keys whose optimizer state becomes zero before the next round, as if they had made no step. For
                "bsp".
            groups: for keys with other hyperparameters, by name: an optimizer of the same class. At most 255 different
                optimizers. The groups are valid until the next call. Default: no key has other hyperparameters.

        Raises:
            SettingsError: the optimizer is of another class, a number is out of its range, `keys` lacks a key of the job, or a
                name is not a key.
        """
        multipliers = None
        if keys is not None:
            if keys.keys() != self._keys.keys():
                strange = next(name for name in [*keys, *self._keys] if name not in keys or name not in self._keys)
                seen = "is missing" if strange in self._keys else "is not one of the job's keys"
                raise _phub.SettingsError(
                    f"set_optimizer: {strange!r} {seen}: expected multipliers of each of the {len(self._keys)} keys, or none"
                )
            multipliers = [keys[name] for name in self._keys]
        if isinstance(reset, str):  # a sequence of letters, which may be keys
            raise _phub.SettingsError(f"set_optimizer: reset is {reset!r}: expected a list of names, such as [{reset!r}]")
        for name in reset:
            if name not in self._keys:
                raise _phub.SettingsError(f"set_optimizer: reset: {name!r} is not one of the job's keys")
        numbers = [self._numbers[name] for name in reset]
        self._native.set_optimizer(_optimizers.to_json(optimizer), multipliers, numbers, self._of_groups(groups or {}))

    def _of_groups(self, groups: Mapping[str, _optimizers.Optimizer]) -> Optional[Tuple[List[str], List[int]]]:
        """Returns the different optimizers. Also returns for each key the number of its optimizer, from 1; 0 is the job's."""
        strange = next((name for name in groups if name not in self._keys), None)
        if strange is not None:
            raise _phub.SettingsError(f"set_optimizer: groups: {strange!r} is not one of the job's keys")
        optimizers = list(dict.fromkeys(groups.values()))
        if len(optimizers) > _MOST_GROUPS:
            raise _phub.SettingsError(f"set_optimizer: groups: {len(optimizers)} different optimizers; expected at most {_MOST_GROUPS}")
        numbers = {each: number for number, each in enumerate(optimizers, 1)}
        of_keys = [numbers[groups[name]] if name in groups else 0 for name in self._keys]
        return ([_optimizers.to_json(each) for each in optimizers], of_keys) if groups else None

    def pull_by(self, layers: Sequence[Sequence[str]]) -> None:
        """Replaces `pull_layers`, in a session with `pull`. For a caller that learns the order of its layers while it computes.
        Call it when no key is in flight. The session then measures the times of layers again. Workers need not give the
        same layers."""
        self._native.pull_by(_pull.numbers(layers, self._numbers))
        self._layers = [list(layer) for layer in layers]

    def need(self, *keys: str) -> None:
        """Changes the order in which the schedule "p3" sends keys, from now on: this worker's pushes, and the hub's answers. For a
        caller that learns the order while it computes. Keys that are not named come last. Workers need not give the same order."""
        self._native.need(self._numbered(keys))

    @property
    def pull_plan(self) -> Optional[_pull.PullPlan]:
        """The batches in which weights are pulled, with predicted and measured times; None without `pull`, and before there is
        a plan."""
        return _pull.plan(self._native.pull_plan(), self._layers)

    def checkpoint(self) -> Checkpoint:
        """Waits for all keys, and makes the hub write a checkpoint of the job, with weights and optimizer state. Returns when the
        checkpoint is on the disk.

        Raises:
            RefusedError: the hub does not write checkpoints, or fails to.
        """
        return Checkpoint(*self._native.checkpoint())

    def state(self) -> _state.State:
        """Returns the job's weights and optimizer state before `next_round`, from the job's hubs or from the hubs at the top.
        Call it when no key of this worker is in flight; the other workers may continue. All values are f32, so the result
        may be as large as three models. If a hub is lost, waits until the hub returns, for at most `hub_wait`.

        Raises:
            RefusedError: there are no weights yet, or the optimizer is `Average`. In a job over several hubs without
                "bsp": also if the hubs are in different rounds.
            HubLostError, JobFailedError: a hub is gone, and did not return.
        """
        if self._owner != os.getpid():
            raise _phub.ForkError(f"job {self.job!r}: this session belongs to process {self._owner}, and its forks cannot use it: join again in this process")
        shapes = {name: tuple(key.shape) for name, key in self._keys.items()}
        hubs = [hub.strip() for hub in self.hub_address.split(",")]
        deadline, is_lost = time.monotonic() + self._hub_wait, False
        while True:
            try:
                return _state.fetch(hubs, self.job, shapes, self._token)
            except (_phub.HubLostError, _phub.RefusedError) as error:
                # A hub that has returned refuses to send a state until its workers have returned, too.
                is_lost = is_lost or isinstance(error, _phub.HubLostError)
                if not is_lost or time.monotonic() > deadline:
                    raise
            self._native.members()  # raises the error of a session that is over
            time.sleep(RETRY_S)

    def ema(self) -> Dict[str, Array]:
        """Returns the average of each key's weights, as f32 arrays by key, in a session with `ema=`. The averages are from
        `state()`, and its rules apply.

        Raises:
            SettingsError: the job keeps no average.
            RefusedError, HubLostError: as for `state()`.
        """
        if not self.keeps_ema:
            raise _phub.SettingsError(f"job {self.job!r} keeps no average of its weights: give all workers' sessions a decay, such as Session(ema=0.999)")
        return self.state().ema or {}

    def members(self) -> List[int]:
        """Returns the ranks of the workers that take part now; with a hub on each machine, only of the workers on this
        machine."""
        return [self._ranks[member] for member in self._native.members()]

    @property
    def returns(self) -> Returns:
        """The number of times that the session lost its hub and continued when the hub returned, and the lost rounds."""
        return Returns(*self._native.returns())

    @property
    def relinks(self) -> int:
        """The number of reconnects: the hub was alive, and the session replaced lost links by new links, such as over another
        NIC."""
        return self._native.relinks()

    @property
    def norm(self) -> Optional[Norm]:
        """The norm of the newest round whose norm is known, in a job with `clip_norm`, `skip_nonfinite` or `skip_spikes`; `None`
        before the first such round. When all weights of a round have arrived, its norm is known."""
        norm, _ = self._native.norm()
        return None if norm is None else Norm(*norm)

    @property
    def skipped(self) -> int:
        """The number of rounds of the job that `skip_nonfinite` and `skip_spikes` have skipped."""
        return self._native.norm()[1]

    @property
    def traffic(self) -> Traffic:
        """The bytes of gradients and weights that were sent and received until now."""
        return Traffic(*self._native.traffic())

    @property
    def times(self) -> Times:
        """The times of this session since it has weights; they can be read after the end, too. A time in which several threads
        wait counts once. At the end of a session the logger "phub" gets the times, at level INFO."""
        return Times(*self._native.times)

    @property
    def not_finite(self) -> int:
        """The number of gradient values since the join that were NaN or infinite when they were compressed."""
        return self._native.not_finite()

    @property
    def ways(self) -> List[Way]:
        """The path by which this session reaches each of its hubs."""
        return [Way(*way) for way in self._native.ways]

    # ---- the end

    def leave(self) -> None:
        """Waits for all keys that are in flight, and leaves the job.

        Raises:
            The errors of `wait`: a key in flight cannot be answered.
        """
        self._native.leave()
        self._log_times()
        self.close()

    def close(self, reason: Optional[str] = None) -> None:
        """Ends the session now. If no key is in flight, the worker leaves the job. Otherwise the hub notifies the other workers
        that this worker is lost. A second call does nothing.

        Args:
            reason: why this worker has failed. The next calls of the other workers then raise an error such as "rank 1
                failed: KeyError: 'x'". Default: the worker has not failed.
        """
        if self._owner == os.getpid():
            self._log_times()
        if reason is not None and len(self._ranks) < self.world_size:
            reason = f"{reason} (rank {self.rank} of {self.world_size})"  # each machine's hub knows only ranks on its machine
        self._native.close(reason)

    def _log_times(self) -> None:
        if not self._is_logged:
            _LOG.info("job %s, rank %s: %s", self.job, self.rank, self.times)
            self._is_logged = True

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is None:
            self.leave()
        else:
            self.close(_failure.reason(error))


def _seconds(value: object) -> float:
    """Returns a number as a float, and NaN for a value of another type."""
    return float(value) if isinstance(value, numbers.Real) else float("nan")


def _check_place(hub: object, rank: object, world_size: object, job: object) -> None:
    """Checks the types that a type checker would check, because the native module's errors do not name the argument."""
    for name, number in (("rank", rank), ("world_size", world_size)):
        is_in_range = isinstance(number, (int, np.integer)) and 0 <= number < 1 << 32
        if number is not None and (isinstance(number, bool) or not is_in_range):
            raise _phub.SettingsError(f"{name} is {number!r:.60}: expected a whole number from 0 to 2^32 - 1")
    if not isinstance(hub, (str, Hub, type(None))):
        raise _phub.SettingsError(f"hub is {hub!r:.60}: expected 'host:port', several with commas between them, or a phub.Hub")
    if not isinstance(job, (str, _run.Helper, type(None))):
        raise _phub.SettingsError(f"job is {job!r:.60}: expected a name, as a text")


def check_truths(**named: object) -> None:
    """Checks settings that are yes or no. Python takes each text for yes, also "false".

    Raises:
        SettingsError: a setting is a text.
    """
    for name, value in named.items():
        if isinstance(value, (str, bytes)):
            raise _phub.SettingsError(f"{name} is {value!r:.60}: expected True or False")


def _given(settings: Mapping[str, object]) -> List[Tuple[str, str]]:
    return [(setting, str(value)) for setting, value in settings.items() if value is not None]


# All sessions of this process. A script may end without `leave`, and the other workers would then take its worker for dead.
# So the sessions are closed at exit. If an exception ended the script, its text is the reason.
_SESSIONS: "weakref.WeakSet[Session]" = weakref.WeakSet()


def _close_all() -> None:
    reason = _failure.of_script()
    for session in list(_SESSIONS):
        if session._owner == os.getpid():
            session.close(reason)
    stop_own_hubs()


atexit.register(_close_all)
