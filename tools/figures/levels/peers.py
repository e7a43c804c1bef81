"""The all-reduces of gloo and Open MPI, over ranks on machines made of namespaces."""

import contextlib
import json
import os
import subprocess
import tempfile

from run import LIMIT_S, Failed

HERE = os.path.dirname(os.path.abspath(__file__))
PEERS = os.path.join(HERE, "..", "..", "..", "benches", "peers")
GLOO, MPI = os.path.join(PEERS, "gloo_allreduce.sh"), os.path.join(PEERS, "mpi_allreduce.sh")
# The program that Open MPI starts instead of ssh. This program starts a process in the namespace that has the given address.
ENTER = os.path.join(HERE, "enter.sh")
# The options of each shape. Without options, one call reduces all elements. `--piece` cuts the elements into pieces, as large
# as DistributedDataParallel's buckets of 25 MiB. `--ring` uses the algorithm that sends the fewest bytes.
OPTIONS = {
    "gloo": [],
    "gloo-buckets": ["--piece", 6553600],
    "openmpi": [],
    "openmpi-ring": ["--ring"],
}


def is_peer(shape):
    """Whether a shape is another system's all-reduce."""
    return shape in OPTIONS


def script(shape):
    """Returns the script that runs an all-reduce."""
    return GLOO if shape.startswith("gloo") else MPI


def installed(shapes):
    """Returns the shapes that can run here. For each other shape, its script prints the reason, and the packages to install."""
    def is_there(shape):
        return not is_peer(shape) or subprocess.run([script(shape), "--ready"], check=False).returncode == 0

    return [shape for shape in shapes if is_there(shape)]


def all_reduce(shape, machines, places, rounds, elements):
    """Returns the seconds of a shape's median round. `places` are pairs of a machine and its number of ranks."""
    options = ["--workers", sum(ranks for _, ranks in places), "--elements", elements, "--rounds", rounds, "--warmup", 1,
               "--interface", "eth0", *OPTIONS[shape]]
    with tempfile.TemporaryDirectory() as directory:
        if script(shape) == MPI:
            hosts = ",".join(f"{machines.address(machine)}:{ranks}" for machine, ranks in places)
            commands = [(places[0][0], ["--hosts", hosts, "--agent", ENTER])]
        else:
            first, commands = 0, []
            for machine, ranks in places:
                at = ["--here", ranks, "--first", first, "--threads", 1, "--store", os.path.join(directory, "store")]
                commands.append((machine, at))
                first += ranks
        return run(script(shape), machines, [(machine, options + more) for machine, more in commands])


def run(program, machines, commands):
    """Runs a program on machines until all of its processes have ended. Returns the seconds that the first process measured."""
    def start(machine, options):
        command = machines.inside(machine, [program, *map(str, options)])
        return stack.enter_context(ended(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)))

    with contextlib.ExitStack() as stack:
        processes = [start(*command) for command in commands]
        try:
            said = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
        except subprocess.TimeoutExpired:
            raise Failed(f"{os.path.basename(program)}: no result after {LIMIT_S} s") from None
    if any(process.returncode for process in processes):
        raise Failed(f"{os.path.basename(program)}: a rank failed; its output is above")
    return json.loads(said[0])["median_round_seconds"]


@contextlib.contextmanager
def ended(process):
    """Kills a process at the end, if it still runs."""
    try:
        yield process
    finally:
        process.kill()
        process.wait()
