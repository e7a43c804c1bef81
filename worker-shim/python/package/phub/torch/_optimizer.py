"""`DistributedOptimizer`: a torch optimizer whose steps the hub makes."""

from __future__ import annotations

import weakref
from typing import Any, Iterable, Optional, Tuple, Union

import torch

from .._compression import SlimDP
from .._hub import Hub
from .._phub import SettingsError
from ._at_the_hub import AtTheHub
from ._errors import WrapError
from ._join import Join
from ._joined import Joined, leave_dropped, mix_in
from ._local import LocalExchange, StepsItself
from ._model import Model
from ._settings import Settings, UnsupportedOptimizerError

__all__ = ["DistributedOptimizer", "UnsupportedOptimizerError"]


def DistributedOptimizer(  # noqa: N802, the name that users of Horovod and BytePS know
    optimizer: torch.optim.Optimizer,
    named_parameters: Union[torch.nn.Module, Iterable[Tuple[str, torch.nn.Parameter]], None] = None,
    *,
    hub: Union[str, Hub, None] = None,
    rank: Optional[int] = None,
    world_size: Optional[int] = None,
    clip_norm: Optional[float] = None,
    clip_value: Optional[float] = None,
    backward_passes_per_step: int = 1,
    overlap: bool = True,
    broadcast_buffers: bool = False,
    schedule: str = "p3",
    pull: Optional[str] = None,
    **session: Any,
) -> Any:
    """Lets the hub make an optimizer's steps, with the mean of all workers' gradients.

    The optimizer stays the object that it is, so learning-rate schedulers work. All workers get
    rank 0's parameters, frozen ones and buffers among them, and its optimizer's state, if it has some.

    A script has the same meaning as with `DistributedDataParallel`: the gradients, parameters and settings that `step()`
    finds are those that count. With several workers a script that touches gradients before `step()`, to clip them or for a
    log, finds the mean of all workers. `step()` does not wait for the new values; a module that is called waits for its own,
    and so does any other code that reads a parameter.

    With `compression=phub.SlimDP(...)` any optimizer makes its own steps, and the hub has the mean of their changes: `step()` returns
    when the values that were sent have come back. State, clipping and accumulation are as without phub.

    Args:
        optimizer: `torch.optim.SGD`, `Adam` or `AdamW`, or `phub.torch.Lion`.
        named_parameters: the model, or its `named_parameters()`, in the order of the forward pass; every parameter of the optimizer
            must be among them. Names must be the same in all workers. Default: numbers.
        hub, rank, world_size: as for `phub.Session`; default: from the launcher's environment.
        clip_norm: the hub scales the mean gradient of all parameters so that its norm is at most this, as
            `torch.nn.utils.clip_grad_norm_` does after DDP, and without the exchange of gradients that this call costs.
            `grad_norm` is the norm of the last step. With `skip_nonfinite=True` a step whose mean gradient is not finite is
            left out. The hub does the work of torch's `GradScaler`: it unscales gradients, and finds those that are not
            finite.
        clip_value: each worker's gradients, as `step()` finds them, are clipped to plus and minus this, before the mean.
        backward_passes_per_step: after how many backward passes bytes leave in the first step. `step()` takes the sum of as many as
            there were, and the next step's bytes leave after as many.
        overlap: whether bytes of gradients leave in the backward pass, and weights come in the next forward pass. Without it all
            happens in `step()`. The numbers are the same.
        broadcast_buffers: whether all workers get rank 0's buffers after each step, such as the means of a BatchNorm.
        schedule: as for `phub.Session`. "p3" lets the first layers' parameters, which are needed first, overtake.
        pull: as for `phub.Session`, with schedule="kvstore": parameters are pulled in batches of modules. Parameters of
            one module, by their names, are a layer. Layers are in the order of `named_parameters`. From the second step
            on they are in the order in which the first training pass has called the modules.
        session: more settings of `phub.Session`, such as `job`, `transport`, `compression`. With `ema=0.999` the hub keeps an average
            of the parameters, and `with optimizer.averaged():` evaluates the model with it. With
            `clip_norm_last=1.0` a step is scaled by the norm of the step before: it is not torch's clipping, and no parameter waits for
            the gradients of all. With `skip_spikes=3.0` a step is left out whose norm is above three times the running mean.

    Raises:
        UnsupportedOptimizerError: the hub cannot run it; the message says which it can run, and the next step.
        SettingsError: two parameters of one name, a parameter without a name, a type that the hub does not take.
    """
    if isinstance(optimizer, Joined):
        raise WrapError("this optimizer is a DistributedOptimizer already: wrap it once, or leave() and make another of torch's own")
    if backward_passes_per_step < 1:
        raise SettingsError(f"backward_passes_per_step is {backward_passes_per_step}: expected 1 or more")
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
    session.update(hub=hub, rank=rank, world_size=world_size, schedule=schedule)
    model = Model(optimizer, named_parameters)
    if slim:
        if clip_value is not None or clip_norm is not None:
            raise SettingsError("with SlimDP the optimizer makes its own steps: clip gradients as without phub, before step()")
        if session.get("ema") is not None:
            raise SettingsError("with SlimDP the optimizer makes its own steps: average parameters by torch.optim.swa_utils")
        model.broadcast_rest(session)
        local = LocalExchange(model.trained, session)
        mix_in(optimizer, StepsItself, local)
        weakref.finalize(optimizer, leave_dropped, local.session.job, local.leave).atexit = False
        return optimizer
    Settings.of(optimizer)  # first the error that the hub cannot run it
    session["clip_norm"] = clip_norm
    if pull is not None:
        session["pull"] = pull
    exchange = {"clip_value": clip_value, "passes": backward_passes_per_step, "overlap": overlap}
    join = Join(optimizer, model, session, exchange, broadcast_buffers)
    mix_in(optimizer, AtTheHub, join.first(optimizer))
    optimizer._phub_join = join  # type: ignore[attr-defined]
    weakref.finalize(optimizer, join.leave_dropped).atexit = False
    return optimizer

