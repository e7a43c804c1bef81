"""The reason why a script fails, as the other workers get it."""

from __future__ import annotations

import sys
from typing import Optional

# The hub takes 256 bytes.
_CHARACTERS = 200


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
    except Exception:  # a class of the script's own with a text that fails
        return "its text cannot be had"


def of_script() -> Optional[str]:
    """Returns the exception that has ended this script, if one has. At a prompt an exception ends nothing."""
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return None
    return reason(getattr(sys, "last_value", None))
