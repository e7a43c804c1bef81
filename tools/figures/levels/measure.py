#!/usr/bin/env python3
"""Measures rounds with a hub on each machine; the machines are namespaces. For comparison it measures the
all-reduces of gloo and Open MPI over the same ranks on the same links. `tools/figures/run.sh levels` starts
it. The program names systems that are not installed, and leaves out their rows."""

import contextlib
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, ".."), os.path.join(HERE, "..", "..", "rig")]

from figures import common_options, run_main  # noqa: E402
from machines import CONGESTION, MTU, Machines  # noqa: E402
from peers import OPTIONS, all_reduce, installed, is_peer  # noqa: E402
from run import Failed, attend  # noqa: E402
from table import spread  # noqa: E402

PORT = 7077
# The bytes that a socket may have in its link's queue.
SOCKET_BYTES = 256 << 10


def goodput(mtu):
    """Returns the share of a frame that is not headers, with TCP's time stamps."""
    return (mtu - 52) / (mtu + 14)


GOODPUT = goodput(MTU)
SHAPES = ["mesh", "mesh-clip", "mesh-qsgd", "flat", "flat-clip", *OPTIONS]
# The probe's options for a shape: steps that wait for the norm of all gradients, or a codec of 8 bits between the hubs.
FLAGS = {"mesh-clip": ["--clip-norm", "1"], "flat-clip": ["--clip-norm", "1"], "mesh-qsgd": ["--compress", "qsgd:8:512"]}


class Result:
    """The result of a run: the seconds of the median round, the bytes of the model, and the bytes that each machine sent and
    received."""

    def __init__(self, round_s, model_bytes, sent, received):
        self.round_s, self.model_bytes, self.sent, self.received = round_s, model_bytes, sent, received

    def share_of_bound(self, machines, mbit, mtu=MTU):
        """Returns the speed as a share of the highest speed that the links allow. Each machine must send and
        receive 2(n-1)/n of the model in a round."""
        return bound_s(self.model_bytes, machines, mbit, mtu) / self.round_s


def bound_s(model_bytes, machines, mbit, mtu=MTU):
    """Returns the seconds of a round in which each link carries only the necessary bytes, and headers."""
    return volume(model_bytes, machines) * 8 / (mbit * 1e6 * goodput(mtu))


def volume(model_bytes, machines):
    """Returns the bytes that a machine must send in a round: gradients of the other machines' shares, and weights of its own
    share. The machine must receive as many bytes."""
    return 2 * (machines - 1) / machines * model_bytes


def wire(machines):
    """Returns the bytes that each machine has sent until now, and the bytes that it has received, with the headers of frames."""
    def counter(machine, name):
        path = f"/sys/class/net/eth0/statistics/{name}_bytes"
        return int(subprocess.run(machines.inside(machine, ["cat", path]), capture_output=True, check=True).stdout)

    count = range(machines.count)
    return [counter(machine, "tx") for machine in count], [counter(machine, "rx") for machine in count]


@contextlib.contextmanager
def processes():
    """Yields a function that starts a process. At the end all processes are killed."""
    started = []

    def start(machines, machine, command, **more):
        command = machines.inside(machine, [str(word) for word in command])
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, **more)
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.communicate()


def run_hubs(machines, binaries, workers, shape, rounds, options):
    """Makes a run with a hub on each machine: the hubs are a mesh, or share a flat job. Returns its result."""
    count = machines.count
    addresses = ",".join(f"{machines.address(machine)}:{PORT}" for machine in range(count))
    with processes() as start:
        hubs = []
        for machine in range(count):
            command = [f"{binaries}/phub-server", "serve", "--listen", f"{machines.address(machine)}:{PORT}", "--idle", "sleep"]
            hubs.append(start(machines, machine, command, stderr=subprocess.DEVNULL))
        for hub in hubs:
            if b"control port" not in hub.stdout.readline():
                raise Failed(f"a hub ended before it listened (exit status {hub.wait()})")
        before = wire(machines)
        probes = []
        for machine in range(count):
            for rank in range(workers):
                probe = [f"{binaries}/phub-probe", "--json", "--rounds", rounds, *options, *FLAGS.get(shape, [])]
                if shape.startswith("mesh"):
                    place = ["--hub", f"{machines.address(machine)}:{PORT}", "--workers", workers, "--rank", rank,
                             "--mesh", f"{machine}/{count}@{machines.address(0)}:{PORT}"]
                else:
                    place = ["--hub", addresses, "--workers", count * workers, "--rank", machine * workers + rank]
                probes.append(start(machines, machine, probe + place, stderr=subprocess.PIPE))
        reports = attend(probes)
        after = wire(machines)
    sent, received = ([end - begin for begin, end in zip(*both)] for both in zip(before, after))
    round_s = statistics.median(report["round_ms_p50"] for report in reports) / 1000
    return Result(round_s, reports[0]["model_bytes"], sent, received)


def run_peer(shape, machines, workers, rounds, model_bytes):
    """Makes a run of another system's all-reduce, with the same number of ranks. Returns its result."""
    before = wire(machines)
    places = [(machine, workers) for machine in range(machines.count)]
    round_s = all_reduce(shape, machines, places, rounds, model_bytes // 4)
    sent, received = ([end - begin for begin, end in zip(*both)] for both in zip(before, wire(machines)))
    return Result(round_s, model_bytes, sent, received)


def main():
    """Measures all shapes in turn, `--repeats` times, and prints a table."""
    parser = common_options("tools/figures/run.sh levels", __doc__)
    parser.add_argument("--machines", type=int, default=2, metavar="N", help="machines, each with a hub (2)")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="workers of each machine (4)")
    parser.add_argument("--mbit", type=float, default=1000, metavar="N", help="rate of each machine's link, Mb/s (1000)")
    parser.add_argument("--mtu", type=int, default=MTU, metavar="BYTES", help="MTU of the links (%(default)s)")
    parser.add_argument("--congestion", default=CONGESTION, metavar="NAME",
                        help="TCP's congestion control for processes that choose none (%(default)s)")
    parser.add_argument("--before", metavar="DIRECTORY", help="folder of other binaries, which run mesh as mesh-before")
    parser.add_argument("--rounds", type=int, default=6, metavar="N", help="rounds of a run (6)")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="some of %(default)s")
    parser.add_argument("--model", default="resnet50", help="the probe's model (resnet50)")
    parser.add_argument("--schedule", default="sliced", help="schedule of the workers and their hubs (sliced)")
    args = parser.parse_args()
    shapes = installed(args.shapes.split(",")) + ["mesh-before"] * bool(args.before)
    results = {shape: [] for shape in shapes}
    machines = Machines(args.machines, mtu=args.mtu, congestion=args.congestion)
    machines.limit([args.mbit] * args.machines, SOCKET_BYTES)
    options = ["--model", args.model, "--schedule", args.schedule]
    for _ in range(args.repeats):
        for shape in shapes:
            if is_peer(shape):
                known = next(result for of in results.values() for result in of)
                result = run_peer(shape, machines, args.workers, args.rounds, known.model_bytes)
            else:
                result = run_hubs(machines, args.before if shape == "mesh-before" else args.binaries, args.workers, shape, args.rounds, options)
            results[shape].append(result)
            print(f"{shape}: {1 / result.round_s:.3f} rounds/s", flush=True)
    say(args, results)


def say(args, results):
    """Prints the table of docs/figures/levels.md: medians, lowest and highest."""
    print(f"\n{args.machines} machines x {args.workers} workers, {args.mbit:g} Mb/s, MTU {args.mtu}, {args.congestion}, "
          f"{args.model}, {args.schedule}")
    print("\n| shape | rounds a second | of the links' bound |")
    print("| --- | --- | --- |")
    for shape, runs in results.items():
        rates = spread((1 / run.round_s for run in runs), ".3f")
        shares = spread((run.share_of_bound(args.machines, args.mbit, args.mtu) for run in runs), ".3f")
        print(f"| {shape} | {rates} | {shares} |")
    for shape in [shape for shape in results if shape != "mesh" and "mesh" in results]:
        times = [other.round_s / mesh.round_s for other, mesh in zip(results[shape], results["mesh"])]
        print(f"\nmesh over {shape}: {spread(times, '.2f')}")


if __name__ == "__main__":
    run_main("levels", main)
