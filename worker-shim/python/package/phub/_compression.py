"""The codecs that make gradients and weights smaller before they cross. Plain data; the arithmetic is the session's and
the hub's.

Unbiased codecs (`Qsgd`, `TernGrad`) draw random numbers from the session's `seed`. Codecs that leave something out
(`OneBit`, `TopK`, `RandomK`, `Dgc`) send it later.
"""

from __future__ import annotations

import dataclasses
from typing import Optional, Union


@dataclasses.dataclass(frozen=True)
class F16:
    """The nearest number of 16 bits: half the bytes. A value beyond 65504 becomes infinite."""


@dataclasses.dataclass(frozen=True)
class Bf16:
    """The nearest bfloat16: half the bytes."""


@dataclasses.dataclass(frozen=True)
class Qsgd:
    """Levels between zero and the largest of `bucket` values, in `bits` (1 to 8), rounded at random without bias."""

    bits: int
    bucket: int = 512


@dataclasses.dataclass(frozen=True)
class OneBit:
    """Signs, and two means for each 512 values."""


@dataclasses.dataclass(frozen=True)
class TernGrad:
    """-1, 0 or 1 times the largest value of a chunk, rounded at random without bias."""


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
    worker applies the momentum: let the hub run `phub.Sgd`."""

    ratio: float
    momentum: float = 0.9
    clip: Optional[float] = None
    warmup_rounds: int = 0


@dataclasses.dataclass(frozen=True)
class SlimDP:
    """Slim-DP: only some parameters cross. The *significant set* is the share `beta` of all parameters with the largest
    `|w| + c |g|`. The *explorer* is the share `alpha - beta` that each worker draws in each round from the others.

    A worker makes its own steps on `Session.weights`, which is then writable. It adds the change (the value before
    minus the value after) to `Session.gradient`; the hub runs `phub.Sgd(1.0)`. Values that were sent are replaced by
    the hub's, and their gradient becomes zero. The other values stay the worker's own, and their change leaves when
    they are sent. A worker that overwrites the gradient in each round loses these changes: that is the paper's algorithm 1,
    which learns more slowly.

    Attributes:
        alpha: above 0, at most 1.
        beta: from 0 to `alpha`; half of it is the paper's choice. With `alpha` itself nothing is explored.
        q: rounds from one selection of the significant set to the next. Such a round sends everything.
        c: the factor of a gradient, relative to a weight. Default: both count the same over the model.
        explorer: "seeded": both ends draw the same places; or "keys": the places are sent with the values.
    """

    alpha: float
    beta: float
    q: int = 20_000
    c: Optional[float] = None
    explorer: str = "seeded"


Compression = Union[F16, Bf16, Qsgd, OneBit, TernGrad, TopK, RandomK, Dgc, SlimDP]


def to_text(compression: Compression) -> str:
    """Returns the text as on a command line: the name and the settings, such as "qsgd:8:512"."""
    name = "slim" if isinstance(compression, SlimDP) else type(compression).__name__.lower()
    settings = ["none" if value is None else str(value) for value in dataclasses.astuple(compression)]
    return ":".join([name, *settings])
