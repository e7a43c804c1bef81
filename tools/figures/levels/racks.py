#!/usr/bin/env python3
"""Measures racks whose uplinks are slower than their workers' links together (PHub, figure 5). All workers use one hub, or
each rack has a hub and the hubs are a mesh. For comparison there are the times that the links allow, and the all-reduces of gloo
and Open MPI over the same ranks. `tools/figures/run.sh racks` starts it. The program names the packages of gloo and Open MPI that
are missing."""

import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, ".."), os.path.join(HERE, "..", "..", "rig")]

from figures import common_options, run_main  # noqa: E402
from machines import Machines  # noqa: E402
from measure import GOODPUT, PORT, SOCKET_BYTES, processes  # noqa: E402
from peers import all_reduce, installed, is_peer  # noqa: E402
from run import Failed, attend  # noqa: E402
from table import spread  # noqa: E402

SHAPES = ["flat", "mesh", "gloo", "openmpi", "openmpi-ring"]
NAMES = {"flat": "one hub", "mesh": "a hub in each rack", "gloo": "gloo", "openmpi": "Open MPI",
         "openmpi-ring": "Open MPI's ring"}


class Racks:
    """The racks of workers, each with a hub, and the rates of their links in Mb/s. A rack's hub has NICs for its rack and for the
    other racks. The rate of its link is the sum of the rates of its rack's workers' links and of the uplink."""

    def __init__(self, racks, workers, mbit, oversubscribed):
        self.racks, self.workers, self.mbit, self.oversubscribed = racks, workers, mbit, oversubscribed
        self.uplink = workers * mbit / oversubscribed
        self.hub = workers * mbit + self.uplink

    def machines(self):
        """Makes the machines, and limits their links. The first machine of each rack is for the hub."""
        of_a_rack = [self.hub] + [self.mbit] * self.workers
        machines = Machines(self.racks * len(of_a_rack), self.racks)
        machines.limit(of_a_rack * self.racks, SOCKET_BYTES)
        machines.limit_uplinks(self.uplink)
        return machines

    def models(self, shape):
        """Returns the bytes that cross the link of a worker, of a hub and of a rack in a round, as
        multiples of the model. Of the two directions, the busier one counts."""
        all_workers, across = self.racks * self.workers, 2 * (self.racks - 1) / self.racks
        if is_peer(shape):
            # A ring in the order of the ranks: each rank sends to the next, so the ring enters and leaves each rack once.
            ring = 2 * (all_workers - 1) / all_workers
            return ring, 0, ring
        if shape == "flat":
            return 1, all_workers, all_workers - self.workers
        return 1, self.workers + across, across

    def bound_s(self, shape, model_bytes):
        """Returns the seconds of the fastest round that the links allow."""
        rates = self.mbit, self.hub, self.uplink
        return max(models / rate for models, rate in zip(self.models(shape), rates)) * model_bytes * 8 / (1e6 * GOODPUT)


    def workers_at(self):
        """Returns the machines of the workers, in the order of ranks."""
        return [rack * (self.workers + 1) + 1 + rank for rack in range(self.racks) for rank in range(self.workers)]


def run(racks, machines, binaries, shape, rounds, options):
    """Makes a run. Returns the seconds of the median round, and the bytes of the model."""
    first_of_rack = [rack * (racks.workers + 1) for rack in range(racks.racks)]
    with processes() as start:
        for machine in first_of_rack if shape == "mesh" else first_of_rack[:1]:
            listen = f"{machines.address(machine)}:{PORT}"
            hub = start(machines, machine, [f"{binaries}/phub-server", "serve", "--listen", listen, "--idle", "sleep"],
                        stderr=subprocess.DEVNULL)
            if b"control port" not in hub.stdout.readline():
                raise Failed(f"a hub ended before it listened (exit status {hub.wait()})")
        probes = []
        for rack, machine in enumerate(first_of_rack):
            for rank in range(racks.workers):
                probe = [f"{binaries}/phub-probe", "--json", "--rounds", rounds, *options]
                if shape == "mesh":
                    place = ["--hub", f"{machines.address(machine)}:{PORT}", "--workers", racks.workers, "--rank", rank,
                             "--mesh", f"{rack}/{racks.racks}@{machines.address(0)}:{PORT}"]
                else:
                    place = ["--hub", f"{machines.address(0)}:{PORT}", "--workers", racks.racks * racks.workers,
                             "--rank", rack * racks.workers + rank]
                probes.append(start(machines, machine + 1 + rank, probe + place, stderr=subprocess.PIPE))
        reports = attend(probes)
    return statistics.median(report["round_ms_p50"] for report in reports) / 1000, reports[0]["model_bytes"]


def main():
    """Measures all points in turn, `--repeats` times, and prints a table."""
    parser = common_options("tools/figures/run.sh racks", __doc__)
    parser.add_argument("--racks", default="2x4,4x2", help="numbers of racks x workers in a rack (%(default)s)")
    parser.add_argument("--oversubscribed", default="1,2,4",
                        help="the rate of a rack's workers' links together, divided by that of its uplink (%(default)s)")
    parser.add_argument("--mbit", type=float, default=200, metavar="N", help="rate of each worker's link, Mb/s (200)")
    parser.add_argument("--rounds", type=int, default=6, metavar="N", help="rounds of a run (6)")
    parser.add_argument("--model", default="googlenet", help="the probe's model, or the tensors of a safetensors file (googlenet)")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="some of %(default)s; flat or mesh must be the first")
    args = parser.parse_args()
    racks = [tuple(map(int, each.split("x"))) for each in args.racks.split(",")]
    points = [Racks(*shape, args.mbit, int(over)) for shape in racks for over in args.oversubscribed.split(",")]
    model = ["--manifest" if args.model.endswith(".safetensors") else "--model", args.model]
    shapes = installed(args.shapes.split(","))
    if not shapes or is_peer(shapes[0]):
        parser.error(f"the first of --shapes {args.shapes} that runs here is {shapes[0] if shapes else 'none'}. Only a hub "
                     "reports the size of the model: begin with flat or mesh")
    results, model_bytes = {}, 0
    for _ in range(args.repeats):
        for point in points:
            machines = point.machines()
            for shape in shapes:
                if is_peer(shape):
                    places = [(machine, 1) for machine in point.workers_at()]
                    seconds = all_reduce(shape, machines, places, args.rounds, model_bytes // 4)
                else:
                    seconds, model_bytes = run(point, machines, args.binaries, shape, args.rounds, model)
                bound = point.bound_s(shape, model_bytes)
                results.setdefault((point, shape), []).append((seconds, bound))
                print(f"{point.racks} x {point.workers}, 1:{point.oversubscribed}, {shape}: {seconds:.3f} s, "
                      f"{bound:.3f} s by the links", flush=True)
            machines.remove()
    print(f"\n{args.model}, workers' links of {args.mbit:g} Mb/s")
    print(f"\nSeconds, and of the links': {', '.join(NAMES[shape] for shape in shapes)}")
    print("\n| racks x workers | uplink | " + " | ".join(NAMES[shape] for shape in shapes) + " |")
    print("| --- " * (len(shapes) + 2) + "|")
    for point in points:
        runs = [results[point, shape] for shape in shapes]
        cells = [f"{spread((s for s, _ in of), '.2f')}, {spread((s / b for s, b in of), '.2f')}" for of in runs]
        print(f"| {point.racks} x {point.workers} | 1:{point.oversubscribed} | {' | '.join(cells)} |")
    for point in points if "mesh" in shapes else []:
        print(f"\n{point.racks} x {point.workers}, 1:{point.oversubscribed}: how many times as fast {NAMES['mesh']} is")
        for shape in [shape for shape in shapes if shape != "mesh"]:
            pairs = list(zip(results[point, shape], results[point, "mesh"]))
            gain = spread((other / mesh for (other, _), (mesh, _) in pairs), ".2f")
            print(f"as {NAMES[shape]}: {gain}, by the links {pairs[0][0][1] / pairs[0][1][1]:.2f}")


if __name__ == "__main__":
    run_main("racks", main)
