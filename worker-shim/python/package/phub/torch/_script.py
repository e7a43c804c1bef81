"""The current line of the user's script, for errors that are raised elsewhere."""

from __future__ import annotations

import os
import sys

import torch

_OURS = tuple(os.path.dirname(os.path.dirname(os.path.abspath(file))) + os.sep for file in (__file__, torch.__file__ + "/x"))


def line() -> str:
    """Returns the file and line of the innermost caller that is neither this package nor torch."""
    frame = sys._getframe(1)
    while frame.f_back is not None and os.path.abspath(frame.f_code.co_filename).startswith(_OURS):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
