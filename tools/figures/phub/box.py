#!/usr/bin/env python3
"""Measures PHub's figures 1b and 3 on machines made of namespaces. Eight workers have a server on each worker's
machine, or one box with ten links. Writes phub-box.csv. `tools/figures/run.sh phub` starts it."""

import json
import os
import statistics
import sys
import time
from dataclasses import dataclass, fields

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, ".."), os.path.join(HERE, "..", "..", "rig")]

import csv_file  # noqa: E402
import peer_mxnet  # noqa: E402
from figures import common_options, run_main  # noqa: E402
from load import Load  # noqa: E402
from machines import Machines  # noqa: E402
from run import ITERATIONS, LOOK_S, attend, started  # noqa: E402
from scale import BATCH, CREDIT_BYTES, PAPER_SLICE_BYTES, SAMPLES_PER_S, SOCKET_BYTES, Scale, model_gbps  # noqa: E402

MACHINES = 8
# PBox has ten NICs, each as fast as a worker's NIC.
BOX_LINKS = 10
SHRINK = {"resnet50": 8, "inception3": 8, "googlenet": 8, "vgg19": 24}
# All times are longer by this factor, because eight machines share two cores.
TIME = 4
# For each GPU, the seconds that it takes for the work of one second of a P4000, the GPU of the traces. A GTX 1080
# Ti computes 190 samples a second of ResNet-50 (PHub's table 1). Half a GRID K520 has 2.45 TFLOP/s, and a P4000
# 5.3.
GPUS = {
    "GTX 1080 Ti": SAMPLES_PER_S["resnet50"] / 190,
    "GRID K520": 5.3 / 2.45,
}
SYSTEMS = {"kvstore": ("kvstore", "beside"), "p3": ("p3", "beside"), "box, kvstore": ("kvstore", "box"), "box": ("p3", "box")}
MXNET = "MXNet"


@dataclass(frozen=True)
class Point:
    """The settings of a measured point. The fields are the first columns of a row."""

    figure: str
    model: str
    gpu: str
    batch: int
    gbps: float
    system: str
    machines: int = MACHINES

    def scale(self):
        """Returns the scale of tensors and times."""
        return Scale(SHRINK[self.model], TIME * max(1, self.gbps / 10))

    def gpu_time(self):
        """Returns the probe's `--time-scale`, the factor of the trace's times."""
        return self.scale().time * GPUS[self.gpu] * self.batch / BATCH

    def is_box(self):
        """Whether all workers use one hub, which has its own links."""
        return self.system.startswith("box")

    def links(self):
        """Returns the rate of each machine's link in Mb/s, and of the box's link if there is a box."""
        mbit = self.scale().mbit(self.gbps)
        return [mbit] * self.machines + [mbit * BOX_LINKS] * self.is_box()


KEY = [field.name for field in fields(Point)]
COLUMNS = [*KEY, "repeat", "samples_per_s", "iteration_ms", "compute_ms", "stalled_ms", "late_ms", "cpu_share", "others_share"]


def points():
    """Yields all points: figure 3, then figure 1b."""
    for model in SHRINK:
        for system in SYSTEMS:
            yield Point("3", model, "GTX 1080 Ti", 32, 10, system)
    for system in [*SYSTEMS, MXNET]:
        yield Point("3", "resnet50", "GTX 1080 Ti", 16, 10, system)
    for model in SHRINK:
        for system in ["kvstore", "box"]:
            yield Point("1b", model, "GRID K520", 4, 10, system)


def trial():
    """Yields two points, which show within seconds that everything works."""
    for system in ["kvstore", "box"]:
        yield Point("trial", "googlenet", "GTX 1080 Ti", 32, 10, system, machines=2)


def options(point):
    """Returns the probe's options for a point."""
    scale = point.scale()
    slice_bytes = scale.bytes(PAPER_SLICE_BYTES)
    mbit = scale.mbit(point.gbps)
    return {
        "--compute": point.model,
        "--time-scale": point.gpu_time(),
        "--shrink": scale.shrink,
        "--exchanges": 1,
        "--rounds": ITERATIONS,
        "--schedule": SYSTEMS[point.system][0],
        "--chunk-bytes": min(slice_bytes, 32768),
        "--slice-bytes": slice_bytes,
        "--bandwidth-gbps": mbit / 1000 if point.is_box() else model_gbps(mbit / 1000, point.machines),
        "--credit": scale.bytes(CREDIT_BYTES),
    }


def measure(machines, args, point):
    """Makes a run. Returns its row, without the number of the repeat."""
    scale = point.scale()
    machines.limit(point.links(), scale.bytes(SOCKET_BYTES))
    if point.system == MXNET:
        return measure_mxnet(machines, args, point)
    places = [point.machines] if point.is_box() else range(point.machines)
    with started(machines, args.binaries, places, point.machines, options(point)) as (hubs, workers):
        load = Load([process.pid for process in [*hubs, *workers]])
        reports = attend(workers, [load.look], LOOK_S)
    computes = [report["compute"] for report in reports]
    note_layers(args, point, computes[0]["layers"])
    mean = {name: statistics.mean(compute[name] for compute in computes)
            for name in ("iteration_ms", "compute_ms", "stalled_ms", "late_ms")}
    return row(point, mean, load.shares(max(report["seconds"] for report in reports)))


def layers_path(args, model):
    """Returns the path of the file with a model's layers: the bytes of each key, and the forward and backward times of a
    P4000."""
    return f"{args.out}/layers-{model}.json"


def note_layers(args, point, layers):
    """Writes the file with a model's layers, which MXNet's workers need."""
    per_p4000 = lambda ms: ms / point.gpu_time()  # noqa: E731
    noted = [{"bytes": layer["key_bytes"], "forward_ms": per_p4000(layer["forward_ms"]),
              "backward_ms": per_p4000(layer["backward_ms"])} for layer in layers]
    with open(layers_path(args, point.model), "w") as file:
        json.dump(noted, file)


def measure_mxnet(machines, args, point):
    """Makes a run of MXNet's KVStore, with a server on each worker's machine. Returns its row."""
    with peer_mxnet.started(machines, args.mxnet, layers_path(args, point.model), point.gpu_time(), ITERATIONS,
                            SHRINK[point.model]) as (others, workers):
        load = Load([process.pid for process in [*others, *workers]])
        reports = attend(workers, [load.look], LOOK_S)
    mean = {name: statistics.mean(report[name] for report in reports) for name in ("iteration_ms", "compute_ms", "stalled_ms")}
    late = mean["iteration_ms"] - mean["compute_ms"] - mean["stalled_ms"]
    return row(point, {**mean, "late_ms": late}, load.shares(max(report["seconds"] for report in reports)))


def row(point, means, shares):
    """Returns a row, with the times of the imitated machines."""
    there = {name: value / point.scale().time for name, value in means.items()}
    samples = point.machines * point.batch * 1000 / there["iteration_ms"]
    cpu, others = (f"{share:.4g}" for share in shares)
    return {**{name: getattr(point, name) for name in KEY}, "samples_per_s": f"{samples:.2f}",
            **{name: f"{value:.2f}" for name, value in there.items()}, "cpu_share": cpu, "others_share": others}


def read(path):
    """Returns the rows of the file; none if there is no file."""
    return csv_file.read(path, COLUMNS)


def main():
    """Measures the missing runs: all points once, then again."""
    parser = common_options("tools/figures/run.sh phub", __doc__)
    parser.add_argument("--trial", action="store_true", help="two machines and a small model, in some seconds")
    parser.add_argument("--only", metavar="SYSTEM", choices=[*SYSTEMS, MXNET], help="measure only this system")
    parser.add_argument("--mxnet", metavar="PYTHON", help="a Python with mxnet 1.9.1 and numpy 1.23.5; default: no MXNet")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    path = f"{args.out}/phub-box.csv"
    rows = read(path)
    wanted = [point for point in (trial() if args.trial else points()) if args.only in (None, point.system)]
    wanted = [point for point in wanted if args.mxnet or point.system != MXNET]
    there = {(*(row[name] for name in KEY), row["repeat"]) for row in rows}
    for repeat in range(args.repeats):
        for point in wanted:
            if (*(str(getattr(point, name)) for name in KEY), str(repeat)) in there:
                continue
            machines, began = Machines(len(point.links())), time.monotonic()
            found = {**measure(machines, args, point), "repeat": repeat}
            machines.remove()
            rows.append({name: str(found[name]) for name in COLUMNS})
            csv_file.write(path, COLUMNS, rows)
            print(", ".join(f"{name} {found[name]}" for name in COLUMNS), f"{time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    run_main("phub", main)
