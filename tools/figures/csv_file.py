"""A CSV file of measured rows. It is read as a whole, and replaced as a whole: a write that is interrupted leaves the old
file."""

import csv
import os


def read(path, columns, advice="move it away"):
    """Returns the rows of a file with these columns; none if there is no file. If the columns differ, the error ends with
    `advice`."""
    if not os.path.exists(path):
        return []
    with open(path, newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != columns:
            raise ValueError(f"{path}: columns {reader.fieldnames}, expected {columns}; {advice}")
        return list(reader)


def write(path, columns, rows):
    """Writes all rows to a file beside the old one, and then replaces the old one."""
    beside = f"{path}.new"
    with open(beside, "w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    os.replace(beside, path)
