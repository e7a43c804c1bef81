"""A rank that fails notifies the other ranks: at the end of a `with` block, and when an exception ends the script."""

import os
import socket
import subprocess
import sys
import threading

import pytest
from conftest import mesh

import phub
from phub import _failure

KEYS = {"weight": (3, 40), "bias": (7,)}
JOB = {"keys": KEYS, "optimizer": phub.Sgd(learning_rate=0.5), "job": "job"}


def fails(script, **environment):
    """Starts a process that runs this script, and returns it."""
    script = "import phub\n" + script.format(job=f"keys={KEYS!r}, optimizer=phub.{JOB['optimizer']!r}, job='job'")
    return subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )


def ended(process, status):
    said, errors = process.communicate(timeout=100)
    assert process.returncode == status, errors
    return said, errors


IN_A_BLOCK = """
with phub.Session({hub!r}, 1, 2, {{job}}) as session:
    session.broadcast()
    {{{{}}}}["x"]
"""
UNCAUGHT = """
session = phub.Session({hub!r}, 1, 2, {{job}})
session.broadcast()
session.push("bias")
def train():
    raise RuntimeError("\\x1b[31mno\\nway " + "x" * 1000)
train()
"""
EXIT = """
import sys
with phub.Session({hub!r}, 1, 2, {{job}}) as session:
    session.broadcast()
    sys.exit({status})
"""


@pytest.mark.parametrize(
    "script, told",
    [
        (IN_A_BLOCK, "rank 1 failed: KeyError: 'x'"),
        (UNCAUGHT, r"rank 1 failed: RuntimeError:  \[31mno way x{570} \.\.\."),
        (EXIT.replace("{status}", "1"), r"rank 1 failed: exit\(1\)"),
    ],
    ids=["with", "uncaught", "exit"],
)
def test_the_others_hear_why_a_rank_fails(hub, script, told):
    process = fails(script.format(hub=hub.address))
    with pytest.raises(phub.JobFailedError, match=f"^job \"job\" failed: {told}$"):
        with phub.Session(hub, 0, 2, **JOB) as session:
            session.broadcast()
            session.push()
            session.wait()
    ended(process, 1)


def test_a_script_that_exits_well_leaves(hub):
    process = fails(EXIT.format(hub=hub.address, status=0))
    with pytest.raises(phub.PeerLeftError, match="worker 1 left before round 1"):
        with phub.Session(hub, 0, 2, **JOB) as session:
            session.broadcast()
            ended(process, 0)
            session.push()
            session.wait()


def test_rank_0_with_a_hub_of_its_own_is_heard_before_the_hub_ends():
    script = """
session = phub.Session({job})
try:
    session.broadcast()  # of rank 1: it may still wait when rank 0 fails
    if session.rank == 0:
        raise ValueError("no data")
    while True:
        session.push()
        session.wait()
except phub.Error as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "PHUB_PORT": str(port)}
    both = [fails(script, RANK=str(rank), LOCAL_RANK=str(rank), **place) for rank in range(2)]
    assert "ValueError: no data" in ended(both[0], 1)[1]
    assert ended(both[1], 0)[0] == "JobFailedError: job \"job\" failed: rank 0 failed: ValueError: no data\n"


def test_workers_of_other_machines_hear_it(hubs):
    told = []

    def worker(machine):
        with pytest.raises(phub.Error) as caught:
            with phub.Session(hubs[machine], 0, 1, mesh=mesh(hubs, machine), **JOB) as session:
                session.broadcast()
                if machine == 1:
                    raise phub.SettingsError("of the test")
                session.push()
                session.wait()
        told.append(str(caught.value))

    threads = [threading.Thread(target=worker, args=(machine,)) for machine in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sorted(told) == [
        'job "job" failed: machine 1: rank 0 failed: SettingsError: of the test', "of the test"
    ]


class Mute(Exception):
    def __str__(self):
        raise ValueError


@pytest.mark.parametrize(
    "error, reason",
    [
        (None, None),
        (SystemExit(), None),
        (SystemExit(0), None),
        (GeneratorExit(), None),
        (SystemExit("bad"), "exit('bad')"),
        (KeyError("x"), "KeyError: 'x'"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (Mute(), "Mute: its text cannot be read"),
        (ValueError("a\u202eb\n\0" + "c" * 2000), "ValueError: a b  " + "c" * 584),
    ],
)
def test_a_reason_is_a_line(error, reason):
    assert _failure.reason(error) == reason


def test_at_a_prompt_an_error_ends_nothing(monkeypatch):
    monkeypatch.setattr(sys, "last_value", KeyError("x"), raising=False)
    assert _failure.of_script() == "KeyError: 'x'"
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert _failure.of_script() is None
