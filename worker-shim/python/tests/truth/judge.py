"""The cases, their outcomes, and the allowed outcomes. A case is an idiom, a number of workers and a way."""

import dataclasses
import functools
import re

from .errors import ERRORS
from .fleet import Fleet
from .idiom import VERSION, Idiom, idioms
from .records import difference, without_modules
from .ways import HUB_WAYS, REFERENCE, UNREAD


@dataclasses.dataclass(frozen=True)
class Case:
    idiom: Idiom
    workers: int
    way: str

    def __str__(self):
        return f"{self.idiom.name}-{self.workers}-{self.way}"


def cases():
    """Yields all cases that this version of torch can run."""
    c10d = ("c10d",) if VERSION >= (2, 4) else ()
    for idiom in idioms().values():
        for workers in idiom.workers:
            by_ddp = ("hook", *c10d) if idiom.hooked and workers > 1 else ()
            for way in (*HUB_WAYS, *by_ddp):
                yield Case(idiom, workers, way)


@dataclasses.dataclass(frozen=True)
class Outcome:
    word: str
    """"equal", "error", "raises", "DIFFERS", "FAILED" or "skipped"."""
    text: str
    passes: bool
    details: str = ""

    def __str__(self):
        return f"{self.word} {self.text}".strip()

    def short(self):
        """Returns the first words of the outcome, for a table."""
        return self.word if self.word in ("equal", "skipped") else re.split(r"[:`]| at ", str(self))[0].strip()


class Judge:
    """A judge that runs cases and compares them with references, the runs with plain torch. Each reference runs once."""

    def __init__(self, hub):
        self._fleets = {}
        self._hub = hub

    def outcome(self, case):
        idiom = case.idiom
        reason = idiom.reason_to_skip(case.workers)
        if reason:
            return Outcome("skipped", reason, True)
        expected = self._reference(idiom, case.workers)
        broken = [each.failure for each in expected if bool(each.failure) != idiom.raises]
        if broken:
            failure = broken[0]
            text = f"{failure.kind}: {failure.text}" if failure else "it does not raise"
            return Outcome("FAILED", f"torch itself: {text}", False, failure.traceback if failure else "")
        seen = self._fleet(case.workers, "phub" if case.way == "c10d" else "gloo").run(idiom, case.way)
        outcomes = [_judge(idiom, case, *pair) for pair in zip(expected, seen)]
        return min(outcomes, key=lambda each: _SEVERITY.index(each.word))

    @functools.lru_cache(maxsize=None)  # noqa: B019, because a process has one judge
    def _reference(self, idiom, workers):
        return self._fleet(workers, "gloo").run(idiom, REFERENCE)

    def _fleet(self, workers, backend):
        if (workers, backend) not in self._fleets:
            self._fleets[workers, backend] = Fleet(workers, backend, self._hub)
        return self._fleets[workers, backend]

    def stop(self):
        for fleet in self._fleets.values():
            fleet.stop()


_SEVERITY = ("FAILED", "DIFFERS", "error", "raises", "equal")


def _judge(idiom, case, expected, seen):
    failure = seen.failure
    if failure and failure.is_the_hubs and not idiom.raises:
        return _error(idiom, failure)
    if failure and not idiom.raises:
        at = f" at `{failure.lines[-1]}`" if failure.lines else ""
        return Outcome("FAILED", f"{failure.kind}{at}: {failure.text}", False, failure.traceback)
    if idiom.raises and not failure:
        return Outcome("FAILED", f"no error: torch raises {expected.failure.kind}", False)
    values = without_modules(expected.values) if case.way == UNREAD else expected.values
    apart, where = difference(values, seen.values)
    if not apart <= idiom.tolerance:
        return Outcome("DIFFERS", f"by {apart:.2g}: {where}", False)
    if idiom.raises:
        return Outcome("raises", f"{failure.kind}: torch raises {expected.failure.kind}", True)
    return Outcome("equal", f"{apart:.0e}" if apart else "", True)


def _error(idiom, failure):
    _reason, line = ERRORS.get(idiom.name, ("", None))
    named = [each for each in failure.lines if line is not None and line in each]
    shown = (named or failure.lines or ("no line of the script",))[-1]
    return Outcome("error", f"{failure.kind} at `{shown}`: {failure.text}", bool(named), failure.traceback)
