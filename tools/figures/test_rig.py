"""A run on the rig, of two machines and a small model, leaves nothing when it is killed. Without root or built binaries the test
is skipped, with a message (check.sh)."""

import os
import subprocess
import tempfile
import unittest

from table import read

HERE = os.path.dirname(os.path.abspath(__file__))
RUN = ["sh", os.path.join(HERE, "run.sh"), "--only", "trial", "--repeats", "1", "--no-pictures", "--out"]
LIMIT_S = 120


def lacks():
    """Returns what this machine lacks for the test; `None` if it lacks nothing."""
    said = subprocess.run(["sh", os.path.join(HERE, "..", "rig", "ready.sh")], capture_output=True, text=True, check=False)
    return said.stderr.strip() or None


MISSING = lacks()


@unittest.skipIf(MISSING, MISSING)
class Rig(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.out = directory.name
        self.before = namespaces()

    def test_two_machines_train_a_toy_with_hubs_beside_them_and_apart(self):
        for hubs in ["beside", "apart"]:
            done = self.run_to_end("--hubs", hubs)
            self.assertEqual(done.returncode, 0, done.stderr)
        rows = read(f"{self.out}/runs.csv")
        settings = [(row["schedule"], row["hubs"]) for row in rows]
        self.assertEqual(settings, [(schedule, hubs) for hubs in ("beside", "apart") for schedule in ("kvstore", "p3")])
        for row in rows:
            self.assertGreater(float(row["samples_per_s"]), 0)
            self.assertGreater(float(row["bound"]), 0)
        with open(f"{self.out}/utilisation-googlenet-p3.csv") as file:
            lines = file.read().splitlines()
        sent = [float(line.split(",")[2]) for line in lines[1:]]
        self.assertGreater(sum(sent), 0, "nothing passed the link")
        self.assertEqual(namespaces(), self.before)

    def test_what_is_there_is_not_measured_again(self):
        self.run_to_end("--hubs", "apart")
        before = read(f"{self.out}/runs.csv")
        self.assertIn("2 are in", self.run_to_end("--hubs", "apart").stdout)
        self.assertEqual(read(f"{self.out}/runs.csv"), before)

    def test_nothing_is_left_when_it_is_killed(self):
        command = [*RUN, self.out, "--repeats", "1000", "--hubs", "apart"]
        rig = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.addCleanup(rig.stdout.close)
        # One run has ended, and the next is running.
        for line in rig.stdout:
            if line.startswith("1/"):
                break
        rig.kill()
        rig.wait()
        # The output ends when the last process that can write to it has ended.
        rig.stdout.read()
        self.assertEqual(namespaces(), self.before)
        self.assertEqual(processes(self.out), [])

    def run_to_end(self, *more):
        return subprocess.run([*RUN, self.out, *more], capture_output=True, text=True, timeout=LIMIT_S, check=False)


def namespaces():
    """Returns the names of network namespaces, and the links of this namespace."""
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return names, sorted(os.listdir("/sys/class/net"))


def processes(word):
    """Returns the processes whose command line has this word."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read().decode(errors="replace")
        except OSError:
            continue
        if word in command and int(pid) != os.getpid():
            found.append(command)
    return found


if __name__ == "__main__":
    unittest.main()
