"""Tests of PHub's figures: rows, the numbers that are computed from them, and points. One test makes a small run on the rig, if
this machine can."""

import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..")]

import box  # noqa: E402
import told  # noqa: E402
from rows import COLUMNS, Rows, jain, ratios  # noqa: E402


def lacks():
    """Returns what this machine lacks for the rig; `None` if it lacks nothing."""
    said = subprocess.run(["sh", os.path.join(HERE, "..", "..", "rig", "ready.sh")], capture_output=True, text=True, check=False)
    return said.stderr.strip() or None


MISSING = lacks()


def row(experiment, variant, at, repeat, value):
    return {"experiment": experiment, "model": "", "variant": variant, "at": at, "repeat": repeat, "value": value}


class Tables(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = os.path.join(directory.name, "phub.csv")

    def test_a_repeat_is_there_whole_and_stays(self):
        table = Rows(self.path)
        table.add([row("chunks", "", 32768, 0, 10), row("chunks", "", 1024, 0, 4)])
        again = Rows(self.path)
        self.assertEqual(again.rows, table.rows)
        self.assertTrue(again.has("chunks", 0))
        self.assertFalse(again.has("chunks", 1) or again.has("jobs", 0))
        with open(self.path, "w") as file:
            file.write("other,columns\n")
        self.assertRaisesRegex(ValueError, str(COLUMNS[0]), Rows, self.path)

    def test_ratios_are_of_one_repeat(self):
        # In the second repeat the machine is ten times as slow, and the ratio does not change.
        table = Rows(self.path)
        for repeat, speed in enumerate([1, 0.1, 1]):
            table.add([row("chunks", "", 32768, repeat, 100 * speed), row("chunks", "", 1024, repeat, 40 * speed)])
        for value in told.by_chunk(table)[1024]:
            self.assertAlmostEqual(value, 0.4)
        self.assertIsNone(ratios({"0": 1.0}, {"1": 1.0}))

    def test_jobs_are_compared_with_one_and_with_each_other(self):
        table = Rows(self.path)
        for count, rates in [(1, [40]), (2, [30, 20]), (4, [10] * 4), (8, [5] * 7 + [1])]:
            table.add([row("jobs", f"job {job}", count, 0, rate) for job, rate in enumerate(rates)])
        total, fair = told.by_jobs(table)
        self.assertEqual([total[count][0] for count in total], [1, 1.25, 1, 0.9])
        self.assertEqual([fair[count][0] for count in fair], [1, 2 / 3, 1, 0.2])
        self.assertEqual((jain([3, 3, 3]), jain([1, 0, 0, 0]), jain([0])), (1, 0.25, 0))


class Paper(unittest.TestCase):
    def test_links_limit_few_workers_and_the_memory_many(self):
        pbox = told.on_paper()["10 x 56 Gb/s"]
        self.assertAlmostEqual(pbox[2] / pbox[1], 2)
        self.assertAlmostEqual(pbox[4] / pbox[1], 4)
        self.assertLess(pbox[16] / pbox[8], 1.2)
        self.assertLessEqual(pbox[16], 1)


class Boxes(unittest.TestCase):
    def test_a_box_has_ten_links_more(self):
        beside, of_box = (box.Point("3", "resnet50", "GTX 1080 Ti", 32, 10, system) for system in ("kvstore", "box"))
        self.assertEqual(len(set(beside.links())), 1)
        self.assertEqual(of_box.links(), [*beside.links(), 10 * beside.links()[0]])

    def test_computing_and_transfer_keep_their_ratio(self):
        point = box.Point("3", "resnet50", "GTX 1080 Ti", 32, 10, "kvstore")
        # The expected times are those of 32 samples at 190 samples a second, and of 817 Mb at 10 Gb/s.
        computing = point.gpu_time() * 32 / 97.5
        transfer = 817 / point.scale().shrink / point.links()[0]
        self.assertAlmostEqual(computing / transfer, (32 / 190) / 0.0817)
        half = box.Point("3", "resnet50", "GTX 1080 Ti", 16, 10, "kvstore")
        self.assertAlmostEqual(half.gpu_time(), point.gpu_time() / 2)
        faster = box.Point("3", "resnet50", "GTX 1080 Ti", 32, 56, "kvstore")
        self.assertAlmostEqual(faster.gpu_time() * faster.links()[0], 5.6 * computing * point.links()[0] / (32 / 97.5))

    def test_a_row_has_the_times_of_the_imitated_machines(self):
        point = box.Point("3", "resnet50", "GTX 1080 Ti", 32, 10, "box")
        made = box.row(point, {"iteration_ms": 1000 * point.scale().time, "stalled_ms": 500 * point.scale().time}, (0.5, 0))
        self.assertEqual((made["samples_per_s"], made["iteration_ms"], made["stalled_ms"]), ("256.00", "1000.00", "500.00"))

    @unittest.skipIf(MISSING, MISSING)
    def test_a_toy_trains_with_servers_beside_it_and_with_a_box(self):
        with tempfile.TemporaryDirectory() as out:
            command = ["sh", os.path.join(HERE, "..", "run.sh"), "phub", "--trial", "--repeats", "1", "--no-pictures", "--out", out]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            found = box.read(f"{out}/phub-box.csv")
        self.assertEqual([row["system"] for row in found], ["kvstore", "box"])
        self.assertTrue(all(float(row["samples_per_s"]) > 0 for row in found))


if __name__ == "__main__":
    unittest.main()
