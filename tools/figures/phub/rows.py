"""The rows of phub.csv, and what the page says of them: ratios within one repeat, their median, lowest and highest."""

import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import csv_file  # noqa: E402

COLUMNS = ["experiment", "model", "variant", "at", "repeat", "value"]


class Rows:
    """Rows in a file. The rows of an experiment's repeat are added together, so that none is half there."""

    def __init__(self, path):
        self.path = path
        self.rows = csv_file.read(path, COLUMNS)

    def has(self, experiment, repeat):
        """Whether the file has this repeat of the experiment."""
        return any((row["experiment"], row["repeat"]) == (experiment, str(repeat)) for row in self.rows)

    def add(self, rows):
        """Adds rows, on disk at once: all or none."""
        self.rows += [{name: str(row[name]) for name in COLUMNS} for row in rows]
        csv_file.write(self.path, COLUMNS, self.rows)

    def values(self, experiment, **where):
        """Returns the values by repeat of rows with these columns."""
        where = {"experiment": experiment, **{name: str(value) for name, value in where.items()}}
        found = [row for row in self.rows if all(row[name] == value for name, value in where.items())]
        return {row["repeat"]: float(row["value"]) for row in found}


def ratios(values, base):
    """Returns the median, lowest and highest of the ratios within a repeat; `None` if no repeat has both."""
    both = [values[repeat] / base[repeat] for repeat in values if base.get(repeat)]
    return summary(both)


def summary(values):
    """Returns median, lowest and highest; `None` of nothing."""
    values = list(values)
    return (statistics.median(values), min(values), max(values)) if values else None


def jain(rates):
    """Returns Jain's index of fairness: 1 if all have the same rate, 1 / n if one has all."""
    rates = list(rates)
    return sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates)) if any(rates) else 0.0
