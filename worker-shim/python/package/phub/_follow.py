"""Versions of a job's weights, for programs that do not train."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Dict, Iterator, Mapping, Optional, Tuple, Union

import numpy as np
import numpy.typing as npt

from . import _phub

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]


class Version(Mapping[str, Array]):
    """All weights of one round, as read-only arrays by name. They do not change, and each version has its own memory.

    NumPy has no bf16: `dtype="bf16"` gives the bits as uint16. `load_into` knows them.

    Attributes:
        job: the job.
        round: they are the weights before this round.
        id: the number of the version in its directory; None from a hub.
        skipped: the versions of the directory between the one before and this one, which this reader has not seen; 0 from a hub.
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
        """Returns the type of a tensor: "f32", "bf16" or "f16"."""
        return self._native.tensor(name).dtype

    def load_into(self, target: Union["torch.nn.Module", Mapping[str, "torch.Tensor"]]) -> None:
        """Copies all weights into a module, or the tensors of a `state_dict`, each to its tensor's own type and device.

        The names and shapes are compared first: after an error nothing has changed. A module's parameters must be exactly the
        version's tensors, but its buffers need not be there. Of a mapping it is all entries.

        Raises:
            SettingsError: a name is on one side alone, or a shape differs.
        """
        import torch

        wanted, there = _tensors_of(target)
        missing = sorted(set(wanted) - set(self._names))
        unknown = sorted(set(self._names) - set(there))
        if missing or unknown:
            raise _phub.SettingsError(
                f"{self!r}: the target has no {_few(unknown)}, and the version has no {_few(missing)}; "
                "give `names`, from the job's keys to the target's names"
            )
        pairs = []
        for name in self._names:
            to, values = there[name], self[name]
            if tuple(to.shape) != values.shape:
                raise _phub.SettingsError(
                    f"{name!r}: the version has the shape {values.shape}, and the target {tuple(to.shape)}"
                )
            pairs.append((name, to, values))
        with torch.no_grad():
            for name, to, values in pairs:
                to.copy_(_as_torch(values, self.dtype(name)))


def _tensors_of(target: Any) -> Tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Returns the tensors that must be in a version, and those that may be."""
    if isinstance(target, Mapping):
        return target, target
    # A parameter that two layers share has one name at the hub.
    return dict(target.named_parameters()), target.state_dict(keep_vars=True)


def _as_torch(values: Array, dtype: str) -> Any:
    import torch

    # Torch wants writable memory, although it only reads here. Scalars have another kind of array.
    bits = np.array(values, copy=True)
    if dtype != "bf16":
        return torch.from_numpy(bits)
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def _few(names: Any) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return f"[{shown}{', ...' if len(names) > 3 else ''}] ({len(names)})"


class Subscription(Iterator[Version]):
    """The versions of a job's weights, one after the other: `subscribe` makes it."""

    def __init__(self, native: _phub.Follower, every: float, timeout: Optional[float]) -> None:
        self._native = native
        self._every = every
        self._timeout = timeout

    def __next__(self) -> Version:
        version = self._native.next(self._every, self._timeout)
        if version is None:
            raise StopIteration
        return Version(version)

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the subscription, also while another thread waits for the next version."""
        self._native.close()


def subscribe(
    hub: Optional[str] = None,
    job: Optional[str] = None,
    *,
    directory: Union[str, "os.PathLike[str]", None] = None,
    every: float = 10.0,
    timeout: Optional[float] = None,
    dtype: Optional[str] = None,
    ema: bool = False,
    names: Optional[Mapping[str, str]] = None,
    token: Optional[str] = None,
    hub_wait: float = 300.0,
) -> Subscription:
    """Follows the weights of a job while it trains, from its hub or from a directory of `phub-server publish`.

        with phub.subscribe("hub:7077", "job", every=60) as versions:
            for version in versions:
                version.load_into(model)
                evaluate(model, version.round)

    A version has all weights of one round, and is shown when all of it is here and its checksums fit. No worker waits for it.
    A reader that is slow gets the newest one next. It waits for a hub or a job that is away, and ends with the job. A directory
    has no end: use `timeout` or `close()`.

    Args:
        hub: the hub's control port, host:port; of a job over several hubs all of them, with commas between them.
        job: the job.
        directory: in place of a hub and a job, the directory.
        every: the least seconds from one version to the next.
        timeout: the most seconds that one version may take; without it, any time.
        dtype: "f32" (the default), "bf16" or "f16": the nearest to each weight. A directory has its own.
        ema: the averages of the weights, of a job with `ema`.
        names: other names, by key: {"the job's key": "the name in the version"}. A directory has its own.
        token: a secret or a token that allows to read the job; by default that of the environment or this user's file.
        hub_wait: the most seconds to wait for a hub that is away, or that is back without its job.

    Raises:
        UnreachableError: no version within `timeout`, or no hub within `hub_wait`.
        SettingsError: what is asked for cannot be.
        RefusedError: the hub refuses the token.
        ProtocolError: a version is damaged. The next call waits for a newer one.
    """
    if directory is not None:
        if hub is not None or job is not None or dtype is not None or ema or names is not None or token is not None:
            raise _phub.SettingsError(
                "a directory has the job, names and type of its publisher: give no hub, job, dtype, ema, names or token with it"
            )
        return Subscription(_phub.Follower.of_directory(os.fspath(directory)), every, timeout)
    if hub is None or job is None:
        raise _phub.SettingsError("expected a hub and a job, or a directory")
    pairs: Dict[str, str] = dict(names or {})
    native = _phub.Follower.of_hub(hub, job, dtype or "f32", ema, list(pairs.items()), token, hub_wait)
    return Subscription(native, every, timeout)
