#!/usr/bin/env python3
"""Draws docs/figures/peers.svg from peers.csv: `tools/figures/peers_chart.py`. Needs matplotlib; must not measure."""

import csv
import pathlib

import matplotlib.pyplot as plt
import style

FIGURES = pathlib.Path(__file__).resolve().parents[2] / "docs/figures"


def main():
    """Draws a bar for each system, with marks of its lowest and highest run."""
    with open(FIGURES / "peers.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    names = [row["system"] for row in rows]
    median, lowest, highest = ([float(row[field]) for row in rows] for field in ("gb_per_s", "lowest", "highest"))
    errors = [[mid - low for mid, low in zip(median, lowest)], [high - mid for mid, high in zip(median, highest)]]
    figure, axes = plt.subplots(figsize=(7.2, 2.2))
    figure.patch.set_facecolor("white")  # not transparent, because the page may be dark
    colours = ["#1e8449" if name.startswith("this hub") else "#94a3b8" for name in names]
    axes.barh(names, median, xerr=errors, color=colours, error_kw={"linewidth": 0.8, "capsize": 2})
    for at, (mid, high) in enumerate(zip(median, highest)):
        axes.text(high + 0.4, at, f"{mid:g}", va="center")
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("GB/s of gradients and weights: ResNet-50, 4 workers on one machine (2 cores)")
    style.save(figure, str(FIGURES / "peers"), dpi=130)
    (FIGURES / "peers.png").unlink()


main()
