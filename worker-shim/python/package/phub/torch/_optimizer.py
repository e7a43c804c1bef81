"""`DistributedOptimizer`: a torch optimizer whose steps run at the hub."""

from __future__ import annotations

import weakref
from typing import Any, Iterable, Optional, Tuple, Union

import torch

from .._compression import SlimDP
from .._hub import Hub
from .._phub import SettingsError
from .._session import check_truths
from ._at_the_hub import AtTheHub
from ._errors import WrapError
from ._join import Join
from ._joined import Joined, check_step, leave_dropped, mix_in
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
    """Lets the hub make an optimizer's steps, with the mean of all workers' gradients. Returns the same optimizer object, so
    learning-rate schedulers work.

    All workers get rank 0's parameters, also the frozen parameters, and its buffers. They also get the state of rank 0's
    optimizer, if it has a state.

    A script has the same meaning as with `DistributedDataParallel`: the gradients, parameters and settings at the call of
    `step()` count. With several workers, a script that accesses gradients before `step()`, to clip or log them, gets the mean of
    all workers. `step()` does not wait for the new values. A module that is called waits for its own parameters. Other code
    waits when it reads a parameter.

    With `compression=phub.SlimDP(...)` any optimizer makes its own steps, and the hub computes the mean of the workers'
    changes. `step()` returns when the hub's values of the parameters that were sent have arrived. State, clipping and
    accumulation are as without phub. Parameters that the script writes or unfreezes later are an error at the next `step()`.

    Args:
        optimizer: `torch.optim.SGD`, `Adam` or `AdamW`, or `phub.torch.Lion`, `Lamb` or `Lars`.
        named_parameters: the model, or its `named_parameters()`, in the order of the forward pass. Every parameter of the
            optimizer must be among them. Names must be the same in all workers. Default: parameters are numbered.
        hub, rank, world_size: as for `phub.Session`; default: from the launcher's environment.
        clip_norm: the largest norm of the mean gradient of all parameters. The hub scales a longer gradient down, as
            `torch.nn.utils.clip_grad_norm_` does after DDP. A call of that function would cost an exchange of gradients, and
            `clip_norm` costs none. `grad_norm` is the norm of the last step.
        clip_value: the largest absolute value of a gradient. Each worker clips the gradients that `step()` finds, before the mean.
        backward_passes_per_step: the number of backward passes before the first `step()`. In the last pass the gradients
            are sent. If a step has another number of passes, `step()` still takes the sum of all its passes, and the next step
            expects that number.
        overlap: whether gradients are sent during the backward pass, and weights arrive during the next forward pass. If
            false, both happen in `step()`. The numbers are the same.
        broadcast_buffers: whether all workers get rank 0's buffers after each step, such as the means of a BatchNorm.
        schedule: as for `phub.Session`. With "p3" the parameters of the first layers, which are needed first, overtake the
            parameters of later layers.
        pull: as for `phub.Session`, with schedule="kvstore": parameters are pulled in batches of layers. A layer has the
            parameters of one module, by their names. The layers are in the order of `named_parameters`. From the second step
            on they are in the order in which the first training pass called the modules.
        session: more settings of `phub.Session`, such as `job`, `transport` and `compression`. With `ema=0.999` the hub keeps
            an average of the parameters, and `with optimizer.averaged():` evaluates the model with it. With
            `clip_norm_last=1.0` a step is scaled by the norm of the previous step. Its results differ from torch's
            clipping, and no parameter waits for all gradients. With `skip_nonfinite=True` a step is skipped if its
            mean gradient is not finite. The hub then does the work of torch's `GradScaler`: it unscales gradients, and finds
            values that are not finite. With `skip_spikes=3.0` a step is also skipped if its norm is above three times the
            running mean.

    Raises:
        UnsupportedOptimizerError: the hub cannot run this optimizer. The message lists the optimizers that it can run, and the
            next step.
        SettingsError: two parameters have the same name, a parameter has no name or a type that the hub does not take, or a
            setting is invalid.
        WrapError: the optimizer is already a DistributedOptimizer, or the script has replaced its `step`.
        Errors of `phub.Session`: the worker could not join.
    """
    if isinstance(optimizer, Joined):
        raise WrapError("this optimizer is a DistributedOptimizer already: wrap it once, or leave() and make another of torch's own")
    if not backward_passes_per_step >= 1 or backward_passes_per_step % 1 != 0:
        raise SettingsError(f"backward_passes_per_step is {backward_passes_per_step}: expected a whole number, 1 or more")
    check_truths(overlap=overlap, broadcast_buffers=broadcast_buffers)
    if clip_value is not None and not clip_value > 0.0:
        raise SettingsError(f"clip_value is {clip_value}: expected a number above 0; leave it out for no bound")
    if session.get("consistency", "bsp") != "bsp" or session.get("on_loss", "stop") != "stop":
        raise SettingsError("DistributedOptimizer needs consistency 'bsp' and on_loss 'stop'; for other values use phub.Session")
    slim = isinstance(session.get("compression"), SlimDP)
    if pull is not None and (slim or not overlap):
        raise SettingsError(
            f"pull={pull!r} does not work with {'SlimDP' if slim else 'overlap=False'}, which waits for all parameters in "
            f"step(): batches are for parameters that are pulled while modules compute; leave pull out"
        )
    if "pull_layers" in session:
        raise SettingsError("DistributedOptimizer takes layers from the modules; leave pull_layers out")
    if "keys" in session:
        raise SettingsError("DistributedOptimizer takes keys from the parameters; leave keys out")
    if "state" in session and not slim:
        raise SettingsError("DistributedOptimizer takes the state from the optimizer: load it by optimizer.load_state_dict")
    session.update(hub=hub, rank=rank, world_size=world_size, schedule=schedule)
    model = Model(optimizer, named_parameters)
    check_step(optimizer)
    if slim:
        if clip_value is not None or clip_norm is not None:
            raise SettingsError("with SlimDP the optimizer makes its own steps: clip gradients as without phub, before step()")
        if session.get("ema") is not None:
            raise SettingsError("with SlimDP the optimizer makes its own steps: average parameters by torch.optim.swa_utils")
        if broadcast_buffers:
            raise SettingsError(
                "broadcast_buffers=True with SlimDP: workers exchange the changes of parameters only; after a step, give all "
                "workers rank 0's buffers by phub.torch.broadcast_parameters(model.named_buffers())"
            )
        model.broadcast_rest(session)
        local = LocalExchange(model, session)
        mix_in(optimizer, StepsItself, local)
        weakref.finalize(optimizer, leave_dropped, local.session.job, local.leave).atexit = False
        return optimizer
    Settings.of(optimizer)  # raises before the worker joins, if the hub cannot run the optimizer
    session["clip_norm"] = clip_norm
    if pull is not None:
        session["pull"] = pull
    exchange = {"clip_value": clip_value, "passes": backward_passes_per_step, "overlap": overlap}
    join = Join(optimizer, model, session, exchange, broadcast_buffers)
    mix_in(optimizer, AtTheHub, join.first(optimizer))
    optimizer._phub_join = join  # type: ignore[attr-defined]
    weakref.finalize(optimizer, join.leave_dropped).atexit = False
    return optimizer

