#!/usr/bin/env python3
"""Measures a hub whose workers compute nothing, for docs/figures/phub.md. This program varies the way to divide work,
the size of chunks, the number of jobs, and the number of workers up to saturation. Writes phub.csv.
Needs no root. A run that was interrupted continues."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

from rows import Rows

CHUNK_BYTES = [1 << power for power in (10, 11, 12, 13, 14, 15, 16, 17, 18, 20, 22)]
JOBS = [1, 2, 4, 8]
WORKERS = [1, 2, 4, 8, 16]
WORKERS_OF_A_JOB = 2
# The time, in seconds, for which the rounds of each job are counted.
WINDOW_S = 4
# The timeout of a program, in seconds.
LIMIT_S = 300
EXPERIMENTS = ["balance", "divide", "cost", "chunks", "jobs", "workers"]


class Failed(Exception):
    """A program that ended without a result."""


def ablations(args, what, repeat):
    """Runs the benchmark with this name, and yields its rows."""
    for line in run([args.ablations, what, "--repeat", str(repeat)]).splitlines():
        experiment, model, variant, at, value = line.split(",")
        yield {"experiment": experiment, "model": model, "variant": variant, "at": at, "repeat": repeat, "value": value}


def run(command):
    """Runs a program, which must succeed, and returns its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def probe(args, *options):
    """Runs the probe, and returns its report."""
    return json.loads(run([f"{args.binaries}/phub-probe", "--json", *map(str, options)]))


def chunks(args, repeat):
    """Yields the rounds a second of the hub by the size of a chunk: shared memory, ResNet-50, 4 workers."""
    for chunk_bytes in CHUNK_BYTES:
        report = probe(args, "--workers", 4, "--chunk-bytes", chunk_bytes, "--limit", "off", "--rounds", args.rounds)
        yield row("chunks", chunk_bytes, repeat, 1000 / report["round_ms_p50"], "rounds a second")


def workers(args, repeat):
    """Yields the goodput by the number of workers, also as a share of the machine's limit."""
    for count in WORKERS:
        report = probe(args, "--workers", count, "--rounds", args.rounds)
        yield row("workers", count, repeat, report["limit_ratio"], "share of the limit")
        yield row("workers", count, repeat, report["goodput_gb_per_s"], "GB/s")


def jobs(args, repeat):
    """Yields the rounds a second of each of several jobs on one hub."""
    for count in JOBS:
        for job, rate in enumerate(rates_of_jobs(args, count)):
            yield row("jobs", count, repeat, rate, f"job {job}")


def row(experiment, at, repeat, value, variant):
    """Returns a row of phub.csv."""
    return {"experiment": experiment, "model": "resnet50", "variant": variant, "at": at, "repeat": repeat, "value": f"{value:.5g}"}


def rates_of_jobs(args, count):
    """Runs a number of jobs on one hub. Returns the rounds a second of each job, while all of them run."""
    processes = []
    token = run([f"{args.binaries}/phub-server", "token"]).strip()
    try:
        hub = [f"{args.binaries}/phub-server", "serve", "--listen", "127.0.0.1:0"]
        processes.append(subprocess.Popen(hub, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
        line = processes[0].stdout.readline()
        if "http://" not in line:
            raise Failed(f"a hub ended before it listened (it said {line.strip()!r})")
        address = line.split("http://")[1].strip()
        for job in range(count):
            for rank in range(WORKERS_OF_A_JOB):
                options = ["--hub", address, "--job", f"job{job}", "--workers", WORKERS_OF_A_JOB, "--rank", rank,
                           "--rounds", 1_000_000, "--limit", "off", "--json"]
                command = [f"{args.binaries}/phub-probe", *map(str, options)]
                processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        begin = when_all_run(address, token, count)
        time.sleep(args.window_s)
        end = look(address, token)
        return [(end[1][name] - rounds) / (end[0] - begin[0]) for name, rounds in begin[1].items()]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.communicate()


def when_all_run(address, token, count):
    """Waits until every job has made a few rounds. Returns the time, and the round of each job."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        seen = look(address, token)
        if len(seen[1]) == count and min(seen[1].values()) > 3:
            return seen
        time.sleep(0.1)
    raise Failed(f"{count} jobs did not run after {LIMIT_S} s")


def look(address, token):
    """Asks the hub for the round of each job. Returns the time, and the rounds by job."""
    request = urllib.request.Request(f"http://{address}/v1/hub", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        hub = json.load(answer)
    return time.monotonic(), {job["name"]: job["round"] for job in sorted(hub["jobs"], key=lambda job: job["name"])}


MEASURES = {"chunks": chunks, "jobs": jobs, "workers": workers}


def build_ablations():
    """Builds the benchmark, and returns its path."""
    command = ["cargo", "build", "--release", "--bench", "ablations", "--message-format", "json"]
    features = subprocess.run(["sh", "tools/setup.sh", "features"], capture_output=True, text=True, check=True).stdout.split()
    done = subprocess.run([*command, *features], stdout=subprocess.PIPE, text=True, check=True)
    paths = [json.loads(line).get("executable") for line in done.stdout.splitlines()]
    return next(path for path in paths if path and "ablations" in path)


def arguments():
    """Returns the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], choices=EXPERIMENTS,
                        help="an experiment; may be given several times; default: all")
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="runs of each experiment (7)")
    parser.add_argument("--rounds", type=int, default=40, metavar="N", help="rounds of a run of the probe (40)")
    parser.add_argument("--window-s", type=float, default=WINDOW_S, metavar="S",
                        help=f"seconds for which rounds of jobs are counted ({WINDOW_S})")
    parser.add_argument("--out", default="target/figures", metavar="DIRECTORY", help="folder of phub.csv")
    parser.add_argument("--binaries", default="target/release", metavar="DIRECTORY", help="folder of the built programs")
    return parser


def main():
    """Makes the missing runs: everything once, then again."""
    args = arguments().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("phub: ended by SIGTERM"))
    os.makedirs(args.out, exist_ok=True)
    table = Rows(f"{args.out}/phub.csv")
    args.ablations = None
    for repeat in range(args.repeats):
        for experiment in args.only or EXPERIMENTS:
            # The balance is computed, not measured, so one repeat is enough.
            if table.has(experiment, repeat) or (experiment == "balance" and repeat > 0):
                continue
            if experiment not in MEASURES:
                args.ablations = args.ablations or build_ablations()
                found = list(ablations(args, experiment, repeat))
            else:
                found = list(MEASURES[experiment](args, repeat))
            table.add(found)
            print(f"{experiment}, repeat {repeat}: {len(found)} rows", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("phub: interrupted; the results are kept")
    except (Failed, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"phub: {error}")
