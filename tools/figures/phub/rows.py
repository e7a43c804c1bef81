"""The rows of phub.csv, and the numbers that are computed from them: ratios within a repeat, with median, lowest and highest."""

import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import csv_file  # noqa: E402

COLUMNS = ["experiment", "model", "variant", "at", "repeat", "value"]


class Rows:
    """The rows of a file. All rows of a repeat of an experiment are added at once, so that no repeat is incomplete."""

    def __init__(self, path):
        self.path = path
        self.rows = csv_file.read(path, COLUMNS)

    def has(self, experiment, repeat):
        """Whether the file has this repeat of the experiment."""
        return any((row["experiment"], row["repeat"]) == (experiment, str(repeat)) for row in self.rows)

    def add(self, rows):
        """Adds rows, and writes the file at once. After an interruption, the file has all of these rows or none."""
        self.rows += [{name: str(row[name]) for name in COLUMNS} for row in rows]
        csv_file.write(self.path, COLUMNS, self.rows)

    def values(self, experiment, **where):
        """Returns the values of the rows that have these columns, by repeat."""
        where = {"experiment": experiment, **{name: str(value) for name, value in where.items()}}
        found = [row for row in self.rows if all(row[name] == value for name, value in where.items())]
        return {row["repeat"]: float(row["value"]) for row in found}


def ratios(values, base):
    """Returns the median, lowest and highest ratio of two values of the same repeat; `None` if no repeat has both."""
    both = [values[repeat] / base[repeat] for repeat in values if base.get(repeat)]
    return summary(both)


def summary(values):
    """Returns median, lowest and highest; `None` if there are no values."""
    values = list(values)
    return (statistics.median(values), min(values), max(values)) if values else None


def jain(rates):
    """Returns Jain's index of fairness: 1 if all n jobs have the same rate, 1 / n if one job has the whole rate."""
    rates = list(rates)
    return sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates)) if any(rates) else 0.0
