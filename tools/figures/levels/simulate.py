#!/usr/bin/env python3
"""Simulates the racks of racks.py with SimGrid's fluid links, and prints the seconds beside the measured seconds (racks.csv).
Needs SimGrid's Python module (Debian's python3-simgrid 3.32) and no root. Must not measure.

Each worker, hub and rack has a link, and each pair of machines a stream that sends one piece after another. The work of machines
takes no time.
"""

import argparse
import os
import resource
import sys
import time

import simgrid

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, ".."), os.path.join(HERE, "..", "..", "rig")]

from racks import GOODPUT, Racks  # noqa: E402

LATENCY_S = 1e-6
# The models: GoogLeNet, and the 20 tensors of the runs that are compared with all-reduces.
MODELS = {"googlenet": (27_993_904, 400), "tensors": (20 * 85_000 * 4, 50)}


class Simulated:
    """The machines of racks, and streams between them. Machine 0 of each rack is its hub."""

    def __init__(self, racks):
        self.racks, self.streams = racks, {}
        zone = simgrid.NetZone.create_full_zone("all")
        duplex = lambda name, mbit: zone.create_split_duplex_link(  # noqa: E731
            name, mbit * 1e6 / 8 * GOODPUT).set_latency(LATENCY_S).seal()
        uplinks = [duplex(f"rack{rack}", racks.uplink) for rack in range(racks.racks)]
        names = [(rack, place) for rack in range(racks.racks) for place in range(racks.workers + 1)]
        self.hosts = {name: zone.create_host("m{}-{}".format(*name), 1e9).seal() for name in names}
        links = {name: duplex("l{}-{}".format(*name), racks.mbit if name[1] else racks.hub) for name in names}
        up, down = simgrid.LinkInRoute.Direction.UP, simgrid.LinkInRoute.Direction.DOWN
        for one in names:
            for other in names:
                if one != other:
                    across = [(uplinks[one[0]], up), (uplinks[other[0]], down)] if one[0] != other[0] else []
                    route = [(links[one], up), *across, (links[other], down)]
                    zone.add_route(self.hosts[one].netpoint, self.hosts[other].netpoint, None, None,
                                   [simgrid.LinkInRoute(*each) for each in route], False)
        zone.seal()

    def send(self, one, other, size, then):
        """Adds a piece to the stream between two machines. `then` is called when the piece has arrived."""
        if (one, other) not in self.streams:
            pieces, waiting = [], simgrid.Semaphore(0)
            self.streams[one, other] = pieces, waiting
            simgrid.Actor.create(f"{one}{other}", self.hosts[one], self.stream, one, other).daemonize()
        pieces, waiting = self.streams[one, other]
        pieces.append((size, then))
        waiting.release()

    def stream(self, one, other):
        """Sends the pieces of a stream, without end."""
        pieces, waiting = self.streams[one, other]
        while True:
            waiting.acquire()
            size, then = pieces.pop(0)
            simgrid.Comm.sendto(self.hosts[one], self.hosts[other], size)
            then()


class Counted:
    """Calls a function at the last of a number of arrivals."""

    def __init__(self, count, then):
        self.count, self.then = count, then

    def __call__(self):
        self.count -= 1
        if self.count == 0:
            self.then()


def flat(at, size, pieces, end):
    """Simulates one hub: a piece is answered when all workers' copies of it have arrived."""
    workers = [(rack, 1 + rank) for rack in range(at.racks.racks) for rank in range(at.racks.workers)]
    last = Counted(pieces * len(workers), end)
    for _ in range(pieces):
        answer = Counted(len(workers), lambda: [at.send((0, 0), worker, size, last) for worker in workers])
        for worker in workers:
            at.send(worker, (0, 0), size, answer)


def mesh(at, size, pieces, end):
    """Simulates a hub in each rack. A rack's sum goes to the hub that owns the piece. The result goes to all other hubs, and to
    the workers."""
    racks, ranks = range(at.racks.racks), range(1, at.racks.workers + 1)
    last = Counted(pieces * len(racks) * len(ranks), end)
    for piece in range(pieces):
        owner = piece % len(racks)
        down = lambda rack: [at.send((rack, 0), (rack, rank), size, last) for rank in ranks]  # noqa: E731

        def out(owner=owner, down=down):
            for rack in racks:
                if rack == owner:
                    down(rack)
                else:
                    at.send((owner, 0), (rack, 0), size, lambda rack=rack: down(rack))
        whole = Counted(len(racks), out)
        for rack in racks:
            def summed(rack=rack, owner=owner, whole=whole):
                if rack == owner:
                    whole()
                else:
                    at.send((rack, 0), (owner, 0), size, whole)
            of_rack = Counted(len(ranks), summed)
            for rank in ranks:
                at.send((rack, rank), (rack, 0), size, of_rack)


def ring(at, size, pieces, end):
    """Simulates a ring all-reduce: each rank passes on what it received, 2(n - 1) times an n-th of the model."""
    workers = [(rack, 1 + rank) for rack in range(at.racks.racks) for rank in range(at.racks.workers)]
    count = len(workers)
    last = Counted(count, end)

    def step(rank, number):
        if number == 2 * (count - 1):
            last()
        else:
            one, other = workers[rank], workers[(rank + 1) % count]
            at.send(one, other, size * pieces // count, lambda: step((rank + 1) % count, number + 1))
    for rank in range(count):
        step(rank, 0)


SHAPES = {"one hub": flat, "a hub in each rack": mesh, "gloo": ring}


def main():
    """Simulates a round. Prints the seconds of the round, and the seconds that the simulation took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=list(SHAPES))
    parser.add_argument("racks", help="racks x workers, such as 2x4")
    parser.add_argument("oversubscribed", type=int)
    parser.add_argument("--model", choices=list(MODELS), default="googlenet")
    parser.add_argument("--piece-bytes", type=int, default=32768)
    parser.add_argument("--network", default="CM02", help="SimGrid's model of links: CM02, or LV08 with factors for TCP")
    parser.add_argument("--crosstraffic", default="no", choices=["yes", "no"],
                        help="whether a flow also takes 5%% of the opposite direction, for acknowledgements")
    args = parser.parse_args()
    engine = simgrid.Engine(["simulate", f"--cfg=network/model:{args.network}",
                             f"--cfg=network/crosstraffic:{args.crosstraffic}", "--log=root.thres:warning"])
    size, mbit = MODELS[args.model]
    racks = Racks(*map(int, args.racks.split("x")), mbit, args.oversubscribed)
    at, ends = Simulated(racks), []
    pieces = -(-size // args.piece_bytes)

    def begin():
        SHAPES[args.shape](at, args.piece_bytes, pieces, lambda: ends.append(simgrid.Engine.clock))
        while not ends:
            simgrid.this_actor.sleep_for(0.01)
    simgrid.Actor.create("begin", at.hosts[0, 0], begin)
    began = time.process_time()
    engine.run()
    took = time.process_time() - began
    shape = {"one hub": "flat", "a hub in each rack": "mesh"}.get(args.shape, args.shape)
    bound = racks.bound_s(shape, size)
    print(f"{args.shape}, {args.racks}, 1:{args.oversubscribed}, {args.network}: {ends[0]:.3f} s, {ends[0] / bound:.3f} times the "
          f"links' bound; {took:.1f} s of processor time, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")


if __name__ == "__main__":
    main()
