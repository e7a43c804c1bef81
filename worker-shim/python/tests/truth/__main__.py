"""Prints the table of all cases: `python -m truth [WORDS...]`. With words, prints only idioms whose names contain one of the
words."""

import collections
import sys
import time

import torch

import phub

from .judge import Judge, cases
from .ways import DDP_WAYS, HUB_WAYS


def table(outcomes):
    """Returns the table as Markdown: a row for each idiom and number of workers, a column for each way of `ways`."""
    ways = [way for way in (*HUB_WAYS, *DDP_WAYS) if any(case.way == way for case in outcomes)]
    lines = [f"| idiom | workers | {' | '.join(ways)} |", f"| --- | --- |{' --- |' * len(ways)}"]
    rows = {}
    for case, outcome in outcomes.items():
        rows.setdefault((case.idiom.name, case.workers), {})[case.way] = outcome
    for (name, workers), by_way in rows.items():
        cells = [by_way[way].short() if way in by_way else "" for way in ways]
        lines.append(f"| {name} | {workers} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(words):
    outcomes, start = {}, time.monotonic()
    with phub.serve(cores=1, idle="sleep", heartbeat_limit_s=30) as hub:
        judge = Judge(hub.address)
        for case in cases():
            if not words or any(word in case.idiom.name for word in words):
                outcomes[case] = judge.outcome(case)
                print(f"{case}: {outcomes[case]}", file=sys.stderr, flush=True)
                if words and not outcomes[case].passes:
                    print(outcomes[case].details, file=sys.stderr, flush=True)
        judge.stop()
    print(table(outcomes))
    counts = collections.Counter(outcome.word for outcome in outcomes.values())
    found = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    names = {case.idiom.name for case in outcomes}
    seconds = f"{time.monotonic() - start:.0f} s"
    print(f"\ntorch {torch.__version__}: {len(names)} idioms, {len(outcomes)} cases: {found}; {seconds}")


if __name__ == "__main__":
    main(sys.argv[1:])
