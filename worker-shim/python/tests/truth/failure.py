"""An exception, a hang or a crash that ended an idiom, and the idiom's lines that it names."""

import dataclasses
import os
import re
import traceback

import phub

# DDP raises its own error, whose text begins with the name of the hub's error.
_ERRORS = [name for name, each in vars(phub).items() if isinstance(each, type) and issubclass(each, phub.Error)]


@dataclasses.dataclass
class Failure:
    kind: str
    text: str
    is_the_hubs: bool
    """Whether the failure is a `phub.Error`."""
    lines: tuple
    """The idiom's lines that the traceback or the text names, the innermost last."""
    traceback: str


def of_exception(idiom, error):
    """Returns the failure of an exception, with the text and the lines that a user sees."""
    text = str(error)
    shown = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    is_the_hubs = isinstance(error, phub.Error) or text.split(":")[0] in _ERRORS
    in_frames, in_text = _lines(idiom, shown), _lines(idiom, text)
    return Failure(type(error).__name__, text, is_the_hubs, in_frames + in_text, shown)


def of_process(idiom, kind, text, shown):
    """Returns the failure of a process that hangs or has ended. `shown` is its stack, the innermost frame first."""
    return Failure(kind, text, False, tuple(reversed(_lines(idiom, shown))), shown)


def _lines(idiom, text):
    """Returns the idiom's lines that a text names, in the order of the text."""
    file, body = idiom.place()
    with open(file) as source:
        lines = source.read().splitlines()
    name = re.escape(os.path.basename(file))
    numbers = [int(number) for number in re.findall(rf'{name}(?:", line |:)(\d+)', text)]
    return tuple(lines[number - 1].strip() for number in numbers if number in body)
