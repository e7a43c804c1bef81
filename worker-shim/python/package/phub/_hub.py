"""Hubs that a script starts itself, in its process or in a separate process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from typing import Dict, List, Optional, Sequence, Union

from . import _phub

# How long a worker waits before it tries again to reach a hub that rank 0 is starting, in seconds.
RETRY_S = 0.05
# How long the hub of rank 0 waits at its end for workers that have not left, in seconds.
_OTHERS_S = 30.0


class Hub:
    """A running hub. `serve` starts it; `stop`, or the end of a `with` block, stops it."""

    def __init__(self, native: _phub.Hub, token: Optional[str] = None) -> None:
        self._native = native
        self.token = token
        self._owner = os.getpid()

    @property
    def address(self) -> str:
        """The address of the hub's control port: `host:port`."""
        return self._native.address

    @property
    def is_own(self) -> bool:
        """Whether the hub runs in this process. False in a child of `fork`: the hub then runs in the parent."""
        return self._owner == os.getpid()

    def stop(self, reason: str = "its script stopped it") -> None:
        """Stops the hub: it writes checkpoints, notifies all workers with the reason, and ends its threads. A second call does
        nothing."""
        self._native.stop(reason)

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.stop("its script is done" if error is None else f"its script failed: {error!r}"[:500])


def serve(
    listen: str = "127.0.0.1:0",
    *,
    transports: Union[str, Sequence[str], None] = None,
    token: Optional[str] = None,
    insecure: bool = False,
    **settings: object,
) -> Hub:
    """Starts a hub in this process. When `serve` returns, workers can join.

    Args:
        listen: the address of the control port, `host:port`. It overrides an address in the environment or in a `config`. With
            port 0 the hub takes a free port.
        transports: some of "shm", "verbs" and "tcp", as a list or as a text with commas. Default: all.
        token: the secret, which workers must have, too. Default: `PHUB_TOKEN`, the file `PHUB_TOKEN_FILE`, or this user's own
            file, which is created if it does not exist.
        insecure: whether the hub serves everybody who reaches it, without a secret.
        **settings: all other settings of `phub-server serve` except `unused_limit_s`, with underscores: `cores="half"`,
            `checkpoints=directory`, `checkpoint_every=100`, `heartbeat_limit_s=30`, `late_limit_s=600`. `python -m phub serve
            --help` lists them, with their defaults and their environment variables, which count in `serve`, too.

    Raises:
        SettingsError: a setting is invalid.
        HubStartError: the hub cannot start. The message says why.
    """
    if not isinstance(insecure, bool):
        raise _phub.SettingsError(f"insecure is {insecure!r:.60}: expected True or False")
    if settings.get("unused_limit_s") is not None:
        raise _phub.SettingsError("unused_limit_s: a hub in this process does not end by itself: call the hub's stop(), or use phub-server serve")
    listed = transports if transports is None or isinstance(transports, str) else ",".join(transports)
    given = {"listen": listen, "transports": listed, **settings}
    flags = {setting.replace("_", "-"): value for setting, value in given.items() if value is not None}
    flags = {flag: os.fsdecode(value) if isinstance(value, (bytes, os.PathLike)) else value for flag, value in flags.items()}
    # `checksum=True` is a flag without a value, and `checksum=False` is no flag.
    arguments = [f"--{flag}" if value is True else f"--{flag}={value}" for flag, value in flags.items() if value is not False]
    return Hub(_phub.Hub(arguments + (["--insecure"] if insecure else []), token), token)


# The hubs that rank 0 has started for its sessions, by address. These hubs end with the process.
_HUBS: Dict[str, Hub] = {}


def serve_for(address: str, token: Optional[str] = None, *, is_here: bool = True) -> str:
    """Starts a hub in this process for the workers that look for a hub at this address, unless this process has started a hub
    there. Returns the address with the hub's port.

    Args:
        is_here: whether all workers are on this machine. Otherwise the hub listens on all addresses. The hub cannot listen at
            `address` alone: MASTER_ADDR, for example, may be a name that means "localhost" on this machine.
    """
    host, _, port = address.rpartition(":")
    if address not in _HUBS:
        try:
            _HUBS[address] = serve(f"{'127.0.0.1' if is_here else _everywhere()}:{port}", token=token)
        except _phub.HubStartError as error:
            raise _phub.HubStartError(_with_advice(str(error))) from None
    return f"{host}:{_HUBS[address].address.rpartition(':')[2]}"


def _everywhere() -> str:
    """Returns the address to listen on all interfaces: by IPv6 and IPv4, or by IPv4 alone."""
    return "[::]" if socket.has_dualstack_ipv6() else "0.0.0.0"


def _with_advice(why: str) -> str:
    """Returns the reason why a hub did not start. If the port is the reason, adds the variable that sets the port."""
    return f"{why}. PHUB_PORT chooses the port" if "in use" in why or "cannot listen" in why else why


# A hub that a machine's first worker has started ends after this many seconds without a job. Workers that are restarted earlier
# still find the hub.
_UNUSED_S = 30


def serve_beside(address: str, token: Optional[str] = None) -> str:
    """Starts a hub for all workers of this machine, unless a hub runs at this address. Returns the address with the hub's port;
    with port 0 the hub takes a free port.

    The hub is a separate process, which outlives this process. Its settings come from the environment (`PHUB_CORES` and so
    on). Without `PHUB_CORES` it leaves half of the cores to the workers. It logs to the file `PHUB_HUB_LOG`, if the variable
    is set.

    Raises:
        HubStartError: the hub does not start. The message says why.
    """
    host, _, port = address.rpartition(":")
    if port != "0" and _phub.answers(address):
        return address
    command = [sys.executable, "-m", "phub", "serve", "--listen", f"{_everywhere()}:{port}"]
    if "PHUB_CORES" not in os.environ:
        command += ["--cores", "half"]
    if "PHUB_UNUSED_LIMIT_S" not in os.environ:
        command += ["--unused-limit-s", str(_UNUSED_S)]
    log = os.environ.get("PHUB_HUB_LOG")
    with open(log, "ab+") if log else tempfile.TemporaryFile() as said:
        begin = said.seek(0, os.SEEK_END)
        hub = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            # In a new session of the system, the hub does not get signals of this process's group, such as Ctrl-C.
            start_new_session=True,
            env={"RUST_LOG": "info" if log else "warn", **os.environ, **({} if token is None else {"PHUB_TOKEN": token})},
        )
        assert hub.stdout is not None
        with hub.stdout as first:
            line = first.readline().decode().strip()
            if line:
                _BESIDE.append(hub)
                return f"{host}:{line.rstrip('/').rpartition(':')[2]}"
        hub.wait()
        if port != "0" and _phub.answers(address):
            return address  # another process has started a hub there meanwhile
        said.seek(begin)
        why = said.read().decode(errors="replace").strip()
    raise _phub.HubStartError(_with_advice(f"the hub for this machine's workers did not start: {why}"))


# The processes of hubs. They are kept, because Python warns when it collects a process that still runs.
_BESIDE: "List[subprocess.Popen[bytes]]" = []


def _wait_for_jobs(hub: str, token: Optional[str]) -> None:
    """Waits until the last worker has left the hub, or `_OTHERS_S` have passed."""
    deadline = time.monotonic() + _OTHERS_S
    while time.monotonic() < deadline:
        if _phub.is_done(hub, token):
            return
        time.sleep(RETRY_S)


def stop_own_hubs() -> None:
    """Waits until all workers have left the hubs that this process has started for its sessions, for each hub up to `_OTHERS_S`.
    Then stops the hubs."""
    for hub in _HUBS.values():
        if hub.is_own:
            _wait_for_jobs(f"127.0.0.1:{hub.address.rpartition(':')[2]}", hub.token)
            hub.stop("rank 0, which started the hub, has ended")
