"""Tests of the parts that only compute: scale, points, table, series. They need no root and no network."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "rig"))

from load import Load, rates  # noqa: E402
from points import FIGURES, KEY, QUICK, SCALES, Point, chosen  # noqa: E402
from run import worker_options  # noqa: E402
from scale import Scale, model_gbps, share_of_model  # noqa: E402
from table import COLUMNS, Table, read  # noqa: E402


class Scales(unittest.TestCase):
    def test_bytes_over_rate_and_computing_keep_their_ratio(self):
        for scale in [Scale(1, 1), Scale(8, 1), Scale(12, 2.5)]:
            bits, gbps, computing_s = 8e9, 4, 0.3
            there = bits / (gbps * 1e9) / computing_s
            here = bits / scale.shrink / (scale.mbit(gbps) * 1e6) / (computing_s * scale.time)
            self.assertAlmostEqual(here, there)
            self.assertAlmostEqual(scale.gbps(scale.mbit(gbps)), gbps)

    def test_slices_are_whole_lines(self):
        self.assertEqual(Scale(8, 1).bytes(200_000), 24_960 + 64)
        self.assertEqual(Scale(8, 1).bytes(1), 64)
        self.assertEqual(Scale(1, 1).bytes(32768), 32768)

    def test_times_are_told_as_they_were_there(self):
        self.assertEqual(Scale(8, 2).samples_per_s(50), 100)
        self.assertEqual(Scale(8, 2).sample_ms(10), 20)

    def test_scales_that_are_none(self):
        for shrink, time in [(0, 1), (1, 0), (1, -1), (1, float("nan"))]:
            self.assertRaises(ValueError, Scale, shrink, time)

    def test_what_leaves_a_machine(self):
        # A machine sends three of four parts of its gradients, and its hub's part of the weights to three machines.
        self.assertEqual(share_of_model(4), 3 / 4 + 3 / 4)
        self.assertEqual(share_of_model(2), 1)
        self.assertEqual(share_of_model(1), 0)
        self.assertRaises(ValueError, share_of_model, 0)
        self.assertEqual(model_gbps(3, 4), 2)


class Points(unittest.TestCase):
    def test_each_is_measured_once(self):
        every = chosen([], quick=False)
        self.assertEqual(len(every), len(set(every)))
        self.assertEqual(chosen(["8"], quick=False), chosen(["9"], quick=False), "one run has both schedules' series")
        self.assertEqual(set(every), {point for name in FIGURES for point in chosen([name], quick=False)})

    def test_quick_has_every_kind_and_only_asks_for_what_it_shows(self):
        self.assertEqual({point.series for point in QUICK}, {False, True})
        self.assertEqual({2, 4}, {point.machines for point in QUICK})
        self.assertIn("asp", {point.consistency for point in QUICK})
        self.assertTrue(set(chosen(["12"], quick=True)) < set(chosen(["12"], quick=False)))

    def test_a_schedule_is_the_probes_options(self):
        words = [worker_options(Point("vgg19", 4, 10, schedule)) for schedule in ("p3", "late", "p3+qsgd:8:512")]
        told = [(of["--schedule"], of["--pull"], of["--compress"]) for of in words]
        self.assertEqual(told, [("p3", None, None), ("kvstore", "layer", None), ("p3", None, "qsgd:8:512")])

    def test_more_machines_are_as_much_slower(self):
        four, eight = (Point("vgg19", machines, 10, "p3") for machines in (4, 8))
        self.assertEqual(eight.scale().time, 2 * four.scale().time)
        # All links together carry the same bytes.
        self.assertAlmostEqual(sum(eight.links()), sum(four.links()))

    def test_a_hub_apart_has_all_workers_rates(self):
        beside = Point("resnet50", 4, 4, "p3")
        apart = Point("resnet50", 4, 4, "p3", hubs="apart")
        rate = SCALES["resnet50"].mbit(4)
        self.assertEqual(beside.links(), [rate] * 4)
        self.assertEqual(apart.links(), [rate / 1.5] * 4 + [4 * rate / 1.5])


class Tables(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.path = os.path.join(self.directory.name, "runs.csv")

    def row(self, point, repeat, samples):
        return {**{name: "1" for name in COLUMNS}, **dict(zip(KEY, point.key())), "repeat": repeat,
                "samples_per_s": samples}

    def test_what_is_there_is_not_measured_again(self):
        point, other = Point("resnet50", 4, 1.5, "p3"), Point("resnet50", 4, 1.5, "kvstore")
        table = Table(self.path)
        for repeat, samples in enumerate([30, 10, 20]):
            table.add(self.row(point, repeat, samples))
        again = Table(self.path)
        self.assertEqual(again.rows, table.rows)
        self.assertTrue(again.has(point, 2))
        self.assertFalse(again.has(point, 3))
        self.assertFalse(again.has(other, 0))
        self.assertEqual(again.summary(point), (20, 10, 30))
        self.assertIsNone(again.summary(other))
        self.assertFalse(Table(self.path, fresh=True).has(point, 0))
        self.assertFalse(Table(self.path, others_at_most=0.5).has(point, 0), "all cores were others'")
        self.assertEqual(os.listdir(self.directory.name), ["runs.csv"])

    def test_rows_and_files_that_are_wrong(self):
        self.assertEqual(read(self.path), [])
        row = self.row(Point("vgg19", 4, 10, "p3"), 0, 1)
        del row["bound"]
        self.assertRaisesRegex(ValueError, "without bound", Table(self.path).add, row)
        Table(self.path).add({**row, "bound": 1})
        with open(self.path) as file:
            whole = file.read()
        for wrong, said in [
            (whole.replace("samples_per_s", "samples"), "--fresh"),
            (whole.replace("p3", "p3,p3"), "line 2"),
            (whole.rstrip("\n") + ",1\n", "line 2"),
            (whole[: whole.rindex(",")], "line 2"),
            (whole.replace("200000", "nan"), "line 2"),
        ]:
            with open(self.path, "w") as file:
                file.write(wrong)
            self.assertRaisesRegex(ValueError, said, read, self.path)


class Series(unittest.TestCase):
    def test_bytes_become_rates_by_the_step(self):
        # Each tenth of a second 1 Mb is received, and 2 Mb are sent. The third sample is late.
        looks = [(10 + at, at * 1_250_000, at * 2_500_000) for at in (0, 0.1, 0.25, 0.3, 0.4)]
        series = rates(looks, 0.1)
        self.assertEqual(len(series), 4)
        for step, (second, received, sent) in enumerate(series):
            self.assertAlmostEqual(second, step * 0.1)
            self.assertAlmostEqual(received, 10)
            self.assertAlmostEqual(sent, 20)
        self.assertEqual(rates(looks[:1], 0.1), [])

    def test_a_burst_is_where_it_was(self):
        looks = [(0, 0, 0), (1, 0, 0), (2, 125_000, 0), (3, 125_000, 0)]
        self.assertEqual([received for _, received, _ in rates(looks, 1)], [0, 1, 0])

    def test_shares_are_of_the_last_seconds(self):
        load = Load([])
        # The values of a sample: seconds, and the busy, total and own time.
        load.looks = [(0, 0, 0, 0), (1, 100, 100, 100), (2, 150, 200, 120)]
        self.assertEqual(load.shares(1), (0.5, 0.3))
        self.assertEqual(load.shares(99), (0.75, 0.15))


if __name__ == "__main__":
    unittest.main()
