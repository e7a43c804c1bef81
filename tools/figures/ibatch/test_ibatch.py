"""Tests of the parts of iBatch's figures that only compute."""

import contextlib
import csv
import io
import os
import unittest

from measure import layers, option, row, say, slower
from model import rows_of, solve, sparse, speedup
from timeline import best, of_pulls, timeline


class Measuring(unittest.TestCase):
    def test_switches_and_values_in_the_programs_words(self):
        self.assertEqual(option("push_at_the_end", True), ["--push-at-the-end"])
        self.assertEqual(option("push_at_the_end", False), [])
        self.assertEqual(option("start_up_ms", 8), ["--start-up-ms", "8"])

    def test_more_machines_than_the_cores_carry_are_slower(self):
        self.assertEqual([slower(count) for count in (2, 4, 8)], [1, 1, 2])

    def test_a_row_is_the_mean_of_the_workers(self):
        simulation = {"iteration": 100, "to_last_layer": 50}
        reports = [{"compute": {"iteration_ms": ms}, "pull": {"measured_ms": ms / 2, "profile": None}} for ms in (90, 110)]
        made = row(2, "all", 0, reports, simulation)
        self.assertEqual((made["iteration_ms"], made["to_last_layer_ms"]), ("100.00", "50.00"))
        self.assertEqual((made["predicted_ms"], made["simulated_iteration_ms"]), ("", "100.00"))

    def test_a_part_has_one_start_up_and_all_its_transfers(self):
        names = ["conv1", "inception_3a/1x1", "inception_3a/3x3"]
        report = {"pull": {"profile": {"start_up_ms": 2, "transfer_ms": [1, 2, 3]}},
                  "compute": {"layers": [{"name": name, "forward_ms": 5} for name in names]}}
        self.assertEqual(layers([report]), [{"layer": "conv1", "pull_ms": "3.000", "forward_ms": "5.000"},
                                            {"layer": "inception_3a", "pull_ms": "7.000", "forward_ms": "10.000"}])


    def test_the_table_of_the_page_is_what_is_printed(self):
        figures = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "docs", "figures")
        with open(os.path.join(figures, "ibatch.csv"), newline="") as file:
            rows = list(csv.DictReader(file))
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            say(rows)
        with open(os.path.join(figures, "batches.md")) as page:
            tables = page.read().split("\n\n")
        [of_4] = [table for table in said.getvalue().strip().split("\n\n") if table.startswith("| 4 machines |")]
        self.assertIn(of_4, tables)


class Model(unittest.TestCase):
    answer = {"compute": "vgg19", "nodes": 4, "computing": 300, "forward": 100, "bound": 310,
              "batchings": [{"batching": "all", "batches": [19], "iteration": 600, "pull": 80, "pull_and_forward": 180}]}

    def test_speedup_is_over_one_node_that_communicates_nothing(self):
        self.assertEqual(speedup(self.answer, "all"), 2)

    def test_what_overlaps_is_what_the_whole_is_shorter_by(self):
        answer = dict(self.answer)
        answer["batchings"] = [{**self.answer["batchings"][0], "pull_and_forward": 120}]
        self.assertEqual([each["overlap_ms"] for each in rows_of("5", answer)], ["60.0"])
        self.assertEqual([each["overlap_ms"] for each in rows_of("5", self.answer)], ["0.0"])

    def test_sparse_pushes_take_their_share_of_a_pushs_time(self):
        # Of the iteration's 600 ms, the backward pass takes 200 ms, pull and forward pass take 180 ms, and so
        # the push takes 220 ms.
        answers = [sparse(self.answer, share)["batchings"][0]["iteration"] for share in (1, 0.5, 0)]
        self.assertEqual(answers, [600, 490, 380])

    def test_where_a_condition_begins_to_hold(self):
        self.assertAlmostEqual(solve(0.1, 1000, lambda value: value >= 26), 26, places=3)


class Timelines(unittest.TestCase):
    # Each layer's transfer and forward pass.
    costs = [(1, 4), (2, 4), (6, 1)]

    def test_a_batch_computes_after_its_pull_and_the_batch_before(self):
        self.assertEqual(timeline(self.costs, 1, [3]), ([(0, 10)], [(10, 19)]))
        self.assertEqual(timeline(self.costs, 1, [1, 1, 1]), ([(0, 2), (2, 5), (5, 12)], [(2, 6), (6, 10), (12, 13)]))

    def test_the_best_batches_end_first(self):
        self.assertEqual(best(self.costs, 1), [2, 1])
        self.assertEqual(best(self.costs, 100), [3])

    def test_the_smallest_pull_is_the_start_up(self):
        rows = [{"pull_ms": "3", "forward_ms": "5"}, {"pull_ms": "2", "forward_ms": "4"}]
        self.assertEqual(of_pulls(rows), ([(1, 5), (0, 4)], 2))


if __name__ == "__main__":
    unittest.main()
