"""One run of one point: hubs, workers, and their reports."""

import contextlib
import json
import os
import selectors
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "rig"))

from load import Link, Load, rates  # noqa: E402
from points import KEY  # noqa: E402
from scale import CREDIT_BYTES, SOCKET_BYTES, model_gbps  # noqa: E402

PORT = 7077
# The number of measured iterations. A few are enough, because links and traces are not random.
ITERATIONS = 5
LOOK_S = 0.1
# The timeout of a run, in seconds.
LIMIT_S = 600


class Failed(Exception):
    """A run that ended without a result."""


def measure(machines, binaries, point, series_path=None):
    """Makes a run of a point. Returns its row of the table, without the number of the repeat. `machines` must have as many
    machines as the point needs."""
    scale = point.scale()
    machines.limit(point.links(), scale.bytes(SOCKET_BYTES))
    places = range(point.machines) if point.hubs == "beside" else [point.machines]
    with started(machines, binaries, places, point.machines, worker_options(point)) as (hubs, workers):
        load = Load([process.pid for process in [*hubs, *workers]])
        link = Link(workers[0].pid)
        # With a series, the interval of samples is that of P3's figures: 10 ms on P3's machines.
        looks, look_s = [load.look], LOOK_S
        if series_path:
            looks, look_s = [load.look, link.look], scale.sample_ms(10) / 1000
        reports = attend(workers, looks, look_s)
    if series_path:
        last_s = reports[0]["seconds"]
        shown = [look for look in link.series if look[0] >= link.series[-1][0] - last_s]
        write_series(series_path, rates(shown, scale.sample_ms(10) / 1000), scale)
    return row(point, scale, reports, load)


@contextlib.contextmanager
def started(machines, binaries, places, count, options):
    """Starts hubs on the machines `places`, and the probe as a worker on each of `count` machines. At the end all these
    processes are killed.

    A single hub has all cores. Several hubs get one core each, in turn.
    """
    processes = []

    def start(machine, command, **more):
        process = subprocess.Popen(machines.inside(machine, list(map(str, command))), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, **more)
        processes.append(process)
        return process

    try:
        for place in places:
            command = [f"{binaries}/phub-server", "serve", "--listen", f"{machines.address(place)}:{PORT}", "--idle", "sleep"]
            cores = ["--cores", f"{place % os.cpu_count()},"] if len(places) > 1 else []
            start(place, command + cores, stderr=subprocess.DEVNULL)
        hubs = list(processes)
        for hub in hubs:
            line = hub.stdout.readline()
            if b"control port" not in line:
                raise Failed(f"a hub ended before it listened (it said {line.strip()!r}, exit status {hub.wait()})")
        addresses = ",".join(f"{machines.address(place)}:{PORT}" for place in places)
        words = [word for option in options.items() if option[1] is not None for word in option]
        probe = [f"{binaries}/phub-probe", "--json", "--hub", addresses, "--workers", count, *words, "--rank"]
        yield hubs, [start(rank, [*probe, rank], stderr=subprocess.PIPE) for rank in range(count)]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.communicate()


def worker_options(point):
    """Returns the probe's options for a point."""
    scale = point.scale()
    slice_bytes = scale.bytes(point.slice_bytes)
    schedule, _, codec = point.schedule.partition("+")
    late = schedule == "late"
    return {
        "--compute": point.model,
        "--time-scale": scale.time,
        "--shrink": scale.shrink,
        "--exchanges": 1,
        "--rounds": ITERATIONS,
        "--schedule": "kvstore" if late else schedule,
        "--pull": "layer" if late else None,
        "--compress": codec or None,
        "--consistency": point.consistency,
        "--chunk-bytes": min(slice_bytes, 32768),
        "--slice-bytes": slice_bytes,
        "--bandwidth-gbps": model_gbps(scale.mbit(point.gbps) / 1000, point.machines),
        "--credit": scale.bytes(CREDIT_BYTES),
    }


def attend(workers, looks=(), look_s=1):
    """Calls the functions `looks` every `look_s` seconds until the first worker has reported, then waits for all workers. Returns
    their reports."""
    began = time.monotonic()
    next_look = began
    said = {worker: b"" for worker in workers}
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.stdout, selectors.EVENT_READ, worker)
        while selector.get_map():
            now = time.monotonic()
            if now > began + LIMIT_S:
                raise Failed(f"no result after {LIMIT_S} s")
            if now >= next_look and not any(said.values()):
                for look in looks:
                    look()
                next_look = max(next_look + look_s, now)
            for event, _ in selector.select(max(0, next_look - now) if not any(said.values()) else LIMIT_S):
                part = os.read(event.fd, 1 << 16)
                said[event.data] += part
                if not part:
                    selector.unregister(event.fileobj)
    for rank, worker in enumerate(workers):
        if worker.wait() != 0:
            raise Failed(f"worker {rank}: {worker.stderr.read().decode().strip()}")
    return [json.loads(said[worker]) for worker in workers]


def row(point, scale, reports, load):
    """Returns a row from the reports of all workers. Each worker computes different samples, so the workers'
    speeds are added."""
    computes = [report["compute"] for report in reports]
    means = {
        name: statistics.mean(compute[name] for compute in computes)
        for name in ["iteration_ms", "compute_ms", "stalled_ms", "late_ms"]
    }
    bounds = [compute["bound_samples_per_s"] for compute in computes]
    cpu, others = load.shares(max(report["seconds"] for report in reports))
    measured = {
        "samples_per_s": scale.samples_per_s(sum(compute["samples_per_s"] for compute in computes)),
        "bound": scale.samples_per_s(sum(bounds)),
        **means,
        "cpu_share": cpu,
        "others_share": others,
    }
    return {
        **dict(zip(KEY, point.key())),
        **{name: f"{value:.4g}" if "share" in name else f"{value:.2f}" for name, value in measured.items()},
        "mbit": f"{scale.mbit(point.gbps):.1f}",
        "shrink": scale.shrink,
        "time": f"{scale.time:g}",
    }


def write_series(path, series, scale):
    """Writes a series in the units of P3's figures, for P3's machines: milliseconds, Gb/s received, Gb/s sent."""
    with open(path, "w") as file:
        file.write("ms,received_gbps,sent_gbps\n")
        for second, received, sent in series:
            there = [1000 * second / scale.time, scale.gbps(received), scale.gbps(sent)]
            file.write(",".join(f"{value:.3f}" for value in there) + "\n")
