#!/usr/bin/env python3
"""Draws iBatch's figures 3 to 7 as SVG and PNG, from the output of measure.py and model.py. Must not measure."""

import argparse
import csv
import os
import sys

import matplotlib.pyplot as plt

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import style  # noqa: E402
from timeline import best, of_pulls, timeline  # noqa: E402

NAMES = {"googlenet": "GoogLeNet", "inception3": "Inception-V3", "vgg19": "VGG19", "vgg19-22k": "VGG19-22K"}
WAYS = {"ibatch": ("iBatch, optimum", "#1e8449"), "greedy": ("iBatch, greedy", "#7dbb8f"),
        "layer": ("layer by layer", "#2b7bba"), "all": ("default PS", "#c0392b")}
# The numbers of the paper's text for VGG19-22K.
PAPER = {"ibatch": [(30, 25), (72, 45)], "layer": [(30, 21), (72, 32)], "all": [(30, 22), (72, 26)]}


def main():
    """Draws each figure that has data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="target/figures", metavar="DIRECTORY")
    args, _ = parser.parse_known_args()
    rows = read(f"{args.out}/ibatch-model.csv")
    layers = read(f"{args.out}/ibatch-layers.csv")
    draw_layers(args.out, layers)
    draw_timelines(args.out, *of_pulls(layers))
    draw_speedup(args.out, [row for row in rows if row["figure"] == "5"])
    draw_sparse(args.out, [row for row in rows if row["figure"] == "6"])
    draw_parts(args.out, [row for row in rows if row["figure"] == "5" and row["nodes"] == "72"])
    draw_gains(args.out, [row for row in rows if row["figure"] == "load"])


def read(path):
    """Returns the rows of a file."""
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def draw_layers(out, rows):
    """Draws figure 3: the times to pull and to compute the parts of GoogLeNet."""
    figure, axes = plt.subplots(figsize=(6, 2.4))
    places = range(len(rows))
    for shift, column, label in [(-0.2, "pull_ms", "pull, with its start-up"), (0.2, "forward_ms", "forward")]:
        axes.bar([place + shift for place in places], [float(row[column]) for row in rows], 0.4, label=label)
    axes.set_xticks(list(places), [row["layer"].replace("inception_", "") for row in rows], rotation=45, ha="right")
    axes.set_ylabel("ms, of the machines measured")
    axes.legend()
    style.save(figure, f"{out}/ibatch-layers", dpi=110)


def draw_timelines(out, costs, start_up):
    """Draws figure 4: the pulls and the forward pass of figure 3's layers, with the paper's three choices
    of batches."""
    figure, axes = plt.subplots(figsize=(9, 2.4))
    ways = {"all": [len(costs)], "layer": [1] * len(costs), "ibatch": best(costs, start_up)}
    for place, batches in enumerate(ways.values()):
        pulls, forwards = timeline(costs, start_up, batches)
        starts = [(begin, start_up) for begin, _ in pulls]
        transfers = [(begin + start_up, end - begin - start_up) for begin, end in pulls]
        passes = [(begin, end - begin) for begin, end in forwards]
        for row, spans, colour in [(0.4, starts, "#c0392b"), (0.4, transfers, "#e6a19a"), (0, passes, "#2b7bba")]:
            axes.broken_barh(spans, (row - place, 0.36), facecolors=colour, edgecolor="white", linewidth=0.5)
        last = 0
        for (begin, end), count in zip(forwards, batches):
            name = str(last + 1) if count == 1 else f"{last + 1}-{last + count}"
            if end - begin > 8:
                axes.text((begin + end) / 2, 0.17 - place, name, ha="center", va="center", fontsize=6, color="white")
            last += count
    axes.set_yticks([0.38 - place for place in range(len(ways))], [WAYS[way][0] for way in ways])
    axes.set_xlabel("ms, of the machines measured")
    for label, colour in [("start-up of a pull", "#c0392b"), ("its transfer", "#e6a19a"), ("forward", "#2b7bba")]:
        axes.barh(0, 0, color=colour, label=label)
    axes.legend(loc="lower right", fontsize=7)
    style.save(figure, f"{out}/ibatch-timelines", dpi=110)


def draw_speedup(out, rows):
    """Draws figure 5: speedup over one node, by the number of nodes."""
    figure, panels = plt.subplots(1, 4, figsize=(11, 2.9), sharey=True)
    draw_by_nodes(panels, NAMES, rows)
    style.save(figure, f"{out}/ibatch-speedup", dpi=110)


def draw_sparse(out, rows):
    """Draws figure 6: speedup with sparse gradients."""
    models = ["inception3", "vgg19"]
    figure, panels = plt.subplots(1, len(models), figsize=(6, 2.9), sharey=True)
    draw_by_nodes(panels, {model: NAMES[model] for model in models}, rows)
    style.save(figure, f"{out}/ibatch-sparse", dpi=110)


def draw_by_nodes(panels, names, rows):
    """Draws speedups by the number of nodes, a panel for each model."""
    for axes, (model, name) in zip(panels, names.items()):
        axes.plot([0, 72], [0, 72], "--", color="#999999", linewidth=0.8, label="linear")
        for way, (label, colour) in WAYS.items():
            those = [row for row in rows if row["model"] == model and row["batching"] == way]
            axes.plot([int(row["nodes"]) for row in those], [float(row["speedup"]) for row in those], color=colour,
                      linewidth=1.2, label=label)
            if model == "vgg19-22k" and way in PAPER:
                axes.plot(*zip(*PAPER[way]), "x", color=colour, markersize=5)
        axes.set_title(name)
        axes.set_xlabel("nodes")
    panels[0].set_ylabel("speedup")
    panels[0].legend(fontsize=7)


def draw_parts(out, rows):
    """Draws figure 7: the overlap of pull and forward pass on 72 nodes, relative to the default's time."""
    models = ["inception3", "vgg19", "vgg19-22k"]
    figure, panels = plt.subplots(1, len(models), figsize=(9, 2.8), sharey=True)
    for axes, model in zip(panels, models):
        those = {row["batching"]: row for row in rows if row["model"] == model}
        whole = float(those["all"]["pull_and_forward_ms"])
        for place, way in enumerate(["all", "layer", "greedy", "ibatch"]):
            overlap = float(those[way]["overlap_ms"])
            parts = [overlap, float(those[way]["pull_ms"]) - overlap, float(those[way]["forward_ms"]) - overlap]
            bottom = 0
            for part, colour in zip(parts, ["#7d3c98", "#c0392b", "#2b7bba"]):
                axes.bar(place, part / whole, 0.6, bottom=bottom, color=colour)
                bottom += part / whole
        axes.set_xticks(range(4), ["default\nPS", "layer\nby layer", "greedy", "optimum"])
        axes.set_title(NAMES[model])
    panels[0].set_ylabel("of the default PS")
    for label, colour in [("both at once", "#7d3c98"), ("pull alone", "#c0392b"), ("forward alone", "#2b7bba")]:
        panels[-1].bar(0, 0, color=colour, label=label)
    panels[-1].legend(fontsize=7)
    style.save(figure, f"{out}/ibatch-parts", dpi=110)


def draw_gains(out, rows):
    """Draws a figure that is not in the paper: the gain of the best batches on 72 nodes. Its x-axis is the time
    of pulls divided by that of the forward pass."""
    figure, panels = plt.subplots(1, 2, figsize=(7, 2.6), sharey=True)
    whole = {"pull_and_forward_ms": "pull and forward", "iteration_ms": "a whole iteration"}
    for axes, (column, title) in zip(panels, whole.items()):
        for way, paper in [("all", 73), ("layer", 41)]:
            label, colour = WAYS[way]
            times = [{row["load"]: float(row[column]) for row in rows if row["batching"] == each} for each in (way, "ibatch")]
            gains = [100 * (times[0][load] / times[1][load] - 1) for load in times[0]]
            axes.plot([float(load) for load in times[0]], gains, "o-", markersize=3, color=colour, label=f"over {label}")
            axes.axhline(paper, color=colour, linestyle=":", linewidth=0.8)
        axes.set_title(title)
        axes.set_xlabel("pull / forward")
    panels[0].set_ylabel("gain, %; dotted: the paper's")
    panels[0].legend()
    style.save(figure, f"{out}/ibatch-gains", dpi=110)


if __name__ == "__main__":
    main()
