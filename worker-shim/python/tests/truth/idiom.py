"""`@idiom`: a function that is written as people write training loops, and the facts that the test needs
about it."""

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
    """One idiom. Its name is the file's and the function's."""

    name: str
    topic: str
    body: object
    workers: tuple
    """The numbers of workers with which it makes sense."""
    needs: tuple
    """The oldest torch that has what it uses, by the number of workers."""
    raises: bool
    """Whether torch raises. The hub must raise as well."""
    tolerance: float
    why_tolerance: str
    hooked: bool
    """Whether it also makes sense with DDP's comm hook and the backend "phub"."""
    limit_s: float
    """A hang, not slowness: an idiom takes some hundredths of a second."""

    def reason_to_skip(self, workers):
        needs = self.needs[min(workers, 2) - 1]
        needed = ".".join(map(str, needs))
        return f"needs torch {needed}, and this is {torch.__version__}" if VERSION < needs else ""

    def place(self):
        """Returns the file and the lines of the body."""
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
    """Returns an idiom of this body, which is not among `idioms()`."""
    assert tolerance == TOLERANCE or why_tolerance, "a looser tolerance has a reason"
    topic = body.__module__.rpartition(".")[2]
    both = (needs, needs_for_two or needs)
    name = f"{topic}.{body.__name__}"
    return Idiom(name, topic, body, workers, both, raises, tolerance, why_tolerance, hooked, limit_s)


def idiom(**settings):
    """Makes the function below it an idiom. Settings are those of `described`."""

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
