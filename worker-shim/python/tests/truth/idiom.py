"""`@idiom`: a function that is written in the way of real training loops, and the settings of its test."""

import dataclasses
import importlib
import inspect
import pathlib
import pkgutil

import torch

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
TOLERANCE = 1e-6
LIMIT_S = 20

_FOUND = {}


@dataclasses.dataclass(frozen=True)
class Idiom:
    """An idiom. Its name is the file's name, a dot, and the function's name."""

    name: str
    topic: str
    body: object
    workers: tuple
    """The numbers of workers with which the idiom makes sense."""
    needs: tuple
    """The oldest version of torch with which the idiom works: for one worker, and for several workers."""
    raises: bool
    """Whether torch raises an error. The hub must then raise an error, too."""
    tolerance: float
    why_tolerance: str
    hooked: bool
    """Whether the idiom also makes sense with DDP's communication hook and with the backend "phub"."""
    limit_s: float
    """The timeout, in seconds, after which a run counts as a hang. A run takes some hundredths of a second."""

    def reason_to_skip(self, workers):
        needs = self.needs[min(workers, 2) - 1]
        needed = ".".join(map(str, needs))
        return f"needs torch {needed}, and this is {torch.__version__}" if VERSION < needs else ""

    def place(self):
        """Returns the file of the body, and the numbers of its lines."""
        lines, first = inspect.getsourcelines(self.body)
        return inspect.getsourcefile(self.body), range(first, first + len(lines))


def described(
    body,
    *,
    workers=(1, 2),
    needs=(1, 13),
    needs_for_two=None,
    raises=False,
    tolerance=TOLERANCE,
    why_tolerance="",
    hooked=True,
    limit_s=LIMIT_S,
):
    """Returns an idiom with this body, without adding it to `idioms()`."""
    assert tolerance == TOLERANCE or why_tolerance, "a looser tolerance has a reason"
    topic = body.__module__.rpartition(".")[2]
    both = (needs, needs_for_two or needs)
    name = f"{topic}.{body.__name__}"
    return Idiom(name, topic, body, workers, both, raises, tolerance, why_tolerance, hooked, limit_s)


def idiom(**settings):
    """Returns a decorator that adds a function to `idioms()`. The settings are those of `described`."""

    def add(body):
        made = described(body, **settings)
        assert made.name not in _FOUND, f"two idioms are called {made.name}"
        _FOUND[made.name] = made
        return body

    return add


def idioms():
    """Returns all idioms by name, in the order of files and lines."""
    if not _FOUND:
        folder = pathlib.Path(__file__).parent / "idioms"
        for module in sorted(each.name for each in pkgutil.iter_modules([str(folder)])):
            importlib.import_module(f"{__package__}.idioms.{module}")
    return _FOUND
