"""A machine of a mesh on the rig sends and receives one stream, for any number of workers. Without root or built binaries the
test is skipped, with a message."""

import importlib.util
import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
# The folder from which the path of the binaries may be relative.
ROOT = os.path.join(HERE, "..", "..", "..")
RIG = os.path.join(ROOT, "tools", "rig", "ready.sh")
IN_NAMESPACES = """
    mount -t tmpfs none /run/netns && exec python3 -B "$@"
"""
BINARIES = os.environ.get("PHUB_FIGURES_BINARIES")


class Formulas(unittest.TestCase):
    def test_a_machine_sends_each_share_but_its_own_up_and_its_own_down(self):
        from measure import volume

        self.assertEqual([volume(100, machines) for machines in (1, 2, 4)], [0, 100, 150])

    def test_the_bound_is_the_volume_over_the_link_with_headers(self):
        from measure import GOODPUT, bound_s

        self.assertAlmostEqual(bound_s(125e6, 2, 1000) * GOODPUT, 1)


@unittest.skipUnless(importlib.util.find_spec("simgrid"), "no SimGrid (Debian's python3-simgrid)")
class InSimGrid(unittest.TestCase):
    def test_each_shape_takes_what_its_links_allow(self):
        for shape in ("one hub", "a hub in each rack", "gloo"):
            for over in ("1", "4"):
                command = [sys.executable, "-B", os.path.join(HERE, "simulate.py"), shape, "4x2", over, "--piece-bytes", "65536"]
                said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
                self.assertRegex(said, r" s, 1\.0[0-3]\d times the links' bound")


class RackFormulas(unittest.TestCase):
    def test_racks_as_phub_calculates_them(self):
        from racks import GOODPUT, Racks

        racks = Racks(4, 8, 1000, 4)
        self.assertEqual((racks.uplink, racks.hub), (2000, 10000))
        self.assertEqual(racks.models("flat"), (1, 32, 24))
        self.assertEqual(racks.models("mesh"), (1, 9.5, 1.5))
        self.assertEqual(racks.models("openmpi"), (1.9375, 0, 1.9375))
        self.assertEqual(racks.workers_at()[7:10], [8, 10, 11])
        # 24 models cross a link of 2 Gb/s, and one model crosses a link of 1 Gb/s.
        self.assertAlmostEqual(racks.bound_s("flat", 125e6) * GOODPUT, 12)
        self.assertAlmostEqual(racks.bound_s("mesh", 125e6) * GOODPUT, 1)


@unittest.skipIf(BINARIES is None or subprocess.run(["sh", RIG], capture_output=True, check=False).returncode != 0,
                 "the rig is not there")
class Wire(unittest.TestCase):
    def rows(self, what):
        """Returns the numbers that a function below prints when it runs in its own namespaces."""
        done = in_namespaces(what, BINARIES)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [tuple(map(float, line.split())) for line in done.stdout.splitlines()]

    def test_a_machine_sends_and_receives_one_stream_whatever_its_workers(self):
        shares = self.rows("count")
        self.assertEqual([workers for workers, _, _ in shares], [1, 2, 4, 8])
        for workers, least, most in shares:
            self.assertLess(most, 1.02, f"{workers} workers: of 2(n-1)/n of the model, each way and round")
            self.assertGreater(least, 0.99, f"{workers} workers: too few bytes to be true")


@unittest.skipIf(subprocess.run(["sh", RIG], capture_output=True, check=False).returncode != 0, "the rig is not there")
class Peers(unittest.TestCase):
    def test_ranks_on_machines_sum_what_they_should(self):
        done = in_namespaces("reduce")
        self.assertEqual(done.returncode, 0, done.stderr)
        seconds = dict(line.split() for line in done.stdout.splitlines())
        for shape in seconds:
            self.assertGreater(float(seconds[shape]), 0, shape)
        if len(seconds) < 4:
            print(f"SKIPPED: only {sorted(seconds)} can run here: {done.stderr}", file=sys.stderr)


def in_namespaces(*words):
    """Runs this program in its own namespaces, with these arguments. Returns the ended process."""
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child",
               "--mount-proc", "sh", "-c", IN_NAMESPACES, "levels", os.path.abspath(__file__), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)


def reduce():
    """Prints the seconds of a small all-reduce over three ranks on two machines, for each system. The ranks check every sum."""
    from measure import SOCKET_BYTES, Machines
    from peers import OPTIONS, all_reduce, installed

    machines = Machines(2)
    machines.limit([4000, 4000], SOCKET_BYTES)
    for shape in installed(OPTIONS):
        print(shape, all_reduce(shape, machines, [(0, 1), (1, 2)], 2, 10007), flush=True)


def count(binaries):
    """Prints for each number of workers the fewest and the most bytes of a machine in a round, sent or received.
    The bytes are given as shares of the necessary bytes."""
    from measure import SOCKET_BYTES, Machines, run_hubs, volume

    machines = Machines(2)
    machines.limit([4000, 4000], SOCKET_BYTES)
    for workers in (1, 2, 4, 8):
        # Joins and broadcasts do not count, because they are the same in both runs.
        few, many = (run_hubs(machines, binaries, workers, "mesh", rounds, ["--model", "googlenet"]) for rounds in (2, 10))
        must = 8 * volume(few.model_bytes, 2)
        shares = [(b - a) / must for a, b in zip(few.sent + few.received, many.sent + many.received)]
        print(workers, min(shares), max(shares), flush=True)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    if sys.argv[1:2] == ["count"]:
        count(sys.argv[2])
    elif sys.argv[1:2] == ["reduce"]:
        reduce()
    else:
        unittest.main()
