"""The measured rows in a CSV file: one for each run, added as soon as the run ends."""

import math
import statistics

import csv_file
from points import KEY

COLUMNS = [
    *KEY,
    "repeat",
    "samples_per_s",  # of all of P3's machines together
    "bound",  # the highest speed that any schedule can reach
    "iteration_ms",  # from here on, the columns are of this machine, and not scaled to P3's
    "compute_ms",
    "stalled_ms",
    "late_ms",
    "mbit",
    "shrink",
    "time",
    "cpu_share",  # of all cores, while iterations were measured
    "others_share",  # of other work, without the run and without the kernel's interrupts
]
# Columns without numbers.
WORDS = ["model", "schedule", "consistency", "hubs", "series"]


class Table:
    """Rows by point and repeat."""

    def __init__(self, path, fresh=False, others_at_most=1.0):
        self.path = path
        rows = [] if fresh else read(path)
        self.rows = [row for row in rows if float(row["others_share"]) <= others_at_most]

    def has(self, point, repeat):
        """Whether the table has this run."""
        return any(row["repeat"] == str(repeat) for row in self.of(point))

    def of(self, point):
        """Returns the runs of a point."""
        key = point.key()
        return [row for row in self.rows if tuple(row[name] for name in KEY) == key]

    def add(self, row):
        """Adds a row, and writes the file at once. After an interruption, the file has the whole row or none of it."""
        missing = [name for name in COLUMNS if name not in row]
        if missing:
            raise ValueError(f"a row without {', '.join(missing)}")
        self.rows.append({name: str(row[name]) for name in COLUMNS})
        csv_file.write(self.path, COLUMNS, self.rows)

    def summary(self, point, column="samples_per_s"):
        """Returns median, lowest and highest; `None` if nothing was measured."""
        values = [float(row[column]) for row in self.of(point)]
        return (statistics.median(values), min(values), max(values)) if values else None


def spread(values, form=".0f"):
    """Returns median, lowest and highest as text."""
    values = list(values)
    middle, low, high = (format(of(values), form) for of in (statistics.median, min, max))
    return f"{middle} ({low} to {high})"


def read(path):
    """Returns all rows of a file; none if there is no file."""
    rows = csv_file.read(path, COLUMNS, "measure again with --fresh")
    for number, row in enumerate(rows, start=2):
        try:
            if None in row:
                raise ValueError(f"more than {len(COLUMNS)} values")
            numbers = [float(row[name]) for name in COLUMNS if name not in WORDS]
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: {error}; correct or remove the line") from None
        if not all(map(math.isfinite, numbers)):
            raise ValueError(f"{path}, line {number}: a value that is no number; correct or remove the line")
    return rows
