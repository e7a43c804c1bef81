"""A hub inside this process, so that a script needs nothing that was started before."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Optional, Sequence, Type, Union

from . import _phub


class Hub:
    """A running hub. Made by `serve`; stopped by `stop`, or at the end of a `with` block."""

    def __init__(self, native: _phub.Hub) -> None:
        self._native = native
        self._owner = os.getpid()

    @property
    def address(self) -> str:
        """Where workers find it: `host:port`."""
        return self._native.address

    @property
    def is_own(self) -> bool:
        """Whether it runs in this process, and not in the one that forked it."""
        return self._owner == os.getpid()

    def stop(self, reason: str = "its script stopped it") -> None:
        """Writes the checkpoints that can be written, tells all workers that the hub stops, and why; ends its
        threads. A second call does nothing."""
        self._native.stop(reason)

    def __enter__(self) -> Hub:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.stop("its script is done" if error is None else f"its script failed: {error!r}"[:500])


def serve(
    listen: str = "127.0.0.1:0",
    *,
    transports: Optional[Sequence[str]] = None,
    data_listen: Optional[str] = None,
    nics: Optional[str] = None,
    cores: Union[int, str, None] = None,
    idle: str = "auto",
    heartbeat_limit: int = 10,
    checkpoints: Optional[Union[str, "os.PathLike[str]"]] = None,
    checkpoint_every: Optional[int] = None,
) -> Hub:
    """Starts a hub in this process; when this returns, workers can join.

    The settings are those of `phub-server serve`, which says more of each (`--help`).

    Args:
        listen: address of the control port; port 0 takes a free one. It has no password: keep it on a network that
            you trust.
        transports: of "shm", "verbs" and "tcp"; default all.
        data_listen: address that bytes cross by with TCP; default free ports at the control port's address.
        nics: RDMA NICs, as NCCL_IB_HCA names them.
        cores: how many cores sum and step, or which ("0,2,4-7"); default all that this process may use.
        idle: "auto", "spin", "sleep" or "busy-poll".
        heartbeat_limit: a worker that is silent for so many seconds is taken for dead.
        checkpoints: directory of checkpoints; default none.
        checkpoint_every: write one also every so many rounds.

    Raises:
        SettingsError: a setting makes no sense.
        HubStartError: the hub cannot start; the message says what is missing.
    """
    return Hub(
        _phub.Hub(
            listen,
            transports=None if transports is None else list(transports),
            data_listen=data_listen,
            nics=nics,
            cores=None if cores is None else str(cores),
            idle=idle,
            heartbeat_limit_s=heartbeat_limit,
            checkpoints=None if checkpoints is None else os.fspath(checkpoints),
            checkpoint_every=checkpoint_every,
        )
    )
