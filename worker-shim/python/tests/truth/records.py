"""The numbers that a run has recorded, and the difference of two runs."""

import numpy as np
import torch


class Records:
    """A list of (label, value), in the order in which the script recorded them."""

    def __init__(self, reads_modules):
        self.values = []
        self._reads_modules = reads_modules

    def add(self, modules, values):
        for name, value in values.items():
            self._add(name, value)
        if self._reads_modules:
            self.add_modules("", modules)

    def add_modules(self, when, modules):
        for number, module in enumerate(modules):
            for name, value in module.state_dict().items():
                self._add(f"{when or MODULE} {number}: {name}", value)

    def _add(self, label, value):
        if isinstance(value, torch.Tensor):
            array = value.detach().cpu()
            array = array.float() if array.is_floating_point() and array.dtype != torch.float64 else array
            self.values.append((label, array.numpy().copy()))
        elif isinstance(value, dict):
            for key, inner in value.items():
                self._add(f"{label}[{key}]", inner)
        elif isinstance(value, (list, tuple)):
            for number, inner in enumerate(value):
                self._add(f"{label}[{number}]", inner)
        elif isinstance(value, (int, float, bool, str, type(None))):
            self.values.append((label, value))
        else:
            raise TypeError(f"{label}: a {type(value).__name__} cannot be compared")


MODULE = "module"
"""The label of a module that the script reads between two steps. In the way `unread` the script does not read it."""


def without_modules(values):
    return [(label, value) for label, value in values if not label.startswith(MODULE)]


def _largest_of_scalars(values):
    """Returns the largest absolute number of each label."""
    largest = {}
    for label, value in values:
        if not isinstance(value, (str, type(None))) and np.ndim(value) == 0:
            size = np.abs(np.float64(value))
            if np.isfinite(size):
                largest[label] = max(largest.get(label, 0.0), size)
    return largest


def difference(expected, seen):
    """Returns the largest relative difference between the records of two runs, and the first value where it is above 1e-6.

    A difference in a tensor is relative to the tensor's largest value. A difference of a number is relative to the largest number
    with its label. Texts must be equal.
    """
    worst, where, first = 0.0, "", ""
    largest = _largest_of_scalars(expected)
    times = {}
    for (label, ours), (other, theirs) in zip(expected, seen):
        times[label] = times.get(label, 0) + 1
        if label != other:
            return np.inf, f"torch recorded {label!r}, and this run {other!r}"
        here = _apart(ours, theirs, largest.get(label))
        if here > worst or np.isnan(here):
            worst, where = here, f"{label} (its number {times[label]})"
        if here > 1e-6 and not first:
            first = where
    if len(expected) != len(seen):
        return np.inf, f"{len(seen)} values were recorded, by torch {len(expected)}"
    return worst, first or where


def _apart(ours, theirs, scale):
    if isinstance(ours, (str, type(None))) or isinstance(theirs, (str, type(None))):
        return 0.0 if ours is theirs or ours == theirs else np.inf
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if ours.shape != theirs.shape:
        return np.inf
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    if same.all():
        return 0.0
    if not np.isfinite(ours[~same]).all() or not np.isfinite(theirs[~same]).all():
        return np.inf
    finite = np.abs(ours[np.isfinite(ours)])
    scale = scale or (finite.max() if finite.size else 0.0)
    return np.inf if scale == 0.0 else float(np.abs(ours - theirs)[~same].max() / scale)
