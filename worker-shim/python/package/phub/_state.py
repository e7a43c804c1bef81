"""A job's state: weights and optimizer state, as in a hub's checkpoint."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

import numpy as np
import numpy.typing as npt

from . import _optimizers, _phub
from ._keys import check_unmasked

Array = npt.NDArray[Any]

_STATE = "optimizer/"
# The number of bytes of a state that Python passes to the session at once.
_PIECE = 1 << 20
_EMA = "ema"
# The largest number of tensors of one key in a state: the weights, three tensors of AMSGrad, and an average.
_MOST_TENSORS = 5
# The largest number of levels of hubs.
_MAX_DEPTH = 16


@dataclasses.dataclass(frozen=True)
class State:
    """A job's weights and optimizer state, with which a new job can begin. `Session.state()` returns a state,
    `Session(state=...)` takes a state, and a script may also make a state itself.

    Attributes:
        round: the next round. It is 1 if no step was made, since round 0 is the broadcast.
        tensors: f32 arrays of the keys' shapes, by name. Weights have the key's name. Optimizer state has the names
            "optimizer/momentum_buffer/KEY", or "optimizer/exp_avg/KEY" and "optimizer/exp_avg_sq/KEY". Averages of weights
            have the names "optimizer/ema/KEY".
        steps: the number of steps of a key, by the key's name, from which Adam continues to count. A key that is missing
            has made one step in each round after the broadcast.
    """

    round: int
    tensors: Mapping[str, Array]
    steps: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def made(self, key: str) -> int:
        """Returns the number of steps that a key has made."""
        return self.steps.get(key, max(self.round - 1, 0))

    def of(self, name: str, key: str) -> Array:
        """Returns a key's optimizer state with this name of PyTorch's, such as "exp_avg"."""
        return self.tensors[f"{_STATE}{name}/{key}"]

    @property
    def names(self) -> list[str]:
        """PyTorch's names of the kinds of optimizer state that this state has."""
        return sorted({name.split("/")[1] for name in self.tensors if name.startswith(_STATE)} - {_EMA})

    @property
    def ema(self) -> Optional[Dict[str, Array]]:
        """The averages of the weights, by key; `None` in a state without averages."""
        begin = name_of(_EMA, "")
        return {name[len(begin) :]: values for name, values in self.tensors.items() if name.startswith(begin)} or None

    def with_ema(self, averages: Mapping[str, Array]) -> State:
        """Returns a copy of this state to which averages of weights are added, by key."""
        named = {name_of(_EMA, key): values for key, values in averages.items()}
        return dataclasses.replace(self, tensors={**self.tensors, **named})


def name_of(state: str, key: str) -> str:
    """Returns the name of the tensor that holds a key's optimizer state."""
    return f"{_STATE}{state}/{key}"


def read(stream: io.BufferedIOBase, source: str) -> State:
    """Reads a state from a checkpoint file, or from a hub. `source` is the name in errors.

    Raises:
        SettingsError: the bytes are not a whole checkpoint.
    """
    tensors: Dict[str, Array] = {}
    round_, _, steps = _read_into(tensors, {}, stream, source)
    return State(round_, tensors, steps)


def _read_into(
    tensors: Dict[str, Array], shapes: Mapping[str, Tuple[int, ...]], stream: io.BufferedIOBase, source: str
) -> Tuple[int, int, Dict[str, int]]:
    """Reads a checkpoint, or one hub's part of a checkpoint, into `tensors`. `shapes` has the whole shape of each key, because a
    part may have only a piece of a key. Returns the checkpoint's round, its number of bytes of values, and the steps by key."""
    try:
        bytes_ = 0
        length = int.from_bytes(_exactly(stream, 8), "little")
        header = json.loads(_exactly(stream, length))
        about = header.pop("__metadata__")
        pieces = json.loads(about.get("share", "{}")).get("pieces", {})
        for name, entry in sorted(header.items(), key=lambda item: int(item[1]["data_offsets"][0])):
            key = name.split("/", 2)[2] if name.startswith(_STATE) else name
            piece = pieces.get(key) if key in shapes else None
            if name not in tensors:
                tensors[name] = np.empty(tuple(entry["shape"]) if piece is None else shapes[key], "<f4")
            room = tensors[name].reshape(-1)
            if piece is not None:
                room = room[slice(*piece)]
            begin, end = entry["data_offsets"]
            if end - begin != room.nbytes:
                raise ValueError(f"tensor {name} has {end - begin} bytes, which do not fit its shape {entry['shape']}")
            _fill(stream, _bytes(room))
            bytes_ += room.nbytes
        before = int(about["round"])
        apart = json.loads(about.get("steps", "{}"))
        keys = {name for name in header if not name.startswith(_STATE)}
        if any(key not in keys or type(steps) is not int or not 0 <= steps < 2**32 for key, steps in apart.items()):
            raise ValueError(f"the numbers of steps are {str(apart)[:80]}; expected whole numbers from 0, for keys of the file")
        # A key without a number has made one step in each round after the broadcast.
        return before, bytes_, {key: apart.get(key, max(before - 1, 0)) for key in keys}
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, OverflowError, MemoryError) as error:
        raise _phub.SettingsError(f"{source}: not a whole checkpoint of a hub: {error!r}") from error


def _exactly(stream: io.BufferedIOBase, length: int) -> bytes:
    content = stream.read(length)
    if len(content) < length:
        raise EOFError(f"the data ends after {len(content)} bytes; expected {length}")
    return content


def _bytes(values: Array) -> memoryview:
    """Returns an array's memory as bytes."""
    return values.reshape(-1).view(np.uint8).data


def _fill(stream: io.BufferedIOBase, room: memoryview) -> None:
    filled = 0
    while filled < len(room):
        count = stream.readinto(room[filled:])
        if not count:
            raise EOFError(f"a tensor ends after {filled} bytes; expected {len(room)}")
        filled += count


def fetch(hubs: List[str], job: str, shapes: Mapping[str, Tuple[int, ...]], token: Optional[str] = None) -> State:
    """Fetches the state of a job from its hubs, or from the top hubs above them.

    Raises:
        RefusedError: a hub refuses, the hubs are in different rounds, or `hubs` are not all hubs of the job.
        HubLostError: a hub is gone.
    """
    hubs, job = _top(hubs, job, token)
    tensors: Dict[str, Array] = {}
    rounds: Dict[str, int] = {}
    steps: Dict[str, int] = {}
    bytes_ = 0
    most = _MOST_TENSORS * sum(4 * math.prod(shape) for shape in shapes.values())
    for hub in hubs:
        part = _phub.fetch_state(hub, job, most, token)
        if part is not None:
            stream = io.BufferedReader(_Sent(part), _PIECE)
            rounds[hub], more, made = _read_into(tensors, shapes, stream, f"the state from the hub at {hub}")
            bytes_ += more
            # A key's parts at several hubs have made the same number of steps. Only if the job failed within a round, some
            # parts have made one more step.
            steps.update({key: max(count, steps.get(key, 0)) for key, count in made.items()})
    if len(set(rounds.values())) != 1:
        each = ", ".join(f"{round_} at {hub}" for hub, round_ in rounds.items())
        raise _phub.RefusedError(
            f"the hubs of job {job!r} are in different rounds, before rounds {each}: fetch the state when no key of this "
            f"worker is in flight, and with consistency 'bsp'"
        )
    expected = sum(tensor.nbytes for tensor in tensors.values())
    if bytes_ != expected or any(key not in tensors for key in shapes):
        raise _phub.RefusedError(
            f"the state of job {job!r} is not whole at the hubs {', '.join(hubs)}: {bytes_} bytes, expected {expected}; "
            f"name all hubs of the job"
        )
    return State(rounds.popitem()[1], tensors, steps)


def _top(hubs: List[str], job: str, token: Optional[str]) -> Tuple[List[str], str]:
    """Returns the top hubs above these hubs, which have the job's state, and the job's name there."""
    for _ in range(_MAX_DEPTH):
        above = _phub.above(hubs[0], job, token)
        if not above:
            return hubs, job
        hubs, job = above, f"{job}.above"
    raise _phub.RefusedError(f"job {job!r}: the hubs at {', '.join(hubs)} have more than {_MAX_DEPTH} levels above them")


class _Sent(io.RawIOBase):
    """A stream of the bytes that a hub sends."""

    def __init__(self, part: _phub.StateBytes) -> None:
        self._part = part

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        content = self._part.read(len(room))
        room[: len(content)] = content
        return len(content)


def steps(state: State, keys: Iterable[str]) -> Optional[List[int]]:
    """Returns the number of steps that each of these keys has made; `None` if all keys have made one step in each round.

    Raises:
        SettingsError: a number of steps is invalid.
    """
    for key, made in state.steps.items():
        if not 0 <= made < 2**32 - 1 or made != int(made):
            raise _phub.SettingsError(f"state: {key!r} has made {made} steps; expected a whole number from 0")
    of_keys = [int(state.made(key)) for key in keys]
    return None if all(each == state.round - 1 for each in of_keys) else of_keys


def pieces(state: State, shapes: Mapping[str, Any], optimizer: _optimizers.Optimizer, ema: bool) -> Iterator[bytes]:
    """Checks a state, and returns its bytes for the hub in pieces.

    Args:
        state: the state with which a new job begins.
        shapes: the shapes of the job's keys, by name, in the order of the job.
        optimizer: the job's optimizer.
        ema: whether the job keeps averages of the weights. If the state has no average of a key, the weights are its average.

    Raises:
        SettingsError: the state belongs to another model or optimizer.
    """
    kept = [*_optimizers.state_names(optimizer), *([_EMA] if ema else [])]
    names = [*shapes] + [name_of(each, key) for each in kept for key in shapes]
    expected = dict(zip(names, [*shapes.values()] * len(names)))
    if not _optimizers.keeps_weights(optimizer):
        raise _phub.SettingsError(f"state: {type(optimizer).__name__} keeps no state")
    if not isinstance(state.round, (int, np.integer)) or not 1 <= state.round < 2**32 - 1:
        raise _phub.SettingsError(f"state: round {state.round!r:.60}: expected 1, the round after the broadcast, or more")
    first = {name_of(_EMA, key): state.tensors[key] for key in shapes if ema and key in state.tensors}
    tensors = {**first, **state.tensors}
    for name in names:
        shape = np.shape(tensors[name]) if name in tensors else None
        if shape != tuple(expected[name]):
            seen = "not there" if shape is None else f"of shape {shape}"
            raise _phub.SettingsError(f"state: {name!r} is {seen}; expected shape {tuple(expected[name])}")
        _check_numbers(name, tensors[name])
    strange = next((name for name in [*state.tensors, *state.steps] if name not in expected), None)
    if strange is not None:
        kind = type(optimizer).__name__
        raise _phub.SettingsError(
            f"state: this job, with {kind} and {len(shapes)} keys, has no tensor or key {strange!r}"
        )

    def send() -> Iterator[bytes]:
        for name in names:
            bytes_ = _bytes(np.ascontiguousarray(tensors[name], "<f4"))
            for begin in range(0, len(bytes_), _PIECE):
                yield bytes(bytes_[begin : begin + _PIECE])

    return send()


def _check_numbers(name: str, values: Any) -> None:
    """Checks that a tensor of a state has numbers that f32 can hold. The bits of a bf16 key, for example, are other numbers.

    Raises:
        SettingsError: the values have another type, or are masked.
    """
    check_unmasked(f"state: {name!r}", values)
    try:
        dtype = np.asarray(values).dtype
    except (TypeError, ValueError, RuntimeError) as error:
        raise _phub.SettingsError(f"state: {name!r} is no array of f32: {error}") from None
    if dtype.kind != "f":
        bits = "; convert bits of bf16 to f32 by (bits.astype('u4') << 16).view('f4')" if dtype == np.uint16 else ""
        raise _phub.SettingsError(f"state: {name!r} is an array of {dtype}; expected f32, also for keys of 16 bits{bits}")


def steps_of(step: Any, source: str) -> int:
    """Returns a number of steps from torch's optimizer state as an integer.

    Raises:
        SettingsError: the number is not a whole number from 0.
    """
    steps = float(step)
    if not math.isfinite(steps) or steps < 0 or steps != int(steps) or steps >= 2**32 - 2:
        raise _phub.SettingsError(f"{source}: {steps} steps were made; expected a whole number from 0")
    return int(steps)
