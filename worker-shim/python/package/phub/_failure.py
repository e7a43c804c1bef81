"""The text that tells the other workers why a script failed."""

from __future__ import annotations

import sys
from typing import Optional

# The hub takes 600 bytes, and marks a text that is longer.
_CHARACTERS = 601


def reason(error: object) -> Optional[str]:
    """Returns the type and the text of an exception, on one line. Returns None for an exception that ends a script or a
    generator normally."""
    if not isinstance(error, BaseException) or isinstance(error, GeneratorExit):
        return None
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return None
        text = f"exit({error.code!r})"
    else:
        text = f"{type(error).__name__}: {_text(error)}".rstrip(": ")
    return "".join(c if c.isprintable() else " " for c in text[:_CHARACTERS])


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an exception class of the script, whose `__str__` raises
        return "its text cannot be read"


def of_script() -> Optional[str]:
    """Returns the text of the exception that ended this script; None if no exception did. At a Python
    prompt an exception does not end the process, so the result is None."""
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return None
    return reason(getattr(sys, "last_value", None))
