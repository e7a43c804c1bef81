"""The path of a version from its hub or directory into an engine's model: read while the engine serves, check, load.

    prepare: a thread reads a version and checks its bytes    (the engine serves)
    apply:   wait for the thread, check names, shapes and types, load    (the engine waits)

Before the load, an error leaves the model unchanged. Of several ranks, only the first rank reads, and sends the version to the
other ranks. If one rank cannot take the version, no rank loads it. This module must not know any engine.
"""

from __future__ import annotations

import dataclasses
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, Optional, Tuple

from .. import _phub
from .._follow import Names, Subscription, Version, _as_torch, subscribe

if TYPE_CHECKING:
    import torch

# The shortest time between two copies that a hub makes for a reader which waits for a round, in seconds.
_EVERY_S = 0.5
DOS = ("prepare", "apply", "abort")
# The name, shape and type of a tensor.
Form = Tuple[str, Tuple[int, ...], str]


@dataclasses.dataclass
class Source:
    """The source of the weights: a job at its hubs, or a directory of versions. The arguments are those of `phub.subscribe`.

    Attributes:
        timeout: the longest time to wait for a version, also for a hub that is away, in seconds.
    """

    hub: Optional[str] = None
    job: Optional[str] = None
    directory: Optional[str] = None
    dtype: Optional[str] = None
    ema: bool = False
    names: Optional[Names] = None
    token: Optional[str] = dataclasses.field(default=None, repr=False)
    fetch_deltas: bool = False
    timeout: float = 300.0

    def subscribe(self) -> Subscription:
        """Returns a new subscription. Does not wait for a version.

        Raises:
            SettingsError: a setting is invalid, or two settings exclude each other.
        """
        return subscribe(
            self.hub,
            self.job,
            directory=self.directory,
            every=_EVERY_S,
            timeout=self.timeout,
            dtype=self.dtype,
            ema=self.ema,
            names=self.names,
            token=self.token,
            fetch_deltas=self.fetch_deltas,
            hub_wait=self.timeout,
        )


@dataclasses.dataclass
class Request:
    """The request of an update. A request without `round` and `number` is for the newest version.

    Attributes:
        do: "prepare" reads a version while the engine serves. "apply" loads it, and reads it first if it is not prepared.
            "abort" drops the prepared version.
        round: the lowest round of the version for which the reader waits.
        number: the lowest number, in its directory, of the version for which the reader waits.
    """

    do: str = "apply"
    round: Optional[int] = None
    number: Optional[int] = None

    def is_met_by(self, version: Version) -> bool:
        """Whether the version is as new as the request wants."""
        return (self.round is None or version.round >= self.round) and (
            self.number is None or (version.id is not None and version.id >= self.number)
        )

    def __str__(self) -> str:
        wanted = [f"{what} {least}" for what, least in (("round", self.round), ("number", self.number)) if least is not None]
        return f"a version of {' and '.join(wanted)} or later" if wanted else "the newest version"


class Receiver:
    """The part of an engine's rank that receives and loads versions.

    Args:
        source: the source of the weights.
        group: the process group of all ranks of the engine, for tensors of the CPU; None for an engine with one rank.
        check: a function that raises SettingsError if tensors of the given forms do not fit the model. It changes nothing.
        load: a function that loads the tensors, each with its name, into the model.
    """

    def __init__(
        self,
        source: Source,
        *,
        check: Callable[[List[Form]], None],
        load: Callable[[Iterator[Tuple[str, "torch.Tensor"]]], None],
        group: Any = None,
    ) -> None:
        source.subscribe().close()  # an invalid setting is an error now, and not with the first update
        self._source = source
        self._check = check
        self._load = load
        self._group = group
        self._pool = ThreadPoolExecutor(1, "phub-engine")
        self._reading: Optional[Tuple[Subscription, "Future[Version]"]] = None
        # The subscription with the last version, to which the differences of the next version apply.
        self._last: Optional[Subscription] = None

    def update(self, request: Request) -> Optional[str]:
        """Does what the request says. Returns the version in words if the model has loaded it.

        Raises:
            SettingsError: the request is invalid, or the version does not fit the model.
            UnreachableError: there is no such version within the timeout.
            Error: the version cannot be read or loaded, or the first rank, which reads, has failed.
        """
        if request.do not in DOS:
            raise _phub.SettingsError(f"do {request.do!r}: expected one of {', '.join(map(repr, DOS))}")
        if request.number is not None and self._source.directory is None:
            raise _phub.SettingsError(
                f"number {request.number}: only versions in a directory have numbers; give `round` for a version from a hub"
            )
        if request.do == "apply":
            return self._apply(request)
        self._drop()
        if request.do == "prepare" and self._is_first():
            self._begin(request)
        return None

    def close(self) -> None:
        """Ends the reading, and drops what was read."""
        self._drop()
        if self._last is not None:
            self._last.close()
        self._pool.shutdown(wait=False)

    def _is_first(self) -> bool:
        if self._group is None:
            return True
        import torch.distributed as dist

        return dist.get_rank(self._group) == 0

    def _begin(self, request: Request) -> "Future[Version]":
        subscription, self._last = self._last or self._source.subscribe(), None
        subscription._forget()
        future = self._pool.submit(_read, subscription, request, self._source.timeout)
        self._reading = (subscription, future)
        return future

    def _drop(self) -> None:
        if self._reading is not None:
            self._reading[0].close()
            self._reading = None

    def _take(self, request: Request) -> Version:
        """Returns the prepared version if the request takes it, else reads a version."""
        if self._reading is not None and request.is_met_by(version := self._finish()):
            return version
        self._begin(request)
        return self._finish()

    def _finish(self) -> Version:
        """Waits for the version that is being read."""
        assert self._reading is not None
        subscription, future = self._reading
        try:
            return future.result()
        finally:
            self._reading = None
            if self._source.fetch_deltas and future.done() and future.exception() is None:
                self._last = subscription
            else:
                subscription.close()

    def _apply(self, request: Request) -> str:
        version: Optional[Version] = None
        forms: List[Form] = []
        words, error = "", None
        if self._is_first():
            try:
                version = self._take(request)
                words = repr(version)
                forms = [(name, version[name].shape, version.dtype(name)) for name in version]
            except Exception as caught:
                error = caught
        forms, words, why = self._from_first((forms, words, error and f"{type(error).__name__}: {error}"))
        if error is not None:
            raise error
        if why is not None:
            raise _phub.Error(f"the first rank of the engine has no version: {why}")
        try:
            self._check(forms)
        except _phub.SettingsError as caught:
            error = _phub.SettingsError(f"{words} does not fit the engine's model, which is unchanged: {caught}")
        for other in self._of_all(error and str(error)):
            if other is not None:
                raise error or _phub.SettingsError(f"another rank: {other}")
        try:
            self._load(self._tensors(version, forms))
        except BaseException as caught:
            raise _phub.Error(
                f"{words}: {type(caught).__name__} while the engine loaded this version: {caught}; the engine's model may have weights of two "
                "versions: repeat the update, or start the engine again"
            ) from caught
        return words

    def _tensors(self, version: Optional[Version], forms: List[Form]) -> Iterator[Tuple[str, "torch.Tensor"]]:
        import torch
        import torch.distributed as dist

        for name, shape, dtype in forms:
            if version is not None:
                tensor = _as_torch(version[name], dtype)
            else:
                tensor = torch.empty(shape, dtype=torch_dtype(dtype))
            if self._group is not None:
                # Tensors are sent as bytes, because gloo does not have all types.
                dist.broadcast(tensor.view(-1).view(torch.uint8), dist.get_global_rank(self._group, 0), self._group)
            yield name, tensor

    def _from_first(self, value: Any) -> Any:
        """Returns the first rank's value."""
        if self._group is None:
            return value
        import torch.distributed as dist

        values = [value]
        dist.broadcast_object_list(values, dist.get_global_rank(self._group, 0), self._group)
        return values[0]

    def _of_all(self, value: Any) -> List[Any]:
        """Returns the values of all ranks."""
        if self._group is None:
            return [value]
        import torch.distributed as dist

        values = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(values, value, self._group)
        return values


def torch_dtype(dtype: str) -> Any:
    """Returns the type of a version's tensor as torch's type."""
    import torch

    return {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[dtype]


def _read(subscription: Subscription, request: Request, timeout: float) -> Version:
    deadline = time.monotonic() + timeout
    newest: Any = "no version"
    try:
        for newest in subscription:
            if request.is_met_by(newest):
                return newest
            if time.monotonic() >= deadline:
                raise _phub.UnreachableError(f"the newest version after {timeout} s is {newest!r}")
    except _phub.UnreachableError as error:
        raise _phub.UnreachableError(f"expected {request}: {error}") from error
    raise _phub.UnreachableError(f"expected {request}: the job ended, or the update was aborted, after {newest!r}")
