"""Shared by the peers in Python: values whose result is known, memory, and the printed line.

Knows neither gloo nor MXNet, and nothing of hubs. The values and the step are those of mpi_allreduce.c:

    g = rescale * sum + weight_decay * w
    m = momentum * m + g
    w = w - lr * (g + momentum * m)
"""

import argparse
import json
import mmap
import sys

import numpy as np

LEARNING_RATE = 0.01
MOMENTUM = 0.9
WEIGHT_DECAY = 0.0001
# Gradients and first weights repeat with this period. It is a prime: no power-of-two piece lines up with it.
PERIOD = 61
HUGE_PAGE_BYTES = 2 << 20
# Both systems fuse some multiplications into additions, so bits are not comparable: over 23 rounds the
# weights of right runs differ by some 1e-7 of their size.
TOLERANCE = 1e-5


def whole(least, most):
    """A parser of whole numbers for argparse."""

    def parse(text):
        if text.isascii() and text.isdigit() and least <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"'{text}'; expected a whole number from {least} to {most}")

    return parse


def lengths(text):
    """A parser of lists such as 9408,64,64."""
    return [whole(1, 2**31 - 1)(item) for item in text.split(",")]


def options(description):
    """The options that every peer has."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--workers", type=whole(1, 1024), default=4, metavar="N", help="ranks (4)")
    parser.add_argument("--rounds", type=whole(1, 10**6), default=20, metavar="N", help="measured rounds (20)")
    parser.add_argument("--warmup", type=whole(1, 10**6), default=3, metavar="N", help="rounds before (3)")
    return parser


def buffer(elements):
    """Zeros of f32, touched, in huge pages if the kernel has some."""
    size = elements * 4
    memory = mmap.mmap(-1, size + HUGE_PAGE_BYTES)
    memory.madvise(mmap.MADV_HUGEPAGE)
    start = -np.frombuffer(memory, np.uint8).ctypes.data % HUGE_PAGE_BYTES
    values = np.frombuffer(memory, np.float32, elements, start)
    values.fill(0)
    return values


def repeat(values, elements):
    """Repeats the period."""
    return np.resize(values.astype(np.float32), elements)


def gradient_period(rank):
    """Even offsets for ranks: the mean over any number of workers is a whole number."""
    return np.arange(PERIOD) + 2 * rank


def mean_period(workers):
    """The mean of all workers' gradients."""
    return np.arange(PERIOD) + (workers - 1)


def first_weight_period():
    """The weights before the first round."""
    return np.arange(PERIOD) / 64


def weight_period(workers, rounds, weights_are_gradients=False):
    """The weights after `rounds` rounds: the step again, written differently and in double precision.

    `weights_are_gradients`: after the first round, the gradients are the weights of the round before.
    """
    momentum = np.zeros(PERIOD)
    weights = first_weight_period()
    for index in range(rounds):
        mean = weights if weights_are_gradients and index > 0 else mean_period(workers)
        gradient = mean + weights * WEIGHT_DECAY
        momentum = gradient + momentum * MOMENTUM
        weights = weights - (gradient + momentum * MOMENTUM) * LEARNING_RATE
    return weights


def check(what, seen, period):
    """Compares every element with its expected value. The first wrong element ends the process."""
    expected = repeat(period, len(seen))
    wrong = ~np.isclose(seen, expected, rtol=TOLERANCE, atol=TOLERANCE)
    if wrong.any():
        at = int(np.argmax(wrong))
        sys.exit(f"{what}, element {at}: {seen[at]:.9g}; expected {expected[at]:.9g}")


def median(values):
    """The middle value, or the mean of the two in the middle."""
    return float(np.median(values))


def print_result(peer, settings, elements, seconds, median_round_seconds, **more):
    """Prints one JSON object. Call it only after every rank has checked its result."""
    moved = settings.workers * elements * 4
    result = {
        "peer": peer,
        "workers": settings.workers,
        "elements": elements,
        "rounds": settings.rounds,
        "seconds": round(seconds, 6),
        "median_round_seconds": round(median_round_seconds, 6),
        "goodput_gb_per_s": round(moved / median_round_seconds / 1e9, 4),
        **more,
        "checked": True,
    }
    print(json.dumps(result, separators=(",", ":")), flush=True)
