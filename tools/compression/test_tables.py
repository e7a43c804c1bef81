"""Tests of the tables of docs/figures/compression.md: the program prints what the page has."""

import contextlib
import io
import os
import unittest

from tables import read, tell, tell_long

FIGURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "figures")


def table_of(page, first):
    """Returns the lines of the page's table whose heading begins with these cells."""
    with open(os.path.join(FIGURES, page)) as file:
        _, rest = file.read().split(f"\n{first}", 1)
    return (first + rest.split("\n\n", 1)[0]).split("\n")


class Page(unittest.TestCase):
    def check(self, printed_by, runs, first):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            printed_by(read(os.path.join(FIGURES, runs)))
        lines = said.getvalue().split("\n")
        for line in table_of("compression.md", first):
            self.assertIn(line, lines)

    def test_the_table_by_time_is_what_is_printed(self):
        self.check(tell, "compression.csv", "| method | accuracy at the end, % |")

    def test_the_table_of_long_runs_is_what_is_printed(self):
        self.check(tell_long, "compression-length.csv", "| method | accuracy after 900 rounds, % |")


if __name__ == "__main__":
    unittest.main()
