"""Idioms that are wrong with the hub on purpose, to test the harness: see `test_harness.py`."""

import os
import threading

import phub

from .idiom import described
from .ways import REFERENCE


def wrong_number(ctx):
    ctx.record(loss=2.0)
    ctx.record(loss=1.0 if ctx.way == REFERENCE else 1.00001)


def one_value_more(ctx):
    ctx.record(loss=1.0)
    if ctx.way != REFERENCE:
        ctx.record(loss=1.0)


def hang(ctx):
    if ctx.way != REFERENCE and ctx.rank == ctx.world - 1:
        threading.Event().wait()


def death(ctx):
    if ctx.way != REFERENCE:
        os._exit(3)


def error_of_python(ctx):
    if ctx.way != REFERENCE:
        {}["missing"]


def error_of_the_hub(ctx):
    if ctx.way != REFERENCE:
        raise phub.OrderError("out of order")


def error_of_torch(ctx):
    if ctx.way == REFERENCE:
        raise RuntimeError("torch refuses it")


def right(ctx):
    ctx.run().train(2)


HANG = described(hang, limit_s=3)
DEATH = described(death)
WRONG_NUMBER = described(wrong_number)
ONE_VALUE_MORE = described(one_value_more)
ERROR_OF_PYTHON = described(error_of_python)
ERROR_OF_THE_HUB = described(error_of_the_hub)
ERROR_OF_TORCH = described(error_of_torch, raises=True)
UNEXPECTED_ERROR_OF_TORCH = described(error_of_torch)
RIGHT = described(right)
