"""The joins of an optimizer. It first joins its job, and later new jobs with other keys or with a loaded state."""

from __future__ import annotations

import collections
import warnings
import weakref
from typing import Any, Dict, Iterable, List, Mapping, Optional

import torch

from .._failure import reason
from .._keys import Array, Key
from .._optimizers import Average, Sgd, state_names
from .._phub import MissingWorkersError, SettingsError
from .._run import beside
from .._session import Session
from ._asleep import Asleep
from ._exchange import Exchange
from ._joined import leave_dropped
from ._model import Model
from ._pushes import SCALES, scales_key
from ._script import line
from ._settings import Settings, by_key, dtype_of
from ._state import from_torch
from ._tensors import Broadcast


class Join:
    """The settings of an optimizer's jobs."""

    keeps_state: bool
    """Whether the hub keeps optimizer state."""
    aside: Dict[torch.Tensor, Dict[str, Any]]
    """The optimizer state of parameters that the job does not have, because they are frozen or in no group."""
    _current: Exchange

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: Model,
        session: Dict[str, Any],
        exchange: Dict[str, Any],
        broadcast_buffers: bool,
    ) -> None:
        """`session`, `exchange`: their settings."""
        # This object keeps no reference to the optimizer, so an optimizer that a script drops is freed at once, and leaves its
        # job.
        self._kind, self.model = type(optimizer), model
        self._session, self._exchange, self._broadcast_buffers = session, exchange, broadcast_buffers
        self._job, self._times = "", 0

    def first(self, optimizer: torch.optim.Optimizer) -> Exchange:
        """Joins a job with the state of torch's optimizer."""
        _leave_dropped()
        self._current = self._join(optimizer, {})
        self._job = self._current.session.job
        return self._current

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Checks, before any worker leaves the job, that a new job can have the parameters and the state.

        Raises:
            SettingsError: the state belongs to another model or optimizer; a parameter is of a type that the hub does not take.
        """
        settings = Settings.of(optimizer, self._kind)
        _keys(optimizer, self.model.trained, settings)
        from_torch(optimizer, self.model.trained, settings.optimizer)

    def again(self, optimizer: torch.optim.Optimizer, averages: Optional[Mapping[str, Array]] = None) -> Exchange:
        """Leaves the job, and joins a new job that begins with the current state of torch's optimizer, and with averages by
        key.

        Raises:
            MissingWorkersError: not all workers have made the change that needs a new job.
        """
        former = self._current
        former.leave()
        self._times += 1
        try:
            self._current = self._join(optimizer, {"job": beside(self._job, f".{self._times}")}, averages)
        except MissingWorkersError as error:
            raise MissingWorkersError(
                f"{line()}: this worker has left job {former.session.job!r} for a new job, and other workers have not: {error}. "
                f"All workers must load the optimizer's state, add groups and unfreeze parameters at the same line. Rank 0 alone "
                f"can load a state only before DistributedOptimizer, if all workers have the same learning rates"
            ) from error
        self._current.continue_from(former)
        return self._current

    def leave_dropped(self) -> None:
        """Leaves the job of an optimizer that the script has dropped, now or when its last values have arrived. Until then its
        parameters wait for these values as before."""
        _DROPPED.append(self._current)
        _leave_dropped()

    def _join(
        self, optimizer: torch.optim.Optimizer, changed: Dict[str, Any], averages: Optional[Mapping[str, Array]] = None
    ) -> Exchange:
        parameters = self.model.trained
        settings = Settings.of(optimizer, self._kind)
        state = from_torch(optimizer, parameters, settings.optimizer, averages)
        self.keeps_state = bool(state_names(settings.optimizer))
        keys = _keys(optimizer, parameters, settings)
        is_on_gpu = next(iter(parameters.values())).is_cuda
        own: Dict[str, Any] = {"answers_ahead": self._exchange["overlap"], "maximize": settings.maximize}
        own["weights"] = "private" if is_on_gpu else "shared"  # the hub's pages cannot be pinned
        if self._session.get("pull") is not None:
            own["pull_layers"] = _by_module(keys)
        joined = Session(keys=keys, optimizer=settings.optimizer, state=state, **{**own, **self._session, **changed})
        try:
            if joined.rank == 0 and changed and joined.next_round != (0 if state is None else state.round):
                raise SettingsError(
                    f"job {joined.job!r} has a checkpoint at its hub, before round {joined.next_round}, of an earlier run: its "
                    f"values would replace the values with which this run continues job {self._job!r}. Give each run another "
                    f"job name (job= or PHUB_JOB), or remove the checkpoint of {joined.job!r}; to continue from it, unfreeze "
                    f"parameters and load states before DistributedOptimizer(..., job={joined.job!r})"
                )
            if state is not None and joined.rank == 0 and joined.next_round != state.round:
                warnings.warn(
                    f"job {joined.job!r} has a state at its hub already, before round {joined.next_round}, and continues "
                    f"with that state: the loaded state is not used; take another job name, or remove the hub's checkpoint",
                    stacklevel=4,
                )
            buffers = self._buffers(joined)
            others = settings.others(optimizer.param_groups, parameters)
            # Rank 0 sends the script's hyperparameters after the join, because a join has one optimizer for all keys, and a
            # job that continues from a checkpoint has the hyperparameters of the checkpoint.
            if joined.is_first and (joined.next_round > 0 or others):
                multipliers = by_key(settings.groups, optimizer.param_groups, parameters)
                joined.set_optimizer(settings.optimizer, multipliers, groups=others)
            exchange = Exchange(joined, self.model, settings, lambda: self._join_mean(joined, keys), buffers, **self._exchange)
            exchange.start()
            if not joined.is_alone:
                exchange.asleep = Asleep(self.model, weakref.ref(optimizer))
        except BaseException as error:
            joined.close(reason(error))
            raise
        ours = {id(each) for each in parameters.values()}
        self.aside = {each: kept for each, kept in optimizer.__dict__["state"].items() if id(each) not in ours}
        optimizer.__dict__["state"].clear()  # the hub has the rest
        return exchange

    def _place(self) -> Dict[str, Any]:
        place = ("hub", "rank", "world_size", "mesh", "token")
        names = (*place, "transport", "tcp_congestion", "nics", "rails", "chunk_bytes", "checksum")
        return {name: self._session[name] for name in names if name in self._session}

    def _join_mean(self, joined: Session, keys: Dict[str, Key]) -> Session:
        """Joins the job that averages gradients."""
        limits = {"join_limit": 60.0, "wait_limit": 60.0}  # a worker that does not come is the script's mistake
        own = {"answers_ahead": self._exchange["overlap"], **limits}
        keys = {**keys, SCALES: scales_key(joined)}
        return Session(keys=keys, optimizer=Average(), job=beside(joined.job, "-mean"), **{**self._place(), **own})

    def _buffers(self, joined: Session) -> Optional[Broadcast]:
        if joined.is_alone:
            return None
        self.model.broadcast_rest(self._session, joined.job)
        if not self._broadcast_buffers:
            return None
        return Broadcast(self.model.buffers, {**self._place(), "job": beside(joined.job, "-buffers")}, Sgd(0.0))


# Exchanges of optimizers that the script has dropped.
_DROPPED: List[Exchange] = []


def _leave_dropped() -> None:
    """Leaves the jobs of dropped optimizers whose last values have arrived. So the script's line that drops an optimizer
    does not wait."""
    for exchange in list(_DROPPED):
        if exchange.is_settled and exchange in _DROPPED:
            _DROPPED.remove(exchange)
            leave_dropped(exchange.session.job, exchange.leave)


def _keys(optimizer: torch.optim.Optimizer, parameters: Dict[str, torch.nn.Parameter], settings: Settings) -> Dict[str, Key]:
    times = collections.Counter(id(each) for group in optimizer.param_groups for each in group["params"])
    repeated = next((name for name, each in parameters.items() if times[id(each)] > 1), None)
    if repeated is not None:
        raise SettingsError(
            f"parameter {repeated!r} is {times[id(parameters[repeated])]} times in the optimizer's groups: each step() of torch would change it "
            f"as often, and the hub changes it once; name each parameter once, also a weight that two modules share"
        )
    multipliers = by_key(settings.groups, optimizer.param_groups, parameters)
    return {name: Key(tuple(each.shape), dtype_of(name, each), *multipliers[name]) for name, each in parameters.items()}


def _by_module(names: Iterable[str]) -> List[List[str]]:
    """Groups parameters by module, in the order of each module's first parameter. A parameter whose name is a number is a layer
    of its own."""
    layers: Dict[str, List[str]] = {}
    for name in names:
        module, _, own = name.rpartition(".")
        layers.setdefault(name if own.isdecimal() else module, []).append(name)
    return list(layers.values())
