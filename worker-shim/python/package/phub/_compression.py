"""The codecs, which make gradients and weights smaller before they are sent. The classes hold only numbers; the session and the
hub encode and decode.

Unbiased codecs (`Qsgd`, `TernGrad`) draw random numbers from the session's `seed`. Codecs that leave something out (`OneBit`,
`TopK`, `RandomK`, `Dgc`) keep what they left out, and send it in later rounds.
"""

from __future__ import annotations

import dataclasses
from typing import Optional, Union, get_args

from . import _optimizers
from ._phub import SettingsError


@dataclasses.dataclass(frozen=True)
class F16:
    """A codec that halves the bytes. Each gradient is sent as the nearest f16, and the hub answers in bfloat16. A value beyond
    65504 becomes infinite. With `Average`, a mean thus has 8 significant bits, and the hub adds its rounding error to the next
    mean."""


@dataclasses.dataclass(frozen=True)
class Bf16:
    """A codec that halves the bytes: each value is sent as the nearest bfloat16. `Average` rounds its means as with `F16`."""


@dataclasses.dataclass(frozen=True)
class Qsgd:
    """QSGD: each value is rounded to one of the levels between zero and the largest magnitude of `bucket` values, at random and
    without bias. Each value is sent in `bits` bits, 1 to 8."""

    bits: int
    bucket: int = 512


@dataclasses.dataclass(frozen=True)
class OneBit:
    """A codec that sends the sign of each value in one bit. For each 512 values it sends two means: of the negative values, and of
    all other values."""


@dataclasses.dataclass(frozen=True)
class TernGrad:
    """TernGrad: each value is rounded to -1, 0 or 1 times the largest magnitude of its chunk, at random and without bias."""


@dataclasses.dataclass(frozen=True)
class TopK:
    """A codec that sends the values with the largest magnitudes. `ratio` is their share of all values, above 0 and at most 1."""

    ratio: float


@dataclasses.dataclass(frozen=True)
class RandomK:
    """A codec that sends the values of random elements. `ratio` is their share of all values, above 0 and at most 1."""

    ratio: float


@dataclasses.dataclass(frozen=True)
class Dgc:
    """Deep gradient compression: only the largest sums of momentum are sent. The worker applies the momentum, so the hub must run
    `phub.Sgd`, or return the workers' mean or sum (`Average`, `Sum`).

    Attributes:
        ratio: the share of all values that are sent. The share is a quarter at first, and becomes smaller in each of the first
            `warmup_rounds`.
        momentum: the factor of the momentum.
        clip: the largest root mean square of a chunk of a worker's gradient. A larger chunk is scaled down, before the
            momentum. Default: no bound.
        warmup_rounds: the number of rounds until the share is `ratio`.
    """

    ratio: float
    momentum: float = 0.9
    clip: Optional[float] = None
    warmup_rounds: int = 0


@dataclasses.dataclass(frozen=True)
class SlimDP:
    """Slim-DP: in each round only some parameters are sent. The *significant set* is the share `beta` of all parameters with the
    largest `|w| + c |g|`. The *explorer* is the share `alpha - beta`, which each worker draws in each round from the other
    parameters.

    A worker makes its own steps on `Session.weights`, which is then writable. It adds each change (the value before minus the
    value after) to `Session.gradient`, and the hub runs `phub.Sgd(1.0)`. The hub's values replace the values that were sent,
    and the gradient of these values becomes zero. The worker keeps all other values and their gradient, which is sent in a
    later round. A worker that overwrites the gradient in each round loses the changes that were not sent. The paper's algorithm
    1 does so, and learns more slowly.

    Attributes:
        alpha: the share of all parameters that a round sends, above 0 and at most 1.
        beta: the share of the significant set, from 0 to `alpha`. The paper uses half of `alpha`. With `beta` equal to
            `alpha` there is no explorer.
        q: the number of rounds from one selection of the significant set to the next. A round with a selection sends
            everything.
        c: the factor of a gradient, relative to a weight. Default: `mean |w| / mean |g|` of the whole model.
        explorer: "seeded": worker and hub draw the same parameters; "keys": the parameters' positions are sent with the values.
    """

    alpha: float
    beta: float
    q: int = 20_000
    c: Optional[float] = None
    explorer: str = "seeded"


Compression = Union[F16, Bf16, Qsgd, OneBit, TernGrad, TopK, RandomK, Dgc, SlimDP]


def check(compression: Optional[Compression], optimizer: _optimizers.Optimizer) -> None:
    """Checks that `compression` is a codec, and that the hub's optimizer keeps no state if the codec has momentum.

    Raises:
        SettingsError: `compression` is no codec, or the codec has momentum and the optimizer keeps state.
    """
    if not isinstance(compression, (*get_args(Compression), type(None))):
        raise SettingsError(f"compression is {compression!r:.60}: expected one of phub's codecs, such as phub.Qsgd(bits=8)")
    takes = (_optimizers.Sgd, _optimizers.Average, _optimizers.Sum)
    if isinstance(compression, Dgc) and compression.momentum and not isinstance(optimizer, takes):
        raise SettingsError(
            f"compression: {compression} has momentum, and the hub's {type(optimizer).__name__} would add momentum a second time: use "
            f"phub.Sgd (in torch SGD with momentum=0), to which the codec adds momentum; or phub.TopK({compression.ratio}), a codec without momentum"
        )


def to_text(compression: Compression) -> str:
    """Returns a codec as the text of the command line: its name and its settings, such as "qsgd:8:512"."""
    name = "slim" if isinstance(compression, SlimDP) else type(compression).__name__.lower()
    settings = ["none" if value is None else str(value) for value in dataclasses.astuple(compression)]
    return ":".join([name, *settings])
