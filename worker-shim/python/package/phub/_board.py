"""Boards, on which the workers of a run write texts for each other: torch's store, or files of this user on one machine. A
board may have texts of an earlier run: torchrun's store keeps all keys when torchrun restarts the workers."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import fcntl
import importlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
import uuid
from typing import Any, List, Optional, Tuple

from ._launch import group_of_torch
from ._phub import MissingWorkersError, SettingsError

_PAUSE_S = 0.02
# The value that `compare_set` returns for a key that was never written.
_NOTHING = "-"
# How long a worker waits for a text in `gather` before it reads the other workers' random words again, in seconds.
_LOOK_AGAIN_S = 0.2
_LIMIT_S = 60.0


class Board:
    """Texts by name."""

    def set(self, name: str, text: str) -> None:
        """Writes a text."""
        raise NotImplementedError

    def now(self, name: str) -> Optional[str]:
        """Returns the text with this name now; None if there is none."""
        raise NotImplementedError

    def get(self, name: str, limit_s: float) -> Optional[str]:
        """Waits for the text with this name, and returns it; None if there is none within `limit_s`."""
        deadline = time.monotonic() + limit_s
        while True:
            text = self.now(name)
            if text is not None or time.monotonic() > deadline:
                return text
            time.sleep(_PAUSE_S)


def gather(board: Board, rank: int, size: int, text: str, limit_s: float = _LIMIT_S) -> List[str]:
    """Returns the texts of all workers, in the order of ranks. All these texts are from this run, even if the board has texts
    of an earlier run.

    Each worker writes a new random word under its rank. Rank 0 acknowledges the word by a word of its own, and the worker then
    writes its text under both words. If no text follows, the worker's word may be from an earlier run, and rank 0 reads it
    again.

    If a process finds another word under its rank, a second process has the same rank. The finder then notifies that process.

    Raises:
        MissingWorkersError: a worker did not write its text within `limit_s`.
        SettingsError: another process has the same rank.
    """
    mine = uuid.uuid4().hex[:12]
    deadline = time.monotonic() + limit_s
    board.set(f"ask/{rank}", mine)

    def wait(name: str) -> Optional[str]:
        while True:
            text = board.get(name, min(_LOOK_AGAIN_S, max(deadline - time.monotonic(), 0.0)))
            if text is not None or time.monotonic() > deadline:
                return text
            _refuse_twin(board, rank, size, mine)

    if rank > 0:
        word = wait(f"seen/{mine}")
        if word is not None:
            board.set(f"here/{mine}/{word}", text)
            said = wait(f"all/{word}")
            if said is not None:
                return list(json.loads(said))
        raise MissingWorkersError(
            f"rank {rank} of {size} has waited {limit_s:.0f} s for the hub's address, which rank 0 sends when all ranks "
            f"have reported: see the output of the other ranks"
        )
    texts = [text]
    for other in range(1, size):
        found = None
        while found is None:
            word = wait(f"ask/{other}")
            if word is not None:
                board.set(f"seen/{word}", mine)
                found = board.get(f"here/{word}/{mine}", _LOOK_AGAIN_S)
            if found is None and time.monotonic() > deadline:
                raise MissingWorkersError(f"rank {other} of {size} did not report within {limit_s:.0f} s: see that rank's output")
        texts.append(found)
    board.set(f"all/{mine}", json.dumps(texts))
    return texts


def _refuse_twin(board: Board, rank: int, size: int, mine: str) -> None:
    """Raises an error if another process has written its word under this rank, or has found this process's word under its rank."""
    other = board.now(f"ask/{rank}")
    if other is not None and other != mine:
        board.set(f"twin/{other}", mine)
    elif board.now(f"twin/{mine}") is None:
        return
    raise SettingsError(
        f"rank {rank} of {size}: another process of this run has the same rank; give each worker its own rank from 0 to {size - 1}: "
        f"see the launcher's variables at the workers"
    )


class StoreBoard(Board):
    """A store of torch."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def set(self, name: str, text: str) -> None:
        self._store.set(f"phub/{name}", text)

    def now(self, name: str) -> Optional[str]:
        # `wait` is not used: before torch 2.1, a `wait` that times out disturbs the next call.
        key = f"phub/{name}"
        if hasattr(self._store, "check"):
            return bytes(self._store.get(key)).decode() if self._store.check([key]) else None
        found = bytes(self._store.compare_set(key, _NOTHING, _NOTHING)).decode()
        return None if found == _NOTHING else found


class FileBoard(Board):
    """Files of a directory that belongs only to this user."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        # The lock is released with the process.
        self._lock = _locked(directory)

    def _file(self, name: str) -> str:
        return os.path.join(self._directory, name.replace("/", "."))

    def set(self, name: str, text: str) -> None:
        new = self._file(f"{name}.{uuid.uuid4().hex[:8]}.new")
        with open(new, "x") as file:
            file.write(text)
        os.replace(new, self._file(name))

    def now(self, name: str) -> Optional[str]:
        try:
            with open(self._file(name)) as file:
                return file.read()
        except FileNotFoundError:
            return None

    def remove(self) -> None:
        """Removes the directory."""
        shutil.rmtree(self._directory, ignore_errors=True)


def of_torchrun(store: Tuple[str, int]) -> Optional[StoreBoard]:
    """Returns the store of torchrun's agent; None if torchrun has not started this process."""
    try:
        distributed = importlib.import_module("torch.distributed")
    except ImportError:
        return None
    host = store[0][1:-1] if store[0].startswith("[") else store[0]
    limit = datetime.timedelta(seconds=_LIMIT_S)
    return StoreBoard(distributed.TCPStore(host, store[1], is_master=False, timeout=limit, wait_for_workers=False))


def of_group(rank: int, size: int) -> Optional[StoreBoard]:
    """Returns the store of the script's process group, if the group has all workers of the run."""
    distributed = group_of_torch()
    if distributed is None or (distributed.get_rank(), distributed.get_world_size()) != (rank, size):
        return None
    return StoreBoard(distributed.distributed_c10d._get_default_store())


def of_user(variable: str, rank: int) -> Optional[FileBoard]:
    """Returns a board for the workers that one launcher on this machine has started; None if the launcher's process is not found.
    The launcher's process is the worker's nearest ancestor whose environment does not have `variable`."""
    starter = _starter(variable)
    if starter is None:
        return None
    own = _own_directory()
    _remove_unused(own)
    board = FileBoard(os.path.join(own, starter))
    if rank == 0:
        atexit.register(board.remove)
    return board


def _locked(directory: str) -> int:
    """Creates a directory, and returns its descriptor with a shared lock, which shows that a process uses it."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            os.makedirs(directory, mode=0o700, exist_ok=True)
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            with contextlib.suppress(OSError):  # some file systems have no locks, and then nobody removes the directory
                fcntl.flock(lock, fcntl.LOCK_SH)
            # Another process may have removed the directory before it was locked.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), os.stat(directory)):
                    return lock
            os.close(lock)


def _remove_unused(own: str) -> None:
    """Removes the boards of killed runs: those that no process has locked."""
    for name in os.listdir(own):
        if not re.fullmatch(r"\d+-\d+", name):
            continue
        with contextlib.suppress(OSError):
            board = os.open(os.path.join(own, name), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(board, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(os.path.join(own, name), ignore_errors=True)
            finally:
                os.close(board)


def _starter(variable: str) -> Optional[str]:
    pid = os.getppid()
    try:
        while pid > 0:
            with open(f"/proc/{pid}/environ", "rb") as environ:
                is_ours = any(each.startswith(f"{variable}=".encode()) for each in environ.read().split(b"\0"))
            with open(f"/proc/{pid}/stat") as file:
                # The fields after the process's name, which may have spaces: state, parent, ..., the start time as the 20th.
                fields = file.read().rpartition(")")[2].split()
            if not is_ours:
                return f"{pid}-{fields[19]}"
            pid = int(fields[1])
    except OSError:
        pass
    return None


def _own_directory() -> str:
    """Returns this user's directory for boards, which nobody else can write.

    Raises:
        SettingsError: the directory belongs to another user, or other users can write it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base is None or not os.access(base, os.W_OK):
        base = tempfile.gettempdir()
    own = os.path.join(base, f"phub-{os.getuid()}")
    os.makedirs(own, mode=0o700, exist_ok=True)
    found = os.lstat(own)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise SettingsError(
            f"{own}: expected a directory of this user that nobody else can write, because workers find their hub by its files: remove the "
            f"directory, or set PHUB_PORT to a port for the hub"
        )
    return own
