#!/usr/bin/env python3
"""Draws docs/figures/traffic.svg from the output of model.py. Must not compute traffic."""

import argparse
import csv
import os
import sys

import matplotlib.pyplot as plt

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import style  # noqa: E402

WAYS = {"last": ("at the last arrival", "#1e8449"), "in order": ("as they come, in the workers' order", "#2b7bba"),
        "any order": ("as they come, in any order", "#c0392b")}


def main():
    """Draws a panel for each machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="target/figures", metavar="DIRECTORY")
    args = parser.parse_args()
    with open(f"{args.out}/traffic.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    machines = list(dict.fromkeys(row["machine"] for row in rows))
    figure, panels = plt.subplots(1, len(machines), figsize=(10, 2.8))
    for axes, machine in zip(panels, machines):
        those = [row for row in rows if row["machine"] == machine]
        for way, (label, colour) in WAYS.items():
            for io_ways, line in [("2", "-"), ("0", ":")]:
                line_of = [row for row in those if row["way"] == way and row["io_ways"] == io_ways]
                axes.plot([int(row["lag_chunks"]) / 32 for row in line_of], [float(row["gb_s"]) for row in line_of], line,
                          color=colour, linewidth=1.2, label=label if line == "-" else None)
        axes.set_xscale("symlog", linthresh=1)
        axes.set_ylim(bottom=0)
        axes.set_title(machine)
        axes.set_xlabel("the last worker is behind, MiB of each")
    panels[0].set_ylabel("pushed at most, GB/s")
    panels[-1].legend(fontsize=7)
    style.save(figure, f"{args.out}/traffic", dpi=110)


if __name__ == "__main__":
    main()
