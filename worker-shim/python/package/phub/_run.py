"""The agreement of the workers of a run on a random word, and on the address of the hub that one of them starts.

```
   workers                           agree by
   of torchrun, with its store       the store
   of a script with a process group  torch's store of the group
   of one process on one machine     files of this user
   all other runs, which know a hub  a job at the hub
```
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import secrets
import socket
from typing import Callable, Dict, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from . import _board, _hub, _phub
from ._keys import Key
from ._launch import Machine, Worker, names_of
from ._optimizers import Optimizer, Sum

_WORD_BYTES = 4
# The length to which a name is cut before a word is added to it.
_NAME = 40
# The longest name of a job that belongs to another job: a hub takes 64 letters, and two levels of hubs add 12.
_LONGEST = 52


@dataclasses.dataclass(frozen=True)
class Agreement:
    """The word and the hubs' addresses on which all workers of a run agree."""

    word: Optional[str]
    """A word that no other run has; None if the workers agree on a word later, at the hub."""
    serve_at: Optional[str]
    """`host:port` of the hub that rank 0 has started or will start."""
    machine: Optional[Machine]
    """The position on this machine, with the ports of the machines' hubs."""
    is_served: bool = False
    """Whether the hubs are already running."""


_AGREED: Dict[Tuple[Worker, bool], Agreement] = {}


def agree(me: Worker, token: Optional[str], is_hub_named: bool) -> Agreement:
    """Agrees with all workers of the launcher. Further calls in this process return the first result. If neither the script nor
    `PHUB_PORT` chooses a hub or a port, the first call also starts this worker's hub on a free port.

    Raises:
        MissingWorkersError: another worker did not take part in time.
        HubStartError: this worker's hub does not start.
    """
    is_named = is_hub_named or me.serve_at is None
    if (me, is_named) not in _AGREED:
        _AGREED[me, is_named] = _agree(me, token, is_named, _AGREED.get((me, not is_named)))
    return _AGREED[me, is_named]


def _agree(me: Worker, token: Optional[str], is_named: bool, other: Optional[Agreement]) -> Agreement:
    board = None if me.world_size == 1 or (is_named and other is not None) else _board_of(me)
    if board is None:
        word = other.word if other is not None else new_word() if me.world_size == 1 else None
        return Agreement(word, me.serve_at, me.machine)
    picks = not is_named and not me.is_port_set
    port = _start(me, board, token) if picks else ""
    said = _board.gather(board, me.rank, me.world_size, json.dumps([new_word(), port, socket.gethostname()]))
    texts = [json.loads(each) for each in said]
    word, first, host_of_first = texts[0]
    word = word if other is None else other.word
    if not picks or me.serve_at is None:
        return Agreement(word, me.serve_at, me.machine)
    host, machine = me.serve_at.rpartition(":")[0], me.machine
    if me.launcher == "torch" and any(host != host_of_first for *_, host in texts):
        host = host_of_first
    serve_at = f"{host}:{first}"
    if machine is not None:
        mine = f"127.0.0.1:{texts[machine.ranks[0]][1]}"
        machine = dataclasses.replace(machine, hub=mine, mesh=f"{machine.number}/{machine.of}@{serve_at}")
    return Agreement(word, serve_at, machine, is_served=True)


def _board_of(me: Worker) -> Optional[_board.Board]:
    """Returns a board that all workers of the run can read and write, if there is one."""
    if me.store is not None:
        found: Optional[_board.Board] = _board.of_torchrun(me.store)
        if found is not None:
            return found
    by_group = _board.of_group(me.rank, me.world_size)
    names = names_of(me.launcher)
    if by_group is not None or names is None or not me.is_on_one_machine:
        return by_group
    return _board.of_user(names.rank, me.rank)


def _start(me: Worker, board: _board.Board, token: Optional[str]) -> str:
    """Starts a hub on a free port, if this worker has to start one. Returns the hub's port, or "" without a hub."""
    assert me.serve_at is not None
    if me.machine is None:
        if me.rank != 0:
            return ""
        host = me.serve_at.rpartition(":")[0]
        return _hub.serve_for(f"{host}:0", token, is_here=me.is_on_one_machine).rpartition(":")[2]
    if me.machine.rank != 0:
        return ""
    # After a restart of the workers, their former hub may still run. They use that hub, because it has the checkpoints.
    name = f"beside/{me.machine.number}"
    former = board.now(name)
    if former is not None and _phub.answers(f"127.0.0.1:{former}"):
        return former
    port = _hub.serve_beside("127.0.0.1:0", token).rpartition(":")[2]
    board.set(name, port)
    return port


def new_word() -> str:
    """Returns a word that no other run has."""
    return secrets.token_hex(_WORD_BYTES)


class Place(NamedTuple):
    """A hub's address and a worker's position there. A process has several places if its script gives several ranks."""

    hub: str
    rank: int
    world_size: int
    mesh: Optional[str]


class Helper(NamedTuple):
    """The kind of a helper job, such as the broadcast of parameters that have no gradients. The kind is a part of the helper
    job's name, which no other run has."""

    kind: str


Join = Callable[[Mapping[str, Key], Optimizer], _phub.Session]


def meet(rank: int, join: Join) -> str:
    """Returns a random word, the same at all workers: rank 0 makes the word, and sends it in a separate job."""
    session = join({"word": Key((_WORD_BYTES,))}, Sum())
    np.asarray(session.gradient(0))[:] = list(bytes.fromhex(new_word())) if rank == 0 else 0.0
    session.broadcast_written()  # of a mesh's ranks 0, the first machine's counts
    word = np.asarray(session.weights(0)).astype(np.uint8).tobytes().hex()
    session.leave()
    return word


_WORDS: Dict[Place, str] = {}


def word_at(at: Place, job: str, meeting: Callable[[str], str]) -> str:
    """Returns the random word of a run, the same at all workers. The first call for a place calls `meeting` with the name of a
    new job. In this job the workers agree on the word."""
    if at not in _WORDS:
        is_alone = at.world_size == 1 and not at.mesh
        _WORDS[at] = new_word() if is_alone else meeting(f"{job[:_NAME]}-meeting")
    return _WORDS[at]


def beside(job: str, suffix: str) -> str:
    """Returns the name of a job that belongs to another job. If the name is too long, a digest replaces its middle, so that the
    jobs of two long names differ."""
    if len(job) + len(suffix) <= _LONGEST:
        return job + suffix
    digest = f"-{hashlib.sha256(job.encode()).hexdigest()[:8]}{suffix}"
    return job[: _LONGEST - len(digest)] + digest


# The number of jobs that this process has made, by place, name and kind.
_MADE: Dict[Tuple[Place, str, Optional[Helper]], int] = {}

# A child of a fork is not a worker of this run, so it forgets what the parent agreed on.
os.register_at_fork(after_in_child=lambda: [each.clear() for each in (_AGREED, _WORDS, _MADE)])


class Naming:
    """The name of a job: the run's name, the run's word if it has one, and a number from the second job on. The number is the
    same at all workers, because all workers make their jobs in the same order."""

    def __init__(self, at: Place, job: str, word: Optional[str]) -> None:
        self._at, self._base = at, f"{job[:_NAME]}-{word}" if word else job
        self._taken: Optional[Tuple[Optional[Helper], int]] = None

    def take(self, helper: Optional[Helper]) -> str:
        """Returns the next name."""
        number = _MADE.get((self._at, self._base, helper), 0) + 1
        _MADE[self._at, self._base, helper] = number
        self._taken = helper, number
        if helper is not None:
            return beside(self._base, f"-{helper.kind}-{number}")
        return self._base if number == 1 else beside(self._base, f"-{number}")

    def give_back(self) -> None:
        """Gives the next job the last name again, because the job with this name could not be joined."""
        if self._taken is not None:
            helper, number = self._taken
            if _MADE.get((self._at, self._base, helper)) == number:
                _MADE[self._at, self._base, helper] = number - 1
