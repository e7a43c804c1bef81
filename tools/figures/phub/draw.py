#!/usr/bin/env python3
"""Draws phub.svg and phub-box.svg from phub.csv and phub-box.csv. Needs matplotlib; must not measure."""

import argparse
import os
import sys

import matplotlib.pyplot as plt

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))

import box  # noqa: E402
import style  # noqa: E402
import told  # noqa: E402
from rows import Rows  # noqa: E402

COLOURS = {"tall in runs": "#1e8449", "tall in turn": "#2b7bba", "tall at random": "#7d3c98", "wide counted": "#e08e2b",
           "wide in step": "#c0392b", "wide by rayon": "#7f8c8d", "kvstore": "#c0392b", "p3": "#2b7bba",
           "box, kvstore": "#e08e2b", "box": "#1e8449", "MXNet": "#7f8c8d"}


def curve(axes, summaries, label=None, **more):
    """Draws medians with bars from the lowest to the highest."""
    at, (middle, low, high) = list(summaries), zip(*summaries.values())
    errors = [[mid - end for mid, end in zip(middle, low)], [end - mid for mid, end in zip(middle, high)]]
    axes.errorbar(at, middle, yerr=errors, fmt="o-", markersize=3, linewidth=1.2, capsize=2, label=label, **more)


def draw_zero(table):
    """Draws phub.svg: ways to divide chunks between cores, sizes of chunks, numbers of workers, and numbers of jobs."""
    figure, ((divide, chunks), (workers, jobs)) = plt.subplots(2, 2, figsize=(9, 5.6))
    for variant, of_sizes in told.divided(table).items():
        curve(divide, of_sizes, variant, color=COLOURS[variant])
    divide.set_title("two cores: a whole chunk each, or a part of each chunk")
    divide.set_ylabel("time of a pass, tall in runs of 32 KiB = 1")
    divide.set_yscale("log")
    curve(chunks, told.by_chunk(table), color="#1e8449")
    chunks.set_title("the hub, ResNet-50, 4 workers")
    chunks.set_ylabel("rounds a second, 32 KiB = 1")
    for axes in (divide, chunks):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("bytes of a chunk")
    curve(workers, told.by_workers(table), "here: share of this machine's limit", color="#1e8449")
    for name, shares in told.on_paper().items():
        workers.plot(list(shares), list(shares.values()), "--", linewidth=1, label=f"on paper: share of {name}")
    workers.set_xscale("log", base=2)
    workers.set_title("workers to saturation, no compute")
    workers.set_xlabel("workers")
    total, fair = told.by_jobs(table)
    curve(jobs, total, "goodput of all, one job = 1", color="#1e8449")
    curve(jobs, fair, "slowest job of the fastest", color="#2b7bba")
    jobs.set_xscale("log", base=2)
    jobs.set_title("jobs of two workers on one hub")
    jobs.set_xlabel("jobs")
    for axes in (chunks, workers, jobs):
        axes.set_ylim(bottom=0)
    for axes in (divide, workers, jobs):
        axes.legend(fontsize=7)
    return figure


def draw_box(rows):
    """Draws phub-box.svg: figure 3, the speed relative to `kvstore`, and figure 1b, the parts of an iteration."""
    figure, (speed, parts) = plt.subplots(1, 2, figsize=(9, 3))
    gains = told.gains(rows)
    settings = list(dict.fromkeys(setting for setting, _ in gains))
    systems = list(dict.fromkeys(system for _, system in gains))
    for place, system in enumerate(systems):
        found = [(number, gains[setting, system]) for number, setting in enumerate(settings) if (setting, system) in gains]
        at = [number + (place - len(systems) / 2) * 0.17 for number, _ in found]
        middle = [gain[0] for _, gain in found]
        errors = [[gain[0] - gain[1] for _, gain in found], [gain[2] - gain[0] for _, gain in found]]
        speed.bar(at, middle, 0.16, yerr=errors, capsize=2, label=system, color=COLOURS[system])
    speed.set_xticks(range(len(settings)), [f"{model}\nbatch {batch}" for model, batch in settings])
    speed.set_ylabel("samples a second, kvstore beside = 1")
    speed.set_title("as figure 3: 8 workers, 10 Gb/s, GTX 1080 Ti")
    speed.legend(fontsize=7)
    shares = told.shares(rows)
    for number, ((model, system), share) in enumerate(shares.items()):
        middle = share[0]
        parts.barh(number, 100 * (1 - middle), color="#aeb6bf", label="computing" if number == 0 else None)
        parts.barh(number, 100 * middle, left=100 * (1 - middle), color=COLOURS[system], label=system if number < 2 else None)
    parts.set_yticks(range(len(shares)), [f"{model}, {system}" for model, system in shares])
    parts.set_xlabel("% of an iteration; coloured: waits for weights")
    parts.set_title("as figure 1b: batch 4, GRID K520")
    return figure


def main():
    """Draws the figures for which there are rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="target/figures", metavar="DIRECTORY")
    args, _ = parser.parse_known_args()
    table = Rows(f"{args.out}/phub.csv")
    if table.rows:
        style.save(draw_zero(table), f"{args.out}/phub", dpi=110)
    rows = box.read(f"{args.out}/phub-box.csv")
    if rows:
        style.save(draw_box(rows), f"{args.out}/phub-box", dpi=110)


if __name__ == "__main__":
    main()
