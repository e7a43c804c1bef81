"""A CSV file of measured rows: read whole, and written so that it is the old one or the new one."""

import csv
import os


def read(path, columns, advice="move it away"):
    """Returns the rows of a file with these columns; none if there is no file. An error about other columns ends with the advice."""
    if not os.path.exists(path):
        return []
    with open(path, newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != columns:
            raise ValueError(f"{path}: columns {reader.fieldnames}, expected {columns}; {advice}")
        return list(reader)


def write(path, columns, rows):
    """Writes all rows, beside the file first."""
    beside = f"{path}.new"
    with open(beside, "w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    os.replace(beside, path)
