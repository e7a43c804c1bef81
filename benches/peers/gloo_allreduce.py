"""The gloo peer: a data-parallel job with PyTorch's all-reduce on CPUs instead of a hub.

Every rank is a process with three buffers of the model's size: gradients, momentum and weights. A round sums the gradients over
all ranks. Then every rank makes the optimizer's step on its own copy of the weights. Values and step are those of
mpi_allreduce.c:

    g = rescale * sum + weight_decay * w
    m = momentum * m + g
    w = w - lr * (g + momentum * m)

Choices that make gloo as fast as possible:
  - --piece sums the buffer in pieces that are all in flight at once, like the buckets of DistributedDataParallel. The step of a
    piece is made when its sum has arrived. A bucket of 25 MiB has 6553600 elements.
  - gloo sums in place. To write the gradients again between two rounds would cost a pass over memory. Instead the step replaces
    the sum by the mean: the next round's sum of all ranks' means is the same sum again.
  - The step runs over slices of 1 MiB, which stay in the cache from one operation to the next. Torch's own optimizer makes
    several passes over memory.
  - Buffers are in huge pages, and are touched before the first round.
  - Each rank has one torch thread if there are no more cores than ranks.

Prints one JSON object. Must not depend on hubs.
"""

import argparse
import json
import mmap
import os
import statistics
import sys
import tempfile
import time
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing

LEARNING_RATE = 0.01
MOMENTUM = 0.9
WEIGHT_DECAY = 0.0001
# Gradients and first weights repeat with this period. It is a prime, so that pieces whose size is a power of two differ.
PERIOD = 61
HUGE_PAGE_BYTES = 2 << 20
# The largest relative error of the weights. Torch fuses some multiplications and additions, so bits cannot be compared: after 23
# rounds the weights of right runs differ by some 1e-7 of their size.
TOLERANCE = 1e-5
SLICE = 1 << 18
NO_NORM_REACHES = 1e30
LIMIT = timedelta(seconds=60)


def buffer(elements):
    """Returns an array of f32 zeros whose pages are touched, in huge pages if the kernel has some."""
    memory = mmap.mmap(-1, elements * 4 + HUGE_PAGE_BYTES)
    memory.madvise(mmap.MADV_HUGEPAGE)
    start = -np.frombuffer(memory, np.uint8).ctypes.data % HUGE_PAGE_BYTES
    values = np.frombuffer(memory, np.float32, elements, start)
    values.fill(0)
    return values


def first_weights():
    """Returns one period of the weights before the first round."""
    return np.arange(PERIOD) / 64


def last_weights(mean, rounds):
    """Returns one period of the weights after `rounds` rounds, computed by another form of the same step, in double precision."""
    momentum, weights = np.zeros(PERIOD), first_weights()
    for _ in range(rounds):
        gradient = mean + weights * WEIGHT_DECAY
        momentum = gradient + momentum * MOMENTUM
        weights = weights - (gradient + momentum * MOMENTUM) * LEARNING_RATE
    return weights


def check(what, seen, period):
    """Compares every element with its expected value. The first wrong element ends the process."""
    expected = np.resize(period.astype(np.float32), len(seen))
    wrong = ~np.isclose(seen, expected, rtol=TOLERANCE, atol=TOLERANCE)
    if wrong.any():
        at = int(np.argmax(wrong))
        sys.exit(f"gloo_allreduce: {what}, element {at}: {seen[at]:.9g}; expected {expected[at]:.9g}")


class Rank:
    """The buffers of a rank, and its rounds."""

    def __init__(self, settings, elements, rank):
        self.workers, self.clips = settings.workers, settings.clip
        names = ("gradient", "momentum", "weights")
        self.gradient, self.momentum, self.weights = (torch.from_numpy(buffer(elements)) for _ in names)
        # The offsets of ranks are even, so that the mean over any number of workers is a whole number.
        for values, period in (self.gradient, np.arange(PERIOD) + 2 * rank), (self.weights, first_weights()):
            values.copy_(torch.from_numpy(np.resize(period.astype(np.float32), elements)))
        scratch = torch.zeros(min(SLICE, elements))
        self.pieces = []
        for piece in zip(*(whole.split(settings.piece) for whole in (self.gradient, self.momentum, self.weights))):
            slices = zip(*(part.split(SLICE) for part in piece))
            self.pieces.append((piece[0], [(*views, scratch[: len(views[0])]) for views in slices]))

    def round(self):
        works = [dist.all_reduce(gradient, async_op=True) for gradient, _ in self.pieces]
        if self.clips:
            for work in works:
                work.wait()
            self.clip()
        for work, (_, slices) in zip(works, self.pieces):
            work.wait()
            for views in slices:
                self.step(*views)

    def clip(self):
        """Clips as clip_grad_norm_ does, by a bound that no norm reaches, so that values do not change."""
        norm = torch.linalg.vector_norm(self.gradient) / self.workers
        self.gradient.mul_(torch.clamp(NO_NORM_REACHES / (norm + 1e-6), max=1.0))

    def step(self, gradient, momentum, weights, scratch):
        gradient.div_(self.workers)
        torch.add(gradient, weights, alpha=WEIGHT_DECAY, out=scratch)
        momentum.mul_(MOMENTUM).add_(scratch)
        weights.add_(scratch.add_(momentum, alpha=MOMENTUM), alpha=-LEARNING_RATE)


def run_here(number, settings, store, threads):
    run_rank(settings.first + number, settings, settings.elements, store, threads)


def run_rank(rank, settings, elements, store, threads):
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", f"file://{store}", LIMIT, settings.workers, rank)
    mine = Rank(settings, elements, rank)
    for _ in range(settings.warmup):
        mine.round()
    dist.barrier()
    times = [time.perf_counter()]
    for _ in range(settings.rounds):
        mine.round()
        times.append(time.perf_counter())

    rounds = [end - begin for begin, end in zip(times, times[1:])]
    # Rounds follow each other without a pause, so all ranks take about the same time. The slowest rank counts.
    slowest = torch.tensor([times[-1] - times[0], statistics.median(rounds)], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    mean = np.arange(PERIOD) + (settings.workers - 1)
    check(f"rank {rank}: mean", mine.gradient.numpy(), mean)
    check(f"rank {rank}: weights", mine.weights.numpy(), last_weights(mean, settings.warmup + settings.rounds))
    dist.barrier()  # after it, every rank has checked its result
    if rank == 0:
        seconds, median = slowest.tolist()
        goodput = settings.workers * elements * 4 / median / 1e9
        print(json.dumps({"peer": "gloo", "workers": settings.workers, "elements": elements, "rounds": settings.rounds,
                          "seconds": round(seconds, 6), "median_round_seconds": round(median, 6),
                          "goodput_gb_per_s": round(goodput, 4), "threads": threads, "checked": True}), flush=True)
    dist.barrier()  # no rank exits while another rank still sends


def whole(text):
    """Parses a whole number above 0, for argparse."""
    if text.isascii() and text.isdigit() and 0 < int(text) < 2**31:
        return int(text)
    raise argparse.ArgumentTypeError(f"'{text}'; expected a whole number from 1 to {2**31 - 1}")


def main():
    parser = argparse.ArgumentParser(description="Measures gloo's all-reduce.", allow_abbrev=False)
    parser.set_defaults(workers=4, rounds=20, warmup=3, elements=25557032, piece=2**31 - 1, interfaces=1, threads=None)
    for name in ["workers", "rounds", "warmup", "elements", "piece", "interfaces", "threads"]:
        parser.add_argument(f"--{name}", type=whole, metavar="N")
    parser.add_argument("--clip", action="store_true")
    # This command starts --here ranks, from rank --first on. Commands with the same store start the other ranks on other
    # machines.
    parser.add_argument("--here", type=whole, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="RANK")
    parser.add_argument("--store", metavar="FILE")
    parser.add_argument("--interface", default="lo", metavar="NAME")
    settings = parser.parse_args()
    threads = settings.threads or max(1, len(os.sched_getaffinity(0)) // settings.workers)
    # gloo gets the name of the interface, because the host's own name may have no address. By default it gets one name: for
    # each interface, gloo adds a connection between two ranks, and two threads to each rank.
    os.environ["GLOO_SOCKET_IFNAME"] = ",".join([settings.interface] * settings.interfaces)
    with tempfile.TemporaryDirectory() as directory:
        store = settings.store or os.path.join(directory, "store")
        here = settings.here or settings.workers
        torch.multiprocessing.start_processes(run_here, (settings, store, threads), here, start_method="fork")


if __name__ == "__main__":
    main()
