#!/usr/bin/env python3
"""Measures how long a reader waits for a version over a slow link, whole and as differences: `tools/versions/fetch.py PHUB_SERVER`.

A hub with a worker is in one network namespace, two readers are in another namespace. The link between them has a limited rate.
The worker makes a step with Adam and random gradients. Then one reader fetches the whole weights, and the other reader the
differences, in turns. Prints CSV: medians with lowest and highest. Needs root, `make python` and some minutes. The kernel
removes the namespaces at the end.
"""

import csv
import os
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np

import phub

PARAMETERS = 1 << 24
LEGS = 7
RATES = ("1gbit", "4gbit")
LEARNING_RATES = (1e-3, 1e-5, 1e-6)
HUB = "10.0.0.1:7077"


def work(learning_rate):
    """Makes a step for each line of the input."""
    weights = np.random.default_rng(1).normal(0, 0.02, PARAMETERS).astype(np.float32)
    random = np.random.default_rng(2)
    optimizer = phub.Adam(learning_rate=learning_rate)
    with phub.Session(HUB, rank=0, world_size=1, keys={"w": weights.shape}, optimizer=optimizer, job="job") as session:
        session.broadcast({"w": weights})
        gradient = random.standard_normal(PARAMETERS, dtype=np.float32)
        while True:
            np.multiply(gradient, np.float32(random.uniform(-1, 1)), out=session.gradient("w"))
            session.push("w")
            session.wait("w")
            print("stepped", flush=True)
            if not sys.stdin.readline():
                return


def received():
    """Returns the number of bytes that have arrived over the link."""
    lines = pathlib.Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("reader:"))


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def measure(rate, learning_rate, dtype, rows):
    """Adds a row for the whole weights and a row for the differences."""
    command = ["ip", "netns", "exec", "box", sys.executable, __file__, "work", str(learning_rate)]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    worker.stdout.readline()
    readers = [phub.subscribe(HUB, "job", dtype=dtype, every=0, fetch_deltas=deltas, timeout=60) for deltas in (False, True)]
    seconds, megabytes = [[], []], [[], []]
    for reader in readers:
        next(reader)
    for _ in range(LEGS):
        worker.stdin.write("\n")
        worker.stdin.flush()
        worker.stdout.readline()
        versions = []
        for index, reader in enumerate(readers):
            bytes_before, begun = received(), time.monotonic()
            versions.append(next(reader))
            seconds[index].append(time.monotonic() - begun)
            megabytes[index].append((received() - bytes_before) / 1e6)
        assert np.array_equal(versions[0]["w"], versions[1]["w"]) and versions[0].round == versions[1].round
    worker.stdin.close()
    worker.wait()
    for index, name in enumerate(("whole", "differences")):
        rows.writerow([rate, learning_rate, dtype, name, spread(megabytes[index], 1), spread(seconds[index], 2)])
    sys.stdout.flush()


def main(server):
    if os.environ.get("FETCH") != "inside":
        os.environ["FETCH"] = "inside"
        unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        os.execvp("unshare", [*unshare, sys.executable, __file__, server])
    rows = csv.writer(sys.stdout)
    rows.writerow(["link", "learning rate", "type", "what", "MB", "seconds"])
    lines = """mount -t tmpfs none /run
        mkdir /run/netns
        ip netns add box
        ip link add reader type veth peer name eth0 netns box
        ip addr add 10.0.0.2/24 dev reader
        ip link set reader up
        ip -n box addr add 10.0.0.1/24 dev eth0
        ip -n box link set eth0 up
        ip -n box link set lo up"""
    for line in lines.splitlines():
        subprocess.run(line.split(), check=True)
    box = ["ip", "netns", "exec", "box"]
    hub = subprocess.Popen([*box, server, "serve", "--listen", HUB, "--idle", "sleep"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    for rate in RATES:
        limit = f"tc qdisc replace dev eth0 root tbf rate {rate} latency 50ms burst 1mb"
        subprocess.run([*box, *limit.split()], check=True)
        for learning_rate in LEARNING_RATES:
            for dtype in ("f32", "bf16"):
                measure(rate, learning_rate, dtype, rows)
    hub.terminate()
    hub.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(float(sys.argv[2]))
    elif len(sys.argv) == 2:
        main(os.path.abspath(sys.argv[1]))
    else:
        sys.exit(__doc__)
