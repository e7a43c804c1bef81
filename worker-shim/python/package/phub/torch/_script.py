"""The current line of the user's script, for errors and warnings that come from elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
from types import FrameType
from typing import Optional

import torch

_OURS = tuple(os.path.dirname(os.path.dirname(os.path.abspath(file))) + os.sep for file in (__file__, torch.__file__ + "/x"))
_SKIPPED = (*_OURS, contextlib.__file__)


def line() -> str:
    """Returns the file and line of the innermost caller that is neither this package nor torch."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_skipped(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _is_skipped(file: str) -> bool:
    return os.path.abspath(file).startswith(_SKIPPED) or file.startswith("<eval_with_key>")  # code that torch.compile has made


def is_within(function: str) -> bool:
    """Whether a function of torch with this name is running."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == function and os.path.abspath(frame.f_code.co_filename).startswith(_OURS):
            return True
        frame = frame.f_back
    return False
