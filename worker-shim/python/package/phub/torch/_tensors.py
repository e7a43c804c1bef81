"""Tensors and numbers that all workers share outside of training."""

from __future__ import annotations

import itertools
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple, Union

import numpy as np
import torch

from .._hub import Hub
from .._keys import Key
from .._launch import worker
from .._optimizers import Average, Sgd
from .._session import Session
from ._settings import DTYPES
from ._windows import tensor as window

# Every worker makes the same calls in the same order, so the number of a call is the same everywhere.
_CALLS = itertools.count()



def _job(what: str) -> str:
    return f"{worker().job[:40]}-{what}-{next(_CALLS)}"


def broadcast_parameters(
    parameters: Union[Mapping[str, torch.Tensor], Iterable[Tuple[str, torch.Tensor]]],
    *,
    hub: Union[str, Hub, None] = None,
    rank: Optional[int] = None,
    world_size: Optional[int] = None,
    **session: Any,
) -> None:
    """Gives every worker rank 0's tensors, exactly, in place: a `model.state_dict()`, or `named_parameters()`.

    `DistributedOptimizer` does so with its parameters; this is for the rest, such as the means of a BatchNorm. Every
    worker calls it, with the same names, shapes and types. Integers, f64 and bool are taken apart for the way.

    Args:
        parameters: tensors by name.
        hub, rank, world_size, session: as for `phub.Session`.
    """
    tensors = dict(parameters.items() if isinstance(parameters, Mapping) else parameters)
    if not tensors:
        return
    keys = {
        name: Key(tuple(each.shape), DTYPES[each.dtype]) if each.dtype in DTYPES else Key(_pieces(each).shape)
        for name, each in tensors.items()
        if each.numel() > 0
    }
    settings: Dict[str, Any] = {"job": _job("broadcast"), **session}
    with Session(hub, rank, world_size, keys=keys, optimizer=Sgd(0.0), **settings) as joined:
        if joined.rank == 0:
            for name in keys:
                if tensors[name].dtype in DTYPES:
                    window(joined, name, "gradient").copy_(tensors[name].detach())
                else:
                    np.copyto(joined.gradient(name), _pieces(tensors[name]))
        joined.broadcast()
        with torch.no_grad():
            for name in keys:
                each = tensors[name]
                if each.dtype in DTYPES:
                    each.copy_(window(joined, name, "weights"))
                else:
                    each.copy_(_whole(joined.weights(name), each))


def _pieces(tensor: torch.Tensor) -> "np.ndarray[Any, Any]":
    """A tensor's bytes, two in each number."""
    raw = tensor.detach().cpu().contiguous().numpy().tobytes()
    return np.frombuffer(raw + b"\0" * (len(raw) % 2), np.uint16).astype(np.float32)


def _whole(pieces: "np.ndarray[Any, Any]", like: torch.Tensor) -> torch.Tensor:
    kind = like.detach().cpu().numpy().dtype
    raw = pieces.astype(np.uint16).tobytes()[: like.numel() * like.element_size()]
    return torch.from_numpy(np.frombuffer(raw, kind).reshape(tuple(like.shape)).copy())


def allreduce_metrics(
    metrics: Mapping[str, float],
    *,
    hub: Union[str, Hub, None] = None,
    rank: Optional[int] = None,
    world_size: Optional[int] = None,
    **session: Any,
) -> Dict[str, float]:
    """The mean over all workers of each number, in f32: losses, accuracies. Every worker calls it, with the same names.

    Args:
        metrics: numbers by name.
        hub, rank, world_size, session: as for `phub.Session`.
    """
    names: List[str] = sorted(metrics)
    if not names:
        return {}
    settings: Dict[str, Any] = {"job": _job("metrics"), **session}
    keys = {name: (1,) for name in names}
    with Session(hub, rank, world_size, keys=keys, optimizer=Average(), **settings) as joined:
        means = joined.average({name: [float(metrics[name])] for name in names})
    return {name: float(means[name][0]) for name in metrics}
