"""The exchange of tensors and numbers outside of training: `broadcast_parameters` and `allreduce_metrics`."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple, Union

import numpy as np
import torch

from .._follow import repeats_elements
from .._hub import Hub
from .._keys import Key
from .._optimizers import Sgd, Sum
from .._phub import SettingsError
from .._run import Helper, beside
from .._session import Session
from ._settings import DTYPES
from ._windows import tensor as window


_OTHERS = "leave it out, and send rank 0's value to other ranks by torch.distributed.broadcast_object_list"


def broadcast_parameters(
    parameters: Union[Mapping[str, torch.Tensor], Iterable[Tuple[str, torch.Tensor]]],
    *,
    hub: Union[str, Hub, None] = None,
    rank: Optional[int] = None,
    world_size: Optional[int] = None,
    **session: Any,
) -> None:
    """Replaces the tensors of every worker by rank 0's tensors, in place and bit for bit; only a signalling NaN becomes a quiet
    NaN. Every worker must call it, with the same names, shapes and types.

    `DistributedOptimizer` broadcasts the parameters of a model itself. This function is for other tensors, such as the means of
    a BatchNorm. All types are possible: integers, f64 and bool are split into smaller numbers for the transfer.

    Args:
        parameters: tensors by name, such as `model.state_dict()`, or pairs such as `model.named_parameters()`.
        hub, rank, world_size, session: as for `phub.Session`.

    Raises:
        SettingsError: a value is not a dense tensor of numbers, such as a module's extra state.
    """
    tensors = dict(parameters.items() if isinstance(parameters, Mapping) else parameters)
    for name, each in tensors.items():
        if not isinstance(each, torch.Tensor):
            raise SettingsError(f"broadcast_parameters: {name!r} is {each!r:.60}; expected a tensor: {_OTHERS}")
        if each.layout != torch.strided or each.is_quantized or each.is_meta:
            kind = "quantized" if each.is_quantized else "without values (device 'meta')" if each.is_meta else each.layout
            raise SettingsError(f"broadcast_parameters: {name!r} is {kind}; expected a dense tensor of numbers: {_OTHERS}")
        if repeats_elements(each):
            raise SettingsError(
                f"broadcast_parameters: {name!r} has elements that share memory (expand); expected separate memory for each element: use its clone()"
            )
    settings = {"job": Helper("broadcast"), "hub": hub, "rank": rank, "world_size": world_size, **session}
    Broadcast(tensors, settings, Sum()).leave()  # `Sum`, because a hub writes no checkpoint of such a job


class Broadcast:
    """A job that gives all workers rank 0's tensors, once or several times."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], settings: Mapping[str, Any], optimizer: Union[Sum, Sgd]) -> None:
        """Joins a job, and gives every worker rank 0's tensors.

        Args:
            tensors: the tensors by name, which are replaced in place.
            settings: the settings of the session.
            optimizer: `Sum()` for tensors that are given once. `Sgd(0.0)` for tensors that the hub keeps, for a job that
                continues later.
        """
        self._settings, self._optimizer, self._times = settings, optimizer, 0
        self._tensors: Dict[str, torch.Tensor] = {}
        self._keys: Dict[str, Key] = {}
        self._session: Optional[Session] = None
        self._join(tensors, settings)

    def _join(self, tensors: Mapping[str, torch.Tensor], settings: Mapping[str, Any]) -> None:
        self._tensors, self._keys = _filled(tensors), _keys(_filled(tensors))
        if not self._tensors:
            return
        self._session = Session(keys=self._keys, optimizer=self._optimizer, **settings)
        try:
            self._write(self._session)
            self._session.broadcast()
            self._read(self._session)
        except BaseException:
            self._session.close()
            raise

    def again(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Gives every worker the values that rank 0's tensors have now. A script may have put other tensors in the place of
        the former tensors. If names, shapes or types have changed, every worker joins another job."""
        if _keys(_filled(tensors)) != self._keys:
            self.leave()
            self._times += 1
            self._join(tensors, {**self._settings, "job": beside(self._settings["job"], f".{self._times}")})
        self._tensors = _filled(tensors)
        if self._session is not None:
            self._write(self._session)
            self._session.push_weights(*self._tensors)
            self._session.wait()
            self._read(self._session)

    def _write(self, session: Session) -> None:
        if session.rank != 0:
            return
        for name, each in self._tensors.items():
            if each.dtype in DTYPES:
                window(session, name, "gradient").copy_(torch.Tensor.detach(each))
            else:
                np.copyto(session.gradient(name), _pieces(each))

    def _read(self, session: Session) -> None:
        with torch.no_grad():
            for name, each in self._tensors.items():
                whole = window(session, name, "weights") if each.dtype in DTYPES else _whole(session.weights(name), each)
                each.copy_(whole)

    def leave(self) -> None:
        """Leaves the job."""
        session, self._session = self._session, None
        if session is not None:
            session.leave()


def _filled(tensors: Mapping[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
    """Returns the tensors that have elements, by key. If a tensor is sent in pieces of another type, its key names the tensor's
    own type. So a worker whose tensor has another type cannot join."""
    return {
        name if each.dtype in DTYPES else f"{name} ({each.dtype})": each for name, each in tensors.items() if each.numel() > 0
    }


def _keys(tensors: Mapping[str, torch.Tensor]) -> Dict[str, Key]:
    return {
        name: Key(tuple(each.shape), DTYPES[each.dtype])
        if each.dtype in DTYPES
        else Key(((each.numel() * each.element_size() + 1) // 2,))  # that of `_pieces`
        for name, each in tensors.items()
    }


def _pieces(tensor: torch.Tensor) -> "np.ndarray[Any, Any]":
    """Returns a tensor's bytes as f32 numbers: one number for each two bytes."""
    copied = torch.Tensor.detach(tensor).cpu().clone(memory_format=torch.contiguous_format)  # `numpy()` forbids `resize_`
    raw = copied.numpy().tobytes()
    return np.frombuffer(raw + b"\0" * (len(raw) % 2), np.uint16).astype(np.float32)


def _whole(pieces: "np.ndarray[Any, Any]", like: torch.Tensor) -> torch.Tensor:
    kind = torch.empty(0, dtype=like.dtype, device="cpu").numpy().dtype
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
    """Returns the mean of each number over all workers, such as losses and accuracies. Every worker must call it, with the same
    names. The sum before the division is in f32, so it is exact for whole numbers below 2^24.

    Args:
        metrics: numbers by name.
        hub, rank, world_size, session: as for `phub.Session`.
    """
    names: List[str] = sorted(metrics)
    if not names:
        return {}
    settings: Dict[str, Any] = {"job": Helper("metrics"), **session}
    keys = {name: (2,) for name in names}  # a number, and a one for each worker: `world_size` may be that of one machine
    with Session(hub, rank, world_size, keys=keys, optimizer=Sum(), **settings) as joined:
        sums = joined.average({name: [float(metrics[name]), 1.0] for name in names})
    return {name: float(sums[name][0]) / float(sums[name][1]) for name in metrics}
