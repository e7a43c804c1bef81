#!/usr/bin/env python3
"""A model of a hub's memory traffic. It computes the bytes that cross the memory bus for each byte that workers
push, and the highest goodput of three machines. NICs deliver into a simulated last-level cache. Writes
traffic.csv. Takes some minutes, and needs no root."""

import argparse
import collections
import csv
import itertools
import os
import random

CHUNK_BYTES = 32 << 10
# The values that a step reads and writes in addition to the slots: weights and momentum (Nesterov).
STATE = ["weights", "momentum"]
# When a core sums the slots (workers' gradients) of a chunk. Last: all slots when the last slot has arrived. In order: each
# slot when the slots of all lower ranks have arrived. Any order: each slot when it arrives.
WAYS = ["last", "in order", "any order"]
# The numbers of chunks by which the last worker is behind the first.
LAGS = [0, 16, 64, 256, 512, 1024, 2048, 4096]
SEEDS = 2

Machine = collections.namedtuple("Machine", "name nics wire_gb_s memory_gb_s cache_mb cache_ways io_ways")
# The numbers are for both sockets together. `wire_gb_s` is the rate of the NICs each way, less headers and coding. `memory_gb_s`
# is 0.8 of the rated speed of the memory channels. `io_ways` is the part of the cache into which NICs deliver.
MACHINES = [
    Machine("10 x 56 Gb/s", 10, 68, 125, 70, 20, 2),  # PBox: 2 x E5-2690 v4, 8 x DDR4-2400
    Machine("8 x 100 Gb/s", 8, 98, 330, 108, 12, 2),  # 2 x Ice Lake SP, 16 x DDR4-3200
    Machine("8 x 400 Gb/s", 8, 392, 490, 210, 15, 2),  # 2 x Sapphire Rapids, 16 x DDR5-4800
]
# The value of `io_ways` for NICs that write to memory, past the cache.
NO_IO = 0


class Cache:
    """A cache of blocks as large as a chunk, with a separate part for blocks that NICs deliver. Each part evicts the block that
    was not used for the longest time. The cache counts the blocks that cross the memory bus."""

    def __init__(self, blocks, io_blocks):
        self.room = {"core": blocks - io_blocks, "io": io_blocks}
        # For each block in the cache, whether its value in memory is older.
        self.parts = {"core": collections.OrderedDict(), "io": collections.OrderedDict()}
        self.reads = self.writes = 0

    def read(self, block):
        """Reads a block, by a core or a NIC. A block that was not in the cache is then in the cores' part."""
        if not self._use(block, False):
            self.reads += 1
            self._put("core", block, False)

    def write(self, block):
        """Writes a block by a core, which reads the block first."""
        self.read(block)
        self._use(block, True)

    def deliver(self, block):
        """Writes a whole block by a NIC, which reads nothing."""
        if self.room["io"] == 0:
            for part in self.parts.values():
                part.pop(block, None)
            self.writes += 1
        elif not self._use(block, True):
            self._put("io", block, True)

    def _use(self, block, changes):
        for part in self.parts.values():
            if block in part:
                part[block] |= changes
                part.move_to_end(block)
                return True
        return False

    def _put(self, name, block, changed):
        part = self.parts[name]
        part[block] = changed
        if len(part) > self.room[name]:
            self.writes += part.popitem(last=False)[1]


class Hub:
    """A hub that sums slots in one of the `WAYS`, and makes steps."""

    def __init__(self, cache, workers, way):
        self.cache, self.workers, self.way = cache, workers, way
        self.come = collections.defaultdict(set)  # by chunk: the workers whose slot has arrived
        self.summed = {}  # by chunk: the number of slots in its accumulator, and the accumulator
        self.free = []  # the free accumulators; the one that was used last is taken first
        self.made = itertools.count()

    def arrives(self, chunk, worker):
        """Handles the arrival of a worker's slot of a chunk."""
        self.cache.deliver(("slot", worker, chunk))
        come = self.come[chunk]
        come.add(worker)
        if len(come) == self.workers:
            self._step(chunk)
            del self.come[chunk]
        elif self.way == "any order":
            self._add(chunk, [worker])
        elif self.way == "in order":
            first = self.summed.get(chunk, (0, None))[0]
            self._add(chunk, list(itertools.takewhile(come.__contains__, range(first, self.workers))))

    def _add(self, chunk, workers):
        if not workers:
            return
        count, accumulator = self.summed.get(chunk) or (0, self.free.pop() if self.free else next(self.made))
        for worker in workers:
            self.cache.read(("slot", worker, chunk))
        self.cache.write(("sum", accumulator))
        self.summed[chunk] = (count + len(workers), accumulator)

    def _step(self, chunk):
        count, accumulator = self.summed.pop(chunk, (0, None))
        if accumulator is not None:
            self.cache.read(("sum", accumulator))
            self.free.append(accumulator)
        # Reads a slot for each gradient that is not in the accumulator. The slot may be another worker's, which has
        # the same size.
        for worker in range(count, self.workers):
            self.cache.read(("slot", worker, chunk))
        for kind in STATE:
            self.cache.write((kind, chunk))
        for _ in range(self.workers):
            self.cache.read(("weights", chunk))  # the answer to a worker


def arrivals(chunks, workers, lag, seed):
    """Returns the arrivals of a round. All workers push all chunks in the same order and at the same speed. They begin within the
    time of `lag` chunks, in a random order of ranks."""
    dice = random.Random(seed)
    begins = [lag * place / max(workers - 1, 1) for place in range(workers)]
    dice.shuffle(begins)
    times = ((chunk + begins[worker] + dice.random(), chunk, worker)
             for chunk in range(chunks) for worker in range(workers))
    return [(chunk, worker) for _, chunk, worker in sorted(times)]


def traffic(cache_blocks, io_blocks, chunks, workers, lag, way, seed=0):
    """Simulates two rounds. Returns the bytes that are read and written over the memory bus for each pushed byte, in the second
    round."""
    cache = Cache(cache_blocks, io_blocks)
    hub = Hub(cache, workers, way)
    for number in range(2):
        before = (cache.reads, cache.writes)
        for chunk, worker in arrivals(chunks, workers, lag, seed + number):
            hub.arrives(chunk, worker)
    return tuple((end - begin) / (chunks * workers) for begin, end in zip(before, (cache.reads, cache.writes)))


def streamed(workers):
    """Returns the bytes that are read and written for each pushed byte if the cache reuses nothing. A NIC writes
    each slot, and a core reads it. A core reads and writes the state once for each chunk."""
    return 1 + len(STATE) / workers, 1 + len(STATE) / workers


def carried(machine, bytes_each):
    """Returns the highest rate at which workers can push, in GB/s, and what limits it."""
    by_memory = machine.memory_gb_s / bytes_each
    return (by_memory, "memory") if by_memory < machine.wire_gb_s else (machine.wire_gb_s, "NICs")


def rows(machines, chunks, workers, lags, seeds):
    """Yields a row for each machine, lag and way to sum. NICs deliver into the usual part of the cache, into half
    of that part, or into memory."""
    for machine in machines:
        blocks = machine.cache_mb * 10**6 // CHUNK_BYTES
        for io_ways in [machine.io_ways, machine.cache_ways // 2, NO_IO]:
            io_blocks = blocks * io_ways // machine.cache_ways
            for lag, way in itertools.product(lags, WAYS):
                each = [traffic(blocks, io_blocks, chunks, workers, lag, way, seed) for seed in range(seeds)]
                reads, writes = (sum(of) / seeds for of in zip(*each))
                gb_s, limit = carried(machine, reads + writes)
                yield {"machine": machine.name, "io_ways": io_ways, "workers": workers, "lag_chunks": lag, "way": way,
                       "reads": f"{reads:.3f}", "writes": f"{writes:.3f}", "gb_s": f"{gb_s:.1f}", "limit": limit}


def main():
    """Writes and prints all rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="target/figures", metavar="DIRECTORY")
    parser.add_argument("--model-mb", type=int, default=574, metavar="N", help="megabytes of the model (574: VGG-19)")
    parser.add_argument("--workers", type=int, default=8, metavar="N", help="number of workers (8)")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N",
                        help=f"number of random orders of the workers, which are averaged ({SEEDS})")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    chunks = args.model_mb * 10**6 // CHUNK_BYTES
    with open(f"{args.out}/traffic.csv", "w", newline="") as file:
        writer = None
        for row in rows(MACHINES, chunks, args.workers, LAGS, args.seeds):
            writer = writer or csv.DictWriter(file, list(row), lineterminator="\n")
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)
            print(*row.values(), sep="\t", flush=True)


if __name__ == "__main__":
    main()
