"""How gradients and weights are made smaller before they cross. Plain data; the arithmetic is the session's and the
hub's.

Codecs that are right on average (`Qsgd`, `TernGrad`) draw random numbers from the session's `seed`. Those that leave
something out (`OneBit`, `TopK`, `RandomK`, `Dgc`) send it later.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Optional, Union


@dataclasses.dataclass(frozen=True)
class F16:
    """The nearest number of 16 bits: half the bytes. What is beyond 65504 becomes infinite."""


@dataclasses.dataclass(frozen=True)
class Bf16:
    """The nearest bfloat16: half the bytes."""


@dataclasses.dataclass(frozen=True)
class Qsgd:
    """Levels between zero and the largest of `bucket` values, in `bits` (1 to 8), at random so that the mean is right."""

    bits: int
    bucket: int = 512


@dataclasses.dataclass(frozen=True)
class OneBit:
    """Signs, and two means for each 512 values."""


@dataclasses.dataclass(frozen=True)
class TernGrad:
    """-1, 0 or 1 times the largest value of a chunk, at random so that the mean is right."""


@dataclasses.dataclass(frozen=True)
class TopK:
    """The largest values: this share of all, above 0 and at most 1."""

    ratio: float


@dataclasses.dataclass(frozen=True)
class RandomK:
    """Values at random places: this share of all."""

    ratio: float


@dataclasses.dataclass(frozen=True)
class Dgc:
    """The largest sums of momentum: this share of all, a quarter at first and less in each of `warmup_rounds`. The
    momentum is here: let the hub run `phub.Sgd`."""

    ratio: float
    momentum: float = 0.9
    clip: Optional[float] = None
    warmup_rounds: int = 0


@dataclasses.dataclass(frozen=True)
class SlimDP:
    """Only what matters crosses: the *core*, the share `beta` of all parameters that have the largest `|w| + c |g|`, and
    an *explorer*, `alpha - beta` of all that each worker draws in each round from the others.

    A worker makes its own steps on `Session.weights`, which can be written then, and adds what its step changed, the
    value before less the value after, to `Session.gradient`; the hub runs `phub.Sgd(1.0)`. What was sent then is the
    hub's, and its gradient zero; the rest stays the worker's own, and its change goes out when it is sent. To write the
    gradient anew in each round, and so lose what is left out, is the paper's algorithm 1, which learns more slowly.

    Attributes:
        alpha: above 0, at most 1.
        beta: from 0 to `alpha`; half of it is the paper's choice. With `alpha` itself nothing is explored.
        q: rounds from one selection of the core to the next. Such a round sends everything.
        c: how much a gradient counts beside a weight. Default: such that over the model both count the same.
        explorer: "seeded", both ends draw the same; or "keys", the places go along with the values.
    """

    alpha: float
    beta: float
    q: int = 20_000
    c: Optional[float] = None
    explorer: str = "seeded"


Compression = Union[F16, Bf16, Qsgd, OneBit, TernGrad, TopK, RandomK, Dgc, SlimDP]


def to_json(compression: Compression) -> str:
    """As the control port spells it."""
    name = "slim" if isinstance(compression, SlimDP) else type(compression).__name__.lower()
    return json.dumps({"codec": name, **dataclasses.asdict(compression)})
