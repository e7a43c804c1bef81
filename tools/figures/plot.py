#!/usr/bin/env python3
"""Draws the measurements as SVG and PNG, with the figures in P3's text for comparison. Needs matplotlib; must
not measure."""

import csv
import os

import matplotlib.pyplot as plt
import style
from figures import arguments
from points import APART, NAMES, SCHEDULES, SHOWN_AT, SWEEPS, chosen
from scale import BATCH, SAMPLES_PER_S
from table import Table

COLOURS = {"kvstore": "#c0392b", "sliced": "#2b7bba", "p3": "#1e8449", "asp": "#7d3c98"}


def main():
    """Draws all figures that have data."""
    args = arguments().parse_args()
    table = Table(f"{args.out}/runs.csv")
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "paper.csv"), newline="") as file:
        paper = list(csv.DictReader(file))  # the figures in P3's text: gains over its baseline
    for name, figure, draw in [("bandwidth", "7", draw_bandwidth), ("utilisation", "8", draw_utilisation),
                               ("machines", "10", draw_machines), ("slices", "12", draw_slices), ("asgd", "asgd", draw_asgd)]:
        points = chosen([figure], quick=False, hubs=args.hubs)
        if any(table.of(point) for point in points):
            style.save(draw(args, table, points, paper), f"{args.out}/{name}", dpi=130)
            print(f"{args.out}/{name}.svg and .png")


def curve(axes, table, points, x, style="o-", **kwargs):
    """Draws the medians of runs, with bars from the lowest to the highest run."""
    found = [(x(point), table.summary(point)) for point in points]
    found = [(at, *summary) for at, summary in found if summary]
    if not found:
        return
    at, median, low, high = zip(*found)
    errors = [[mid - end for mid, end in zip(median, low)], [end - mid for mid, end in zip(median, high)]]
    axes.errorbar(at, median, yerr=errors, fmt=style, markersize=3, linewidth=1.2, capsize=2, **kwargs)


def draw_bandwidth(args, table, points, paper):
    """Draws figure 7: samples a second, and the gain over the baseline, by the rate of the links."""
    figure, rows = plt.subplots(2, 4, figsize=(11, 4.8), height_ratios=[3, 2], sharex="col")
    apart = chosen(["apart"], quick=False, hubs=args.hubs)
    by_setting, with_apart = ({(point.model, point.gbps, point.schedule): point for point in those} for those in (points, apart))
    for (model, sweep), throughput, gain in zip(SWEEPS.items(), *rows):
        for schedule in SCHEDULES:
            those = [by_setting[model, gbps, schedule] for gbps in sweep]
            curve(throughput, table, those, lambda point: point.gbps, color=COLOURS[schedule], label=schedule)
            if schedule != "kvstore":
                line(gain, gains_of(table, by_setting, model, sweep, schedule), "o-", color=COLOURS[schedule])
        bounds = [table.summary(by_setting[model, gbps, "p3"], "bound") for gbps in sweep]
        line(throughput, [(gbps, bound[0]) for gbps, bound in zip(sweep, bounds) if bound], ":", color="black", label="bound")
        for said in (said for said in paper if said["figure"] == "7" and said["model"] == model):
            percent, colour = 100 * float(said["gain"]), COLOURS[said["schedule"]]
            if said["gbps"] and said["schedule"] != "kvstore":
                gain.plot(float(said["gbps"]), percent, "*", color=colour, markersize=9, markeredgecolor="black",
                          markeredgewidth=0.5)
            elif not said["gbps"]:
                gain.axhline(percent, color=colour, linestyle="--", linewidth=1)
        gains = gains_of(table, with_apart, model, APART[model], "p3")
        if gains:
            line(gain, gains, "D", color=COLOURS["p3"], fillstyle="none", label="hub apart")
            gain.legend(loc="upper right")
        throughput.set_title(NAMES[model])
        throughput.set_ylim(bottom=0)
        throughput.set_xlim(0, max(sweep) * 1.05)
        throughput.legend(loc="lower right")
        gain.axhline(0, color="black", linewidth=0.6)
        gain.set_ylim(bottom=-5)
        gain.set_xlabel("Gb/s each way")
    rows[0][0].set_ylabel("samples a second, 4 machines")
    rows[1][0].set_ylabel("more than kvstore, %\n(stars, dashes: P3's text)")
    return figure


def line(axes, pairs, form, **more):
    """Draws a line through these points, if there are any."""
    if pairs:
        axes.plot(*zip(*pairs), form, markersize=3, linewidth=1.2, **more)


def gains_of(table, by_setting, model, rates, schedule):
    """Returns the gain over the baseline in percent, from medians, for each rate that was measured."""
    both = [(gbps, *(table.summary(by_setting[model, gbps, name]) for name in (schedule, "kvstore"))) for gbps in rates]
    return [(gbps, 100 * (ours[0] / base[0] - 1)) for gbps, ours, base in both if ours and base]


def draw_utilisation(args, *_):
    """Draws figures 8 and 9: the rates at which a machine sends and receives, over about two iterations."""
    figure, rows = plt.subplots(2, 3, figsize=(11, 4.2), sharey="col", sharex="col")
    for (model, gbps), *columns in zip(SHOWN_AT.items(), *rows):
        shown_ms = 2.5 * 1000 * BATCH / SAMPLES_PER_S[model]
        for schedule, axes in zip(["kvstore", "p3"], columns):
            path = f"{args.out}/utilisation-{model}-{schedule}.csv"
            if not os.path.exists(path):
                continue
            with open(path, newline="") as file:
                series = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
            series = [row for row in series if row["ms"] <= 2 * shown_ms]
            at = [row["ms"] for row in series]
            for column, colour in [("sent_gbps", "#2b7bba"), ("received_gbps", "#e08e2b")]:
                axes.plot(at, [row[column] for row in series], color=colour, linewidth=0.9, label=column[:-5])
            axes.axhline(gbps, color="black", linestyle=":", linewidth=0.8)
            axes.set_title(f"{NAMES[model]} at {gbps} Gb/s, {schedule}")
            axes.set_ylim(0, gbps * 1.35)
            axes.legend(loc="upper right", ncols=2)
        columns[1].set_xlabel("ms")
    rows[0][0].set_ylabel("Gb/s")
    rows[1][0].set_ylabel("Gb/s")
    return figure


def draw_machines(_, table, points, paper):
    """Draws figure 10: samples a second by the number of machines."""
    figure, row = plt.subplots(1, 3, figsize=(9, 2.6))
    for model, axes in zip(SHOWN_AT, row):
        for schedule in ["kvstore", "p3"]:
            shown = [point for point in points if (point.model, point.schedule) == (model, schedule)]
            style = {"color": COLOURS[schedule], "label": schedule}
            curve(axes, table, shown, lambda point: point.machines, **style)
        counts = [2, 4, 8]
        axes.plot(counts, [count * SAMPLES_PER_S[model] for count in counts], ":", color="black", linewidth=1,
                  label="linear")
        by_setting = {(point.machines, point.schedule): point for point in points if point.model == model}
        for said in (said for said in paper if said["figure"] == "10" and said["model"] == model):
            base = table.summary(by_setting[int(said["machines"]), "kvstore"])
            if base:
                axes.plot(int(said["machines"]), base[0] * (1 + float(said["gain"])), "*", color=COLOURS["p3"],
                          markersize=9, markeredgecolor="black", markeredgewidth=0.5, label="P3's gain on our kvstore")
        axes.set_title(f"{NAMES[model]}, 10 Gb/s")
        axes.set_xticks(counts)
        axes.legend(loc="upper left")
        axes.set_xlabel("machines")
        axes.set_ylim(bottom=0)
    row[0].set_ylabel("samples a second")
    return figure


def draw_slices(_, table, points, _paper):
    """Draws figure 12: samples a second by the size of a slice."""
    figure, row = plt.subplots(1, 2, figsize=(7, 2.6))
    for model, axes in zip(["resnet50", "vgg19"], row):
        shown = [point for point in points if point.model == model]
        curve(axes, table, shown, lambda point: point.slice_bytes / 4, color=COLOURS["p3"])
        axes.axvline(50_000, color="black", linestyle="--", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_title(f"{NAMES[model]}, p3 at {SHOWN_AT[model]} Gb/s")
        axes.set_xlabel("parameters a slice (dashes: P3's best)")
    row[0].set_ylabel("samples a second")
    return figure


def draw_asgd(_, table, points, _paper):
    """Draws the speeds of ASGD and P3, of appendix B.2."""
    figure, axes = plt.subplots(figsize=(3.6, 2.6))
    for consistency, colour, label in [("bsp", "p3", "p3, BSP"), ("asp", "asp", "sliced, ASGD")]:
        shown = [point for point in points if point.consistency == consistency]
        curve(axes, table, shown, lambda point: point.gbps, color=COLOURS[colour], label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("Gb/s each way")
    axes.set_ylabel("samples a second, 4 machines")
    axes.set_title("ResNet-50")
    axes.set_xlim(left=0)
    axes.legend(loc="lower right")
    return figure


if __name__ == "__main__":
    main()
