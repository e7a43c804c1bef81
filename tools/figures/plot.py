#!/usr/bin/env python3
"""Draws what was measured as SVG and PNG, beside what P3's text says. Needs matplotlib; must not measure."""

import csv
import os

import matplotlib.pyplot as plt
import style
from figures import arguments
from points import APART, FIGURES, NAMES, SCHEDULES, SHOWN_AT, SWEEPS, chosen
from scale import BATCH, MODELS
from table import Table

COLOURS = {"kvstore": "#c0392b", "sliced": "#2b7bba", "p3": "#1e8449", "asp": "#7d3c98"}


def main():
    """All figures that have data."""
    args = arguments().parse_args()
    out, table, paper = args.out, Table(f"{args.out}/runs.csv"), read_paper()
    points = {name: chosen([name], quick=False, hubs=args.hubs) for name in FIGURES}
    draw_bandwidth(out, table, points["7"], points["apart"], paper)
    draw_utilisation(out)
    draw_machines(out, table, points["10"], paper)
    draw_slices(out, table, points["12"])
    draw_asgd(out, table, points["asgd"])


def read_paper():
    """What P3's text says: gains over its baseline."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "paper.csv"), newline="") as file:
        return list(csv.DictReader(file))


def curve(axes, table, points, x, style="o-", **kwargs):
    """Draws medians with bars from the lowest to the highest run. Returns whether there were any."""
    found = [(x(point), table.summary(point)) for point in points]
    found = [(at, *summary) for at, summary in found if summary]
    if not found:
        return False
    at, median, low, high = zip(*found)
    errors = [[mid - end for mid, end in zip(median, low)], [end - mid for mid, end in zip(median, high)]]
    axes.errorbar(at, median, yerr=errors, fmt=style, markersize=3, linewidth=1.2, capsize=2, **kwargs)
    return True


def draw_bandwidth(out, table, points, apart, paper):
    """Figure 7: samples a second, and the gain over the baseline, by the links' rate."""
    figure, rows = plt.subplots(2, 4, figsize=(11, 4.8), height_ratios=[3, 2], sharex="col")
    by_setting = {(point.model, point.gbps, point.schedule): point for point in points}
    with_apart = {(point.model, point.gbps, point.schedule): point for point in apart}
    any_drawn = False
    for (model, sweep), throughput, gain in zip(SWEEPS.items(), *rows):
        for schedule, colour in ((schedule, COLOURS[schedule]) for schedule in SCHEDULES):
            points = [by_setting[model, gbps, schedule] for gbps in sweep]
            drawn = curve(throughput, table, points, lambda point: point.gbps, color=colour, label=schedule)
            any_drawn |= drawn
            if drawn and schedule != "kvstore":
                gains = [(gbps, gain_of(table, by_setting, model, gbps, schedule)) for gbps in sweep]
                gains = [pair for pair in gains if pair[1] is not None]
                gain.plot(*zip(*gains), "o-", markersize=3, linewidth=1.2, color=colour)
        bounds = [(gbps, bound_of(table, by_setting, model, gbps)) for gbps in sweep]
        bounds = [pair for pair in bounds if pair[1]]
        if bounds:
            throughput.plot(*zip(*bounds), ":", color="black", linewidth=1, label="bound")
        for said in (said for said in paper if said["figure"] == "7" and said["model"] == model):
            percent, colour = 100 * float(said["gain"]), COLOURS[said["schedule"]]
            if said["gbps"] and said["schedule"] != "kvstore":
                gain.plot(float(said["gbps"]), percent, "*", color=colour, markersize=9, markeredgecolor="black",
                          markeredgewidth=0.5)
            elif not said["gbps"]:
                gain.axhline(percent, color=colour, linestyle="--", linewidth=1)
        gains = [(gbps, gain_of(table, with_apart, model, gbps, "p3")) for gbps in APART[model]]
        gains = [pair for pair in gains if pair[1] is not None]
        if gains:
            gain.plot(*zip(*gains), "D", markersize=4, color=COLOURS["p3"], fillstyle="none", label="hub apart")
            legend(gain, "upper right")
        throughput.set_title(NAMES[model])
        throughput.set_ylim(bottom=0)
        throughput.set_xlim(0, max(sweep) * 1.05)
        legend(throughput, "lower right")
        gain.axhline(0, color="black", linewidth=0.6)
        gain.set_ylim(bottom=-5)
        gain.set_xlabel("Gb/s each way")
    rows[0][0].set_ylabel("samples a second, 4 machines")
    rows[1][0].set_ylabel("more than kvstore, %\n(stars, dashes: P3's text)")
    save(figure, out, "bandwidth", any_drawn)


def gain_of(table, by_setting, model, gbps, schedule):
    """Percent over the baseline, by medians."""
    ours, base = (table.summary(by_setting[model, gbps, name]) for name in (schedule, "kvstore"))
    return 100 * (ours[0] / base[0] - 1) if ours and base else None


def bound_of(table, by_setting, model, gbps):
    """The bound that any run of these schedules has reported."""
    found = (table.summary(by_setting[model, gbps, name], "bound") for name in ("p3", "kvstore"))
    return next((summary[0] for summary in found if summary), None)


def draw_utilisation(out):
    """Figures 8 and 9: what a machine sends and receives, over about two iterations."""
    figure, rows = plt.subplots(2, 3, figsize=(11, 4.2), sharey="col", sharex="col")
    any_drawn = False
    for (model, gbps), *columns in zip(SHOWN_AT.items(), *rows):
        shown_ms = 2.5 * 1000 * BATCH / MODELS[model]["samples_per_s"]
        for schedule, axes in zip(["kvstore", "p3"], columns):
            path = f"{out}/utilisation-{model}-{schedule}.csv"
            if not os.path.exists(path):
                continue
            any_drawn = True
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
    save(figure, out, "utilisation", any_drawn)


def draw_machines(out, table, points, paper):
    """Figure 10: samples a second by the number of machines."""
    figure, row = plt.subplots(1, 3, figsize=(9, 2.6))
    any_drawn = False
    for model, axes in zip(SHOWN_AT, row):
        for schedule in ["kvstore", "p3"]:
            shown = [point for point in points if (point.model, point.schedule) == (model, schedule)]
            style = {"color": COLOURS[schedule], "label": schedule}
            any_drawn |= curve(axes, table, shown, lambda point: point.machines, **style)
        counts = [2, 4, 8]
        axes.plot(counts, [count * MODELS[model]["samples_per_s"] for count in counts], ":", color="black", linewidth=1,
                  label="linear")
        by_setting = {(point.machines, point.schedule): point for point in points if point.model == model}
        for said in (said for said in paper if said["figure"] == "10" and said["model"] == model):
            base = table.summary(by_setting[int(said["machines"]), "kvstore"])
            if base:
                axes.plot(int(said["machines"]), base[0] * (1 + float(said["gain"])), "*", color=COLOURS["p3"],
                          markersize=9, markeredgecolor="black", markeredgewidth=0.5, label="P3's gain on our kvstore")
        axes.set_title(f"{NAMES[model]}, 10 Gb/s")
        axes.set_xticks(counts)
        legend(axes, "upper left")
        axes.set_xlabel("machines")
        axes.set_ylim(bottom=0)
    row[0].set_ylabel("samples a second")
    save(figure, out, "machines", any_drawn)


def draw_slices(out, table, points):
    """Figure 12: samples a second by the size of a slice."""
    figure, row = plt.subplots(1, 2, figsize=(7, 2.6))
    any_drawn = False
    for model, axes in zip(["resnet50", "vgg19"], row):
        shown = [point for point in points if point.model == model]
        any_drawn |= curve(axes, table, shown, lambda point: point.slice_bytes / 4, color=COLOURS["p3"])
        axes.axvline(50_000, color="black", linestyle="--", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_title(f"{NAMES[model]}, p3 at {SHOWN_AT[model]} Gb/s")
        axes.set_xlabel("parameters a slice (dashes: P3's best)")
    row[0].set_ylabel("samples a second")
    save(figure, out, "slices", any_drawn)


def draw_asgd(out, table, points):
    """ASGD beside P3."""
    figure, axes = plt.subplots(figsize=(3.6, 2.6))
    drawn = False
    for consistency, colour, label in [("bsp", "p3", "p3, BSP"), ("asp", "asp", "sliced, ASGD")]:
        shown = [point for point in points if point.consistency == consistency]
        drawn |= curve(axes, table, shown, lambda point: point.gbps, color=COLOURS[colour], label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("Gb/s each way")
    axes.set_ylabel("samples a second, 4 machines")
    axes.set_title("ResNet-50")
    axes.set_xlim(left=0)
    legend(axes, "lower right")
    save(figure, out, "asgd", drawn)


def legend(axes, loc):
    """A legend, if there is something to name."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc=loc)


def save(figure, out, name, worth):
    """Saves the figure if there is something on it."""
    if not worth:
        return plt.close(figure)
    style.save(figure, f"{out}/{name}", dpi=130)
    print(f"{out}/{name}.svg and .png")


if __name__ == "__main__":
    main()
