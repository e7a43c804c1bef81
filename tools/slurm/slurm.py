"""Runs the README's training under a real Slurm of two machines: by srun and by sbatch, with ranks in blocks and in turn.

    namespace m0: slurmd -N one    the rig's switch    namespace m1: slurmd -N two
    namespace m2: slurmctld; srun and sbatch are called here

Runs inside `unshare --net --mount --pid` (run.sh). Exit status 0 if every training passed its checks.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "rig"))
from machines import Machines  # noqa: E402

NODES = ["one", "two"]
HEAD = len(NODES)
# The timeout, in seconds, for the start of programs, and for a training, which normally takes a few seconds.
LIMIT_S = 120

CONF = """\
MailProg=/bin/true
ClusterName=phub
SlurmctldHost=head({head})
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket
CryptoType=crypto/munge
SlurmUser=root
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool.%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP
"""


def code(page, begins):
    """Returns the code block of a page that begins with this text."""
    blocks = re.findall(r"```\w+\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return next(block for block in blocks if block.startswith(begins))


# Each worker prints the ranks that its machine's hub has as members.
PLACES = """
import phub
with phub.Session(keys={"a": (3,)}, optimizer=phub.Average()) as session:
    session.average({"a": [1, 2, 3]})
    print(session.members(), flush=True)
    session.average({"a": [1, 2, 3]})
"""


# Two batch scripts without srun: one has a single task, so it is right; the other has four tasks, so it needs srun.
ALONE = """#!/bin/sh
#SBATCH --ntasks=1
#SBATCH --output=alone.out
python train.py
"""
WITHOUT_SRUN = """#!/bin/sh
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --output=without.out
python train.py
"""
WORDS = "not one of its 4 tasks: start them by `srun python"


class Cluster:
    """The daemons of Slurm, each in a separate namespace."""

    def __init__(self, directory):
        self.dir, self.machines = directory, Machines(HEAD + 1)
        addresses = {name: self.machines.address(number) for number, name in enumerate([*NODES, "head"])}
        (directory / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{at} {name}\n" for name, at in addresses.items()))
        subprocess.run(["mount", "--bind", directory / "hosts", "/etc/hosts"], check=True)
        nodes = "\n".join(f"NodeName={name} NodeAddr={addresses[name]} CPUs=4 State=UNKNOWN" for name in NODES)
        (directory / "slurm.conf").write_text(CONF.format(head=addresses["head"], dir=directory, nodes=nodes))
        (directory / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        for each in "state", *(f"spool.{name}" for name in NODES):
            (directory / each).mkdir()
        (directory / "munge.key").write_bytes(os.urandom(128))
        (directory / "munge.key").chmod(0o400)
        self.env = {**os.environ, "SLURM_CONF": str(directory / "slurm.conf")}
        files = {name: f"{directory}/munge.{name}" for name in ("socket", "pid", "log", "seed", "key")}
        self.daemon(
            *("munge", None, "munged", "--foreground", "--force", "--key-file", files["key"], "--socket", files["socket"]),
            *("--pid-file", files["pid"], "--log-file", files["log"], "--seed-file", files["seed"]),
        )
        self.wait(lambda: Path(files["socket"]).exists(), "munged")
        self.daemon("slurmctld", HEAD, *self.called("head", "slurmctld -D"))
        for number, name in enumerate(NODES):
            self.daemon(f"slurmd.{name}", number, *self.called(name, f"slurmd -D -N {name}"))
        self.wait(lambda: "2 idle" in self.ask("sinfo", "-h", "-o", "%D %t").stdout, "two idle nodes in sinfo")

    @staticmethod
    def called(name, command):
        """Returns a command that runs another command with this host name."""
        return ["unshare", "--uts", "sh", "-c", f"hostname {name} && exec {command}"]

    def daemon(self, log, machine, *command):
        inside = command if machine is None else self.machines.inside(machine, command)
        with open(self.dir / f"{log}.out", "w", encoding="utf-8") as out:
            subprocess.Popen(inside, env=self.env, stdout=out, stderr=out)

    def ask(self, *command):
        """Runs a command of Slurm on the head. Returns the ended process with its output."""
        inside = self.machines.inside(HEAD, command)
        return subprocess.run(inside, env=self.env, cwd=self.dir, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    def wait(self, is_there, what):
        """Waits until `is_there` returns true. It polls, because Slurm's daemons do not notify when they are ready."""
        begun = time.monotonic()
        while not is_there():
            if time.monotonic() - begun > LIMIT_S / 4:
                logs = "".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in self.dir.glob("*.out"))
                sys.exit(f"slurm: no {what} within {LIMIT_S / 4:.0f} s\n{logs}")
            time.sleep(0.1)


def check(name, done, out, tasks):
    """Checks that the command succeeded, and that every rank has trained."""
    ranks = {int(rank): float(loss) for rank, loss in re.findall(r"^rank (\d+): loss ([\d.]+)$", out, re.MULTILINE)}
    if done.returncode or sorted(ranks) != list(range(tasks)) or max(ranks.values()) > 0.5:
        sys.exit(f"slurm: {name}: exit status {done.returncode}, ranks and losses {ranks}\n{out}\n{done.stderr}")
    print(f"slurm: {name}: losses {[ranks[rank] for rank in range(tasks)]}", flush=True)


def refused(name, done, out):
    """Checks that a process which is not a task of Slurm ended with the error that says to use srun."""
    if done.returncode == 0 or WORDS not in out:
        sys.exit(f"slurm: {name}: exit status {done.returncode}, expected an error with {WORDS!r}\n{out}\n{done.stderr}")
    print(f"slurm: {name}: an error that says to use srun", flush=True)


def main():
    with tempfile.TemporaryDirectory(prefix="phub-slurm-") as name:
        directory = Path(name)
        cluster = Cluster(directory)
        (directory / "train.py").write_text(code("README.md", "import phub.torch"))
        (directory / "train.sbatch").write_text(code("docs/launchers.md", "#!/bin/sh"))
        for what, options in {
            "srun on two machines": ["-N2", "-n4"],
            "ranks in turn": ["-N2", "-n4", "--distribution=cyclic"],
            "one machine": ["-N1", "-n2"],
            "three and one": ["-N2", "-n4", "--distribution=arbitrary", "--nodelist=one,one,one,two"],
        }.items():
            done = cluster.ask("srun", *options, "python", "train.py")
            check(what, done, done.stdout, int(options[1][2:]))
        done = cluster.ask("srun", "-N2", "-n4", "--ntasks-per-node=2", "--distribution=cyclic", "python", "-c", PLACES)
        if sorted(done.stdout.splitlines()) != ["[0, 2]", "[0, 2]", "[1, 3]", "[1, 3]"]:
            sys.exit(f"slurm: the members of machines are {done.stdout}\n{done.stderr}")
        done = cluster.ask("sbatch", "--wait", "train.sbatch")
        outputs = list(directory.glob("slurm-*.out"))
        check("sbatch", done, "".join(out.read_text() for out in outputs), 4)
        (directory / "alone.sbatch").write_text(ALONE)
        done = cluster.ask("sbatch", "--wait", "alone.sbatch")
        check("sbatch of one task", done, (directory / "alone.out").read_text(), 1)
        (directory / "without.sbatch").write_text(WITHOUT_SRUN)
        done = cluster.ask("sbatch", "--wait", "without.sbatch")
        refused("sbatch without srun", done, (directory / "without.out").read_text())
        ask = ("python", "-c", "import phub; print(phub.worker())")
        done = cluster.ask("salloc", "-N2", "-n4", *ask)
        refused("a shell", done, done.stderr)
        # With `use_interactive_step`, Slurm itself starts the shell of a job in this way.
        done = cluster.ask("salloc", "-N2", "-n4", "srun", "--interactive", "--preserve-env", *ask)
        refused("an interactive step", done, done.stdout + done.stderr)


if __name__ == "__main__":
    main()
