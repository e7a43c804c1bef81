#!/usr/bin/env python3
"""Computes the numbers of docs/figures/phub.md from the rows: ratios within a repeat, with median, lowest and highest. Prints the
page's tables."""

import argparse
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))

import box  # noqa: E402
from rows import Rows, jain, ratios, summary  # noqa: E402
from zero import CHUNK_BYTES, JOBS, WORKERS  # noqa: E402

DEFAULT_CHUNK = 32768
VARIANTS = ["tall in runs", "tall in turn", "tall at random", "wide counted", "wide in step", "wide by rayon"]
# The rate of a worker's link in the paper, 56 Gb/s, without headers and coding.
WORKER_GB_S = 6.8


def divided(table):
    """Returns, by variant and size of chunks, the time of a pass, divided by the time with the hub's own way to
    divide chunks."""
    base = table.values("divide", variant=VARIANTS[0], at=DEFAULT_CHUNK)
    sizes = sorted({int(row["at"]) for row in table.rows if row["experiment"] == "divide"})
    return {variant: {size: ratios(table.values("divide", variant=variant, at=size), base) for size in sizes}
            for variant in VARIANTS}


def by_chunk(table):
    """Returns, by size of chunks, the rounds a second relative to those with chunks of 32 KiB."""
    base = table.values("chunks", at=DEFAULT_CHUNK)
    found = {size: ratios(table.values("chunks", at=size), base) for size in CHUNK_BYTES}
    return {size: ratio for size, ratio in found.items() if ratio}


def by_workers(table):
    """Returns, by number of workers, the goodput as a share of the machine's limit."""
    return {count: summary(table.values("workers", at=count, variant="share of the limit").values()) for count in WORKERS
            if table.values("workers", at=count)}


def by_jobs(table):
    """Returns two ratios by number of jobs. The first is the goodput of all jobs to that of one job. The
    second is the speed of the slowest job to that of the fastest."""
    rates = {count: [table.values("jobs", at=count, variant=f"job {job}") for job in range(count)] for count in JOBS}
    repeats = [repeat for repeat in rates[1][0] if all(repeat in of_job for of_jobs in rates.values() for of_job in of_jobs)]
    total, fair = {}, {}
    for count, of_jobs in rates.items():
        total[count] = summary(sum(of_job[repeat] for of_job in of_jobs) / rates[1][0][repeat] for repeat in repeats)
        fair[count] = summary(min(of_job[repeat] for of_job in of_jobs) / max(of_job[repeat] for of_job in of_jobs)
                              for repeat in repeats)
    return total, fair


def jains(table):
    """Returns, by number of jobs, Jain's index of fairness."""
    rates = {count: [table.values("jobs", at=count, variant=f"job {job}") for job in range(count)] for count in JOBS}
    return {count: summary(jain(of_job[repeat] for of_job in of_jobs if repeat in of_job) for repeat in of_jobs[0])
            for count, of_jobs in rates.items()}


def traffic_model():
    """Returns the module tools/figures/traffic/model.py, the model of memory traffic."""
    spec = importlib.util.spec_from_file_location("traffic_model", os.path.join(HERE, "..", "traffic", "model.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def on_paper():
    """Returns, by machine and number of workers, the pushed bytes a second relative to the machine's limit with very many
    workers. Assumes that the cache reuses nothing. A worker has one link of 56 Gb/s, or an eighth of the machine's links."""
    model, shares = traffic_model(), {}
    for machine in model.MACHINES:
        if machine.name == "8 x 100 Gb/s":
            continue
        link = WORKER_GB_S if machine.nics == 10 else machine.wire_gb_s / machine.nics
        most = min(machine.wire_gb_s, machine.memory_gb_s / 2)
        carried = {count: min(count * link, model.carried(machine, sum(model.streamed(count)))[0]) for count in WORKERS}
        shares[machine.name] = {count: gb_s / most for count, gb_s in carried.items()}
    return shares


def gains(rows):
    """Returns, by model, batch and system, the speed relative to `kvstore` with a server on each worker's machine."""
    of = values(rows, "3", "samples_per_s")
    return {(setting, system): ratios(found, of[setting, "kvstore"]) for (setting, system), found in of.items()
            if (setting, "kvstore") in of}


def shares(rows):
    """Returns, by model and system, the share of an iteration that is not computing, for figure 1b."""
    stalled, whole = values(rows, "1b", "stalled_ms"), values(rows, "1b", "iteration_ms")
    return {(setting[0], system): ratios(found, whole[setting, system]) for (setting, system), found in stalled.items()}


def values(rows, figure, column):
    """Returns, by model, batch and system, the values of a column by repeat."""
    found = {}
    for row in rows:
        if row["figure"] == figure:
            found.setdefault(((row["model"], row["batch"]), row["system"]), {})[row["repeat"]] = float(row[column])
    return found


def words(of, form=".2f"):
    """Returns median, lowest and highest as text."""
    return "{} ({} to {})".format(*(format(value, form) for value in of)) if of else ""


def main():
    """Prints all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="docs/figures", metavar="DIRECTORY")
    args = parser.parse_args()
    table, rows = Rows(f"{args.out}/phub.csv"), box.read(f"{args.out}/phub-box.csv")
    sizes = divided(table)
    print("| chunk |", " | ".join(VARIANTS), "|")
    for size in sizes[VARIANTS[0]]:
        print(f"| {size / 1024:g} KiB |", " | ".join(words(sizes[variant][size]) for variant in VARIANTS), "|")
    for name, of in [("chunks", by_chunk(table)), ("workers", by_workers(table)), ("jain", jains(table))]:
        print(name, *(f"{at}: {words(found)};" for at, found in of.items()))
    for name, of in zip(("total", "slowest over fastest"), by_jobs(table)):
        print(name, *(f"{at}: {words(found)};" for at, found in of.items()))
    for variant in ("in place", "in parts", "handed over", "handed over in parts"):
        print("cost", variant, words(summary(table.values("cost", variant=variant).values()), ".0f"))
    for name, of in on_paper().items():
        print("on paper", name, *(f"{at}: {share:.2f};" for at, share in of.items()))
    for (setting, system), found in gains(rows).items():
        samples = summary(values(rows, "3", "samples_per_s")[setting, system].values())
        print("figure 3", *setting, system, "samples/s", words(samples, ".0f"), "ratio", words(found))
    for (model, system), found in shares(rows).items():
        print("figure 1b", model, system, words(found))
    cpu, others = (summary(float(row[name]) for row in rows) for name in ("cpu_share", "others_share"))
    print("cores", words(cpu), "others", words(others))
    balance = [row for row in table.rows if row["experiment"] == "balance"]
    for rule in dict.fromkeys(row["variant"] for row in balance):
        for cores in ("4", "10", "20"):
            found = [float(row["value"]) for row in balance if (row["variant"], row["at"]) == (rule, cores)]
            print("balance", rule, cores, f"{min(found):.3f} to {max(found):.3f}")


if __name__ == "__main__":
    main()
