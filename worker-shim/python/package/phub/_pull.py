"""The plan by which weights are pulled in batches of layers. It is plain data, and must not depend on sessions."""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Optional, Sequence, Tuple

from ._phub import SettingsError


@dataclasses.dataclass(frozen=True)
class PullPlan:
    """The batches in which a session pulls its weights. `str()` gives a line of text.

    Attributes:
        batching: the choice of batches: "ibatch", "greedy", "layer" or "all".
        batches: the keys of each batch.
        start_up: the part of a pull's time that does not depend on its bytes, in seconds. None if the choice of batches uses
            no profile.
        predicted: the time from when the first batch can be pulled to when the last layer can be computed, in seconds, by the
            profile. None if the choice of batches uses no profile.
        measured: the same time as `predicted`, as measured: the mean of the rounds since the plan. None before the first round.
        rounds: the number of rounds since the plan.
        profiles: the number of profiles (measurements of the layers' times) until now.
    """

    batching: str
    batches: List[List[str]]
    start_up: Optional[float]
    predicted: Optional[float]
    measured: Optional[float]
    rounds: int
    profiles: int
    _words: str = dataclasses.field(repr=False, compare=False)

    def __str__(self) -> str:
        return self._words


_Native = Tuple[str, List[Tuple[int, int]], Optional[float], Optional[float], Optional[float], int, int, str]


def plan(native: Optional[_Native], layers: Sequence[Sequence[str]]) -> Optional[PullPlan]:
    """Converts the native module's plan, whose batches are ranges of layers. The result has the keys of each batch. None if there
    is no plan."""
    if native is None:
        return None
    batching, batches, start_up, predicted, measured, rounds, profiles, words = native
    keys = [[key for layer in layers[start:end] for key in layer] for start, end in batches]
    return PullPlan(batching, keys, start_up, predicted, measured, rounds, profiles, words)


def numbers(layers: Sequence[Sequence[str]], keys: Dict[str, int]) -> List[List[int]]:
    """Returns the layers with numbers in place of the keys' names.

    Raises:
        SettingsError: a name is not a key of the job, or a layer is a text.
    """
    for layer in layers:
        if isinstance(layer, str):  # a sequence of letters, which may be keys
            raise SettingsError(f"layers to pull by: a layer is {layer!r}: expected a list of names, such as [{layer!r}]")
        for key in layer:
            if key not in keys:
                raise SettingsError(f"layers to pull by: key {key!r} is not one of this job's {len(keys)} keys")
    return [[keys[key] for key in layer] for layer in layers]
