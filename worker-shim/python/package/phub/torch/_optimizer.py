"""`DistributedOptimizer`: a torch optimizer whose steps the hub makes."""

from __future__ import annotations

import warnings
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, Union

import torch

from .._compression import SlimDP
from .._hub import Hub
from .._keys import Key
from .._optimizers import state_names
from .._phub import OrderError, SettingsError
from .._session import Session
from ._exchange import Exchange
from ._joined import Joined, mix_in
from ._local import LocalExchange, StepsItself
from ._pending import unasked
from ._settings import Settings, UnsupportedOptimizerError, by_key, dtype_of
from ._state import from_torch, to_torch

__all__ = ["DistributedOptimizer", "UnsupportedOptimizerError"]


class Join:
    """How an optimizer joins its job, and another job with a state that is loaded."""

    keeps_state: bool
    """Whether the hub keeps optimizer state."""

    def __init__(
        self,
        kind: type,
        parameters: Dict[str, torch.nn.Parameter],
        session: Dict[str, Any],
        exchange: Tuple[int, Optional[float], bool],
    ) -> None:
        """`kind`: the optimizer's own class. `session`, `exchange`: their settings."""
        self._parameters, self._session, self._exchange = parameters, session, exchange
        self._kind, self._job, self._loaded = kind, "", 0

    def first(self, optimizer: torch.optim.Optimizer) -> Exchange:
        """Joins with the state of torch's optimizer."""
        exchange = self._join(optimizer, {})
        self._job = exchange.session.job
        return exchange

    def again(self, optimizer: torch.optim.Optimizer, former: Exchange) -> Exchange:
        """Leaves the job, and joins a job that begins with the loaded state."""
        # Checked before any worker leaves: a state that does not fit does not end the job.
        try:
            from_torch(optimizer, self._parameters, Settings.of(optimizer, self._kind).optimizer)
        except BaseException:
            optimizer.state.clear()
            raise
        former.leave()
        self._loaded += 1
        return self._join(optimizer, {"job": f"{self._job[:56]}.{self._loaded}"})

    def _join(self, optimizer: torch.optim.Optimizer, changed: Dict[str, Any]) -> Exchange:
        settings = Settings.of(optimizer, self._kind)
        state = from_torch(optimizer, self._parameters, settings.optimizer)
        self.keeps_state = bool(state_names(settings.optimizer))
        multipliers = by_key(settings.groups, optimizer.param_groups, self._parameters)
        keys = {}
        for name, parameter in self._parameters.items():
            keys[name] = Key(tuple(parameter.shape), dtype_of(name, parameter), *multipliers[name])
        if self._session.get("pull") is not None:
            changed = {"pull_layers": _by_module(keys), **changed}
        joined = Session(keys=keys, optimizer=settings.optimizer, state=state, **{**self._session, **changed})
        try:
            if state is not None and joined.rank == 0 and joined.next_round != state.round:
                warnings.warn(
                    f"job {joined.job!r} has a state at its hub already, before round {joined.next_round}, and goes on "
                    f"with that: what was loaded is not used; take another job name, or remove the hub's checkpoint",
                    stacklevel=4,
                )
            exchange = Exchange(joined, self._parameters, optimizer.param_groups, settings, *self._exchange)
            exchange.start()
        except BaseException:
            joined.close()
            raise
        optimizer.state.clear()  # the hub has it
        return exchange


class _AtTheHub(Joined):
    """What changes in an optimizer when the hub makes its steps."""

    _phub: Exchange
    _phub_join: Join

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """Ends a round: sends what the backward pass has not sent. Whatever reads a parameter waits for its new values,
        a module that is called for all of its own; `synchronize` waits for all."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._phub.step()
        return loss

    def zero_grad(self, *arguments: Any, **named: Any) -> None:
        """As torch's own."""
        with unasked():  # gradients wait for nothing, and parameters need not be asked
            super().zero_grad(*arguments, **named)

    def synchronize(self) -> None:
        """Waits until all parameters are new, as reading each of them does: for code that reads past torch."""
        self._phub.synchronize()

    def state_dict(self) -> Dict[str, Any]:
        """As torch's own: the groups, and the optimizer state, which is fetched from the hub. It is the state between
        this worker's last step and its next one; the others may go on meanwhile. Not every worker need call it.

        Raises:
            RefusedError: the hubs of a job stand before different rounds, as they may unless it is "bsp".
        """
        session = self._phub.session
        if self._phub_join.keeps_state and session.next_round > 1:
            self.synchronize()
            state = session.state()
            for key, parameter in self._phub.parameters.items():
                self.state[parameter] = to_torch(state, key, parameter)
        try:
            return super().state_dict()
        finally:
            self.state.clear()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:  # type: ignore[override]
        """Takes the groups' settings, and gives the hub the state of the optimizer: every worker leaves the job, and
        joins a new job, whose name ends with a number. The new job begins with rank 0's current parameters and state.
        So load the model first, and call this on every worker. A `state_dict` without state changes the groups only.

        Raises:
            SettingsError: the state belongs to another model or optimizer.
        """
        self.synchronize()
        super().load_state_dict(state_dict)
        self._phub.groups_are(self.param_groups)
        if state_dict.get("state"):
            self._phub = self._phub_join.again(self, self._phub)


def DistributedOptimizer(  # noqa: N802, the name that users of Horovod and BytePS know
    optimizer: torch.optim.Optimizer,
    named_parameters: Optional[Iterable[Tuple[str, torch.nn.Parameter]]] = None,
    *,
    hub: Union[str, Hub, None] = None,
    rank: Optional[int] = None,
    world_size: Optional[int] = None,
    backward_passes_per_step: int = 1,
    clip_value: Optional[float] = None,
    overlap: bool = True,
    schedule: str = "p3",
    pull: Optional[str] = None,
    weights: str = "private",
    **session: Any,
) -> Any:
    """Lets the hub make an optimizer's steps, with the mean of all workers' gradients.

    The optimizer stays the object that it is, so that learning-rate schedulers, which are made after this, work.
    All workers get rank 0's parameters. They also get its optimizer's state, if a `state_dict` was loaded into it or it
    has made steps: then the hub continues from there. A gradient leaves as soon as the backward pass has computed it.
    `step()` ends the round and does not wait; each module waits for its own parameters when it is called, and so does
    any other code that reads a parameter (an average of weights, a norm, a copy). Only what torch does not see needs
    `optimizer.synchronize()` before: `detach()`, `data`, NumPy arrays and pointers that were taken in an earlier step,
    `torch.tensor(parameter)`, extensions. A gradient has left, and its parameter is new, before `step()`: what is read
    between backward pass and `step()` is the new value. Do not write parameters: the hub's values overwrite them.

    Learning rates, weight decays, momentum, betas and eps of the groups may change at any step, as schedulers do; a
    momentum from or to 0 is another optimizer, and an error. A parameter without a gradient counts
    as if its gradient were zeros: momentum and weight decay go on, unlike in torch.

    With `compression=phub.SlimDP(...)` any optimizer makes its own steps, and the hub has the mean of their changes:
    `step()` returns when the values that were sent have come back. State, clipping and accumulation are as without
    phub.

    Args:
        optimizer: `torch.optim.SGD`, with momentum and Nesterov or without, `Adam` or `AdamW`.
        named_parameters: `model.named_parameters()`, in the order of the forward pass; every parameter of the
            optimizer must be among them. Names must be the same in all workers. Default: numbers.
        hub, rank, world_size: as for `phub.Session`; default: from the launcher's environment.
        backward_passes_per_step: gradients of so many backward passes are summed, and leave with the last one.
        clip_value: each worker's gradients are clipped to plus and minus this, before the sum.
        overlap: without it `step()` waits for all parameters.
        schedule: as for `phub.Session`. "p3" lets the first layers' parameters, which are needed first, overtake.
        pull: as for `phub.Session`, with schedule="kvstore": parameters are pulled in batches of modules. Parameters of
            one module, by their names, are a layer. Layers are in the order of `named_parameters`, and from the second
            step on in the order in which the first training pass has called the modules.
        weights: "private": parameters lie in memory of this worker, filled as answers come. "shared": they lie where
            the hub writes them, which saves the copy; a write to a parameter then crashes the process. For parameters
            on a GPU "private" is faster: the hub's memory is not pinned.
        session: more settings of `phub.Session`, such as `job`, `on_loss`, `transport`.

    Raises:
        UnsupportedOptimizerError: the hub cannot run it; the message says which it can run, and what to do.
        SettingsError: two parameters of one name, a parameter without a name, a type that the hub does not take.
    """
    if "step" in vars(optimizer):
        raise OrderError("make learning-rate schedulers after DistributedOptimizer: this optimizer has one already")
    if backward_passes_per_step < 1:
        raise SettingsError(f"backward_passes_per_step is {backward_passes_per_step}; expected 1 or more")
    if session.get("consistency", "bsp") != "bsp" or session.get("on_loss", "stop") != "stop":
        raise SettingsError("DistributedOptimizer trains in step (consistency 'bsp', on_loss 'stop'); see phub.Session")
    slim = isinstance(session.get("compression"), SlimDP)
    if pull is not None and (slim or not overlap):
        raise SettingsError(
            f"pull={pull!r} with {'SlimDP' if slim else 'overlap=False'}, which waits for all parameters in step(): "
            f"batches are for parameters that are pulled while modules compute; leave pull out"
        )
    if "pull_layers" in session:
        raise SettingsError("pull_layers: DistributedOptimizer takes layers from the modules; leave them out")
    session["pull"] = pull
    if slim:
        if backward_passes_per_step > 1 or clip_value is not None:
            raise SettingsError(
                "with SlimDP the optimizer makes its own steps: sum gradients of several backward passes and clip them as "
                "without phub, before step()"
            )
        parameters = _named(optimizer, named_parameters)
        session.update(hub=hub, rank=rank, world_size=world_size, schedule=schedule)
        mix_in(optimizer, StepsItself, LocalExchange(parameters, session))
        return optimizer
    Settings.of(optimizer)  # first the error that the hub cannot run it
    parameters = _named(optimizer, named_parameters)
    session.update(hub=hub, rank=rank, world_size=world_size, schedule=schedule, weights=weights)
    join = Join(type(optimizer), parameters, session, (backward_passes_per_step, clip_value, overlap))
    mix_in(optimizer, _AtTheHub, join.first(optimizer))
    optimizer._phub_join = join  # type: ignore[attr-defined]
    return optimizer


def _by_module(names: Iterable[str]) -> List[List[str]]:
    """Parameters of one module together, in the order of its first parameter. A number is a layer by itself."""
    layers: Dict[str, List[str]] = {}
    for name in names:
        module, _, own = name.rpartition(".")
        layers.setdefault(name if own.isdecimal() else module, []).append(name)
    return list(layers.values())


def _named(
    optimizer: torch.optim.Optimizer, named: Optional[Iterable[Tuple[str, torch.nn.Parameter]]]
) -> Dict[str, torch.nn.Parameter]:
    """The optimizer's parameters by name, in the order of `named`: without frozen ones, and shared ones once."""
    mine = {id(each): each for group in optimizer.param_groups for each in group["params"]}
    if named is None:
        named = ((f"parameter.{number}", each) for number, each in enumerate(mine.values()))
    found: Dict[str, torch.nn.Parameter] = {}
    seen: Dict[int, str] = {}
    for name, parameter in named:
        if name in found and found[name] is not parameter:
            raise SettingsError(f"named_parameters: two parameters are called {name!r}")
        if id(parameter) in mine and id(parameter) not in seen:
            seen[id(parameter)] = name
            if parameter.requires_grad:
                found[name] = parameter
    if len(seen) < len(mine):
        number = next(number for number, each in enumerate(mine) if each not in seen)
        raise SettingsError(
            f"named_parameters: {len(mine) - len(seen)} of the optimizer's {len(mine)} parameters have no name there, "
            f"first its number {number}, of shape {tuple(mine[list(mine)[number]].shape)}"
        )
    if not found:
        raise SettingsError("the optimizer has no parameter that requires a gradient")
    devices = {str(parameter.device) for parameter in found.values()}
    if len(devices) > 1:
        raise SettingsError(f"parameters are on several devices ({', '.join(sorted(devices))}); expected one")
    return found
