"""A job's weights for programs that do not train: a new version every few seconds."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Dict, Iterator, Mapping, Optional, Tuple, Union

import numpy as np
import numpy.typing as npt

from . import _phub
from ._session import check_truths

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]
# The names of tensors, by the job's keys. `subscribe` describes the entries.
Names = Mapping[str, Union[str, Mapping[str, Any]]]


class Version(Mapping[str, Array]):
    """All weights of one round, as read-only arrays by name. The arrays never change: each version has its own memory.

    NumPy has no bf16: with `dtype="bf16"` the arrays are uint16 with the bits, and `load_into` converts them.

    Attributes:
        job: the name of the job.
        round: the round before which the job had these weights.
        id: the number of the version in its directory; None for a version from a hub.
        skipped: the number of versions that this reader has missed since its last version, in a directory or with `each`.
    """

    def __init__(self, native: _phub.Version) -> None:
        self._native = native
        self._names = native.names
        self.job: str = native.job
        self.round: int = native.round
        self.id: Optional[int] = native.id
        self.skipped: int = native.skipped

    def __getitem__(self, name: str) -> Array:
        return np.asarray(self._native.tensor(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        number = "" if self.id is None else f" {self.id}"
        return f"<version{number} of job {self.job!r}: {len(self)} tensors before round {self.round}>"

    def dtype(self, name: str) -> str:
        """Returns the type of the tensor with this name: "f32", "bf16" or "f16"."""
        return self._native.tensor(name).dtype

    def load_into(self, target: Union["torch.nn.Module", Mapping[str, "torch.Tensor"]]) -> None:
        """Copies all weights into a module, or into the tensors of a `state_dict`. Each weight is converted to the type and the
        device of its tensor.

        All names, shapes and values are checked before the first copy, so an error leaves the target unchanged. Every parameter of a
        module, or every entry of a mapping, must be in the version. A module's buffers may be missing in the version.

        Raises:
            SettingsError: a name is only in the version or only in the target, or a shape differs. A tensor has no memory of
                its own, an integer type, or a type that rounds a weight to infinity.
        """
        import torch

        wanted, there = _tensors_of(target)
        missing = sorted(set(wanted) - set(self._names))
        unknown = sorted(set(self._names) - set(there))
        if missing or unknown:
            raise _phub.SettingsError(
                f"{self!r}: the target has no {_few(unknown)}, and the version has no {_few(missing)}; "
                "give `names`, which maps the job's keys to the target's names"
            )
        at: Dict[Tuple[Any, int], str] = {}
        for name in self._names:
            to, values = there[name], self[name]
            if tuple(to.shape) != values.shape:
                raise _phub.SettingsError(
                    f"{name!r}: the version has the shape {values.shape}, and the target has the shape {tuple(to.shape)}"
                )
            check_target(name, to, _as_torch(values, self.dtype(name)))
            other = at.setdefault((to.device, to.data_ptr()), name)
            if other != name and not np.array_equal(self[other], values):
                raise _phub.SettingsError(
                    f"{name!r} and {other!r} are different in the version, and one tensor in the target: give each name its own tensor"
                )
        with torch.no_grad():
            for name in self._names:
                there[name].copy_(_as_torch(self[name], self.dtype(name)))


def check_target(name: str, to: "torch.Tensor", values: "torch.Tensor") -> None:
    """Checks that a tensor can take weights. Torch itself would copy nothing to a tensor without memory, round weights to
    integers, and round large weights to infinity, without an error.

    Raises:
        SettingsError: the tensor has no memory of its own, or its type cannot hold the weights.
    """
    import torch

    if to.is_meta:
        raise _phub.SettingsError(f"{name!r} has no values (device 'meta'): call to_empty before weights are loaded")
    if not to.is_floating_point():
        raise _phub.SettingsError(f"{name!r} is of type {to.dtype}, which cannot hold weights; expected a floating-point type")
    if to.layout != torch.strided or repeats_elements(to):
        raise _phub.SettingsError(f"{name!r} is sparse, or repeats elements (expand): expected a dense tensor, such as its clone()")
    if torch.finfo(to.dtype).max < torch.finfo(values.dtype).max:
        lost = values[torch.isinf(values.to(to.dtype)) & torch.isfinite(values)]
        if lost.numel() > 0:
            raise _phub.SettingsError(
                f"{name!r} has the weight {float(lost[0]):g}, which {to.dtype} rounds to infinity: give the target another type"
            )


def repeats_elements(tensor: "torch.Tensor") -> bool:
    """Whether a tensor has an element several times, as the results of `expand` have. Torch refuses to copy to such a tensor."""
    return any(size > 1 and step == 0 for size, step in zip(tensor.shape, tensor.stride()))


def _tensors_of(target: Any) -> Tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Returns the tensors that must be in a version, and the tensors that may be in a version, by name."""
    if isinstance(target, Mapping):
        return target, target
    # If two layers share a parameter, the hub has it once, by its first name. `named_parameters` has it once, too.
    return dict(target.named_parameters()), target.state_dict(keep_vars=True)


def _as_torch(values: Array, dtype: str) -> Any:
    import torch

    # The values are copied, because torch warns about memory that is not writable.
    bits = np.array(values, copy=True)
    if dtype != "bf16":
        return torch.from_numpy(bits)
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def _few(names: Any) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return f"[{shown}{', ...' if len(names) > 3 else ''}] ({len(names)})"


class Subscription(Iterator[Version]):
    """An iterator over the versions of a job's weights. `subscribe` returns it."""

    def __init__(self, native: _phub.Follower) -> None:
        self._native = native

    def __next__(self) -> Version:
        version = self._native.next()
        if version is None:
            raise StopIteration
        return Version(version)

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forget(self) -> None:
        """Forgets the last version, so that the next version may be the same."""
        self._native.forget()

    def close(self) -> None:
        """Ends the subscription. Another thread that waits for the next version then stops waiting."""
        self._native.close()


def subscribe(
    hub: Optional[str] = None,
    job: Optional[str] = None,
    *,
    directory: Union[str, "os.PathLike[str]", None] = None,
    every: Optional[float] = None,
    each: Optional[int] = None,
    timeout: Optional[float] = None,
    dtype: Optional[str] = None,
    ema: bool = False,
    names: Optional[Names] = None,
    token: Optional[str] = None,
    fetch_deltas: bool = False,
    hub_wait: float = 300.0,
) -> Subscription:
    """Follows the weights of a job while it trains, from its hub or from a directory of `phub-server publish`.

        with phub.subscribe("hub:7077", "job", every=60) as versions:
            for version in versions:
                version.load_into(model)
                evaluate(model, version.round)

    A version has all weights of one round. The iterator returns a version when all its bytes have arrived and its checksums are
    right. No worker waits for the reader. A slow reader gets the newest version next, and misses the versions between. While the
    hub or the job is away, the iterator waits. The iterator ends when the job ends. A directory has no end: use `timeout` or
    `close()`.

    Args:
        hub: the address of the hub's control port, `host:port`. For a job over several hubs: all addresses, with commas
            between them.
        job: the name of the job.
        directory: a directory that `phub-server publish` writes, in place of a hub and a job.
        every: the shortest time from one version to the next, in seconds. Default: 10.
        each: a number, in place of `every`. A hub then sends the weights before each round that is a multiple of `each`. A
            directory gives the versions whose numbers are multiples of `each`, the oldest first.
        timeout: the longest time to wait for one version after the time of `every`, in seconds. Default: no limit.
        dtype: the type of the arrays: "f32", "bf16" or "f16", each weight rounded to the nearest number. Default: "f32". Not
            for a directory, whose versions already have a type.
        ema: whether to follow the averages of the weights, in a job with `ema`. Not for a directory.
        names: names of tensors in the version, by the job's keys: {"the job's key": "the name in the version"}. A tensor has its
            own type with {"the job's key": {"name": "the name in the version", "dtype": "f32"}}. A key is cut along its first
            dimension with {"key": {"split": [{"name": "tensor", "shape": [2, 3]}, ...]}}. Keys are joined with {"tensor":
            {"join": ["key", ...], "shape": [4, 3]}}. Default: the job's keys. Not for a directory, whose versions already have
            names.
        token: a secret, or a token that allows to read the job. Default: from the environment or this user's file.
        fetch_deltas: whether to get only the differences from the last version, if the hub has them. This needs memory for two
            versions here, and for up to two at the hub. Use it with a network that is slower than some 4 Gb/s. Not for a
            directory.
        hub_wait: the longest time to wait for a hub that is away, or for its job after the hub has returned, in seconds.

    Raises:
        UnreachableError: there was no version within `timeout`, or no hub within `hub_wait`.
        SettingsError: an argument is invalid, or two arguments exclude each other.
        RefusedError: the hub refuses the token, or keeps no weights of the job.
        ProtocolError: a version is damaged. The next call waits for a newer version.
    """
    for name, value, expected in (("hub", hub, "'host:port'"), ("job", job, "a name"), ("dtype", dtype, "'f32', 'bf16' or 'f16'")):
        if not isinstance(value, (str, type(None))):
            raise _phub.SettingsError(f"{name} is {value!r:.60}: expected {expected}, as a text")
    check_truths(ema=ema, fetch_deltas=fetch_deltas)
    if directory is not None:
        if hub is not None or job is not None or dtype is not None or ema or names is not None or token is not None or fetch_deltas:
            raise _phub.SettingsError(
                "the publisher of a directory has chosen the job, names and type: give no hub, job, dtype, ema, names, token or fetch_deltas with it"
            )
        return Subscription(_phub.Follower.of_directory(os.fspath(directory), every, each, timeout))
    if hub is None or job is None:
        raise _phub.SettingsError("expected a hub and a job, or a directory")
    lines = json.dumps(dict(names or {}), default=dict)
    native = _phub.Follower.of_hub(hub, job, dtype or "f32", bool(ema), lines, token, bool(fetch_deltas), hub_wait, every, each, timeout)
    return Subscription(native)
