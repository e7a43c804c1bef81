"""The tensors of a model, as a job knows them."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, Dict, List, Mapping, Sequence, Tuple, Union

import numpy as np
import numpy.typing as npt

from . import _phub

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Key:
    """A tensor of the model.

    Attributes:
        shape: the size of each dimension.
        dtype: "f32", "f16" or "bf16". NumPy has no bf16: the arrays of such a key are uint16 with the bits.
        lr_mult: the multiplier of the job's learning rate for this key.
        wd_mult: the multiplier of the job's weight decay for this key.
    """

    shape: Tuple[int, ...]
    dtype: str = "f32"
    lr_mult: float = 1.0
    wd_mult: float = 1.0


_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def key_of(name: str, given: Union[Key, Sequence[int], Array]) -> Key:
    if isinstance(given, np.ndarray):
        dtype = _DTYPES.get(given.dtype.name)
        if dtype is None:
            raise _phub.SettingsError(
                f"key {name!r} is an array of {given.dtype}; a hub takes float32, float16 and bf16 "
                f"(phub.Key(shape, 'bf16')): convert the array first"
            )
        return Key(given.shape, dtype)
    key = given if isinstance(given, Key) else Key(given)  # type: ignore[arg-type]  # checked below
    try:
        shape = tuple(map(operator.index, key.shape))
        made = Key(shape, key.dtype, float(key.lr_mult), float(key.wd_mult))
    except (TypeError, ValueError):
        shape, made = (-1,), key
    if min(shape, default=0) < 0 or not isinstance(key.dtype, str):
        raise _phub.SettingsError(
            f"key {name!r} is {given!r:.60}: expected a shape such as (10, 64), a NumPy array, or a key such as phub.Key((10, 64), 'f32')"
        )
    return made


def keys_of(given: Mapping[str, Union[Key, Sequence[int], Array]]) -> Dict[str, Key]:
    """Returns the keys of a model.

    Raises:
        SettingsError: there is no key, a name is no text, or a job cannot have the tensor of a key.
    """
    if not isinstance(given, Mapping):
        raise _phub.SettingsError(f"keys is {given!r:.60}: expected shapes or NumPy arrays by name")
    if not given:
        raise _phub.SettingsError("keys is empty: expected at least one tensor")
    strange = next((name for name in given if not isinstance(name, str)), None)
    if strange is not None:
        raise _phub.SettingsError(f"keys: the name {strange!r:.60} is no text: expected names such as 'weight'")
    return {name: key_of(name, each) for name, each in given.items()}


def check_unmasked(what: str, values: object) -> None:
    """Checks that no element of an array is masked. NumPy would copy the numbers behind the mask.

    Raises:
        SettingsError: an element is masked.
    """
    if np.ma.is_masked(values):
        raise _phub.SettingsError(f"{what}: some values are masked; expected numbers: use values.filled(0.0), or another number")


def described(keys: Mapping[str, Key]) -> List[Tuple[str, List[int], str, float, float]]:
    """Returns the keys in the form that the native module takes."""
    return [(name, list(key.shape), key.dtype, key.lr_mult, key.wd_mult) for name, key in keys.items()]


@dataclasses.dataclass(frozen=True)
class Places:
    """The positions of gradients in a `dma_buf`: the number of `bytes` of all gradients, and for each key its offset and its number
    of bytes."""

    bytes: int
    keys: Dict[str, Tuple[int, int]]


def places(keys: Mapping[str, Union[Key, Sequence[int], Array]]) -> Places:
    """Returns the positions at which a session with these keys reads the gradients in its `dma_buf`. Offsets are in bytes."""
    of_bytes, spans = _phub.places(described(keys_of(keys)))
    return Places(of_bytes, dict(zip(keys, spans)))
