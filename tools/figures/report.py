#!/usr/bin/env python3
"""Prints the numbers of the figures as tables of Markdown: gains over the baseline and shares of the bound."""

from figures import arguments
from points import NAMES, chosen
from table import Table, spread


def main():
    """Prints all tables of runs.csv."""
    args = arguments().parse_args()
    table = Table(f"{args.out}/runs.csv")
    for figure in ["7", "apart", "10"]:
        points = chosen([figure], quick=False, hubs=args.hubs)
        if any(table.of(point) for point in points):
            print(f"\n**{figure}**\n\n| | machines | Gb/s | kvstore | sliced | p3 | p3 over kvstore | p3 of the bound |")
            print("| --- | --- | --- | --- | --- | --- | --- | --- |")
            rows(table, points)
    for figure in ["12", "asgd"]:
        for point in chosen([figure], quick=False, hubs=args.hubs):
            found = table.summary(point)
            if found:
                print(f"{figure}: {point.model} at {point.gbps:g} Gb/s, {point.schedule} {point.consistency}, slices of "
                      f"{point.slice_bytes // 4}: {words(found)}, {of_bound(table, point)} of the bound")
    for figure in ["late", "codec"]:
        ratios(table, chosen([figure], quick=False, hubs=args.hubs))
    shares = [float(row["cpu_share"]) - float(row["others_share"]) for row in table.rows]
    others = [float(row["others_share"]) for row in table.rows]
    if shares:
        print(f"\n{len(shares)} runs; their share of the cores {percents(shares)}, that of other work {percents(others)}")


def rows(table, points):
    """Prints a row for each model, number of machines and rate."""
    settings = dict.fromkeys((point.model, point.machines, point.gbps) for point in points)
    for model, machines, gbps in settings:
        by_schedule = {point.schedule: point for point in points if (point.model, point.machines, point.gbps)
                       == (model, machines, gbps)}
        found = {schedule: table.summary(point) for schedule, point in by_schedule.items()}
        base, ours = found["kvstore"], found["p3"]
        if base and ours:
            sliced = words(found["sliced"]) if found.get("sliced") else ""
            print(f"| {NAMES[model]} | {machines} | {gbps:g} | {words(base)} | {sliced} | {words(ours)} | "
                  f"{100 * (ours[0] / base[0] - 1):+.0f}% | {of_bound(table, by_schedule['p3'])} |")


def ratios(table, points):
    """Prints each point's speed divided by the speed of its model's first schedule, in the same repeat."""
    first = {}
    for point in points:
        base = {row["repeat"]: row for row in table.of(first.setdefault(point.model, point))}
        speeds = [float(row["samples_per_s"]) / float(base[row["repeat"]]["samples_per_s"])
                  for row in table.of(point) if row["repeat"] in base]
        if speeds and point != first[point.model]:
            print(f"{NAMES[point.model]} at {point.gbps:g} Gb/s: {point.schedule} is {spread(speeds, '.2f')} times as fast "
                  f"as {first[point.model].schedule}")


def of_bound(table, point):
    """Returns the median speed as a share of the bound, as text."""
    return f"{table.summary(point)[0] / table.summary(point, 'bound')[0]:.2f}"


def words(summary):
    """Returns median, lowest and highest as text."""
    return "{:.0f} ({:.0f} to {:.0f})".format(*summary)


def percents(values):
    """Returns median, lowest and highest as text, in percent."""
    values = sorted(values)
    return "{:.0f}% ({:.0f} to {:.0f})".format(*(100 * v for v in (values[len(values) // 2], values[0], values[-1])))


if __name__ == "__main__":
    main()
