#!/usr/bin/env python3
"""Simulates iBatch's cluster of up to 72 nodes, writes ibatch-model.csv and prints the numbers of the paper's figures.

The paper does not give the speed of a node and the start-up time of a pull. This program computes these two values from
speedups of VGG19-22K in the paper's text. The speed of a node follows from the default PS, with which 72 nodes are 26 times as
fast as one node. The start-up time follows from 30 nodes. They are 21 times as fast as one node layer by layer, and 22 times
with the default PS. All other values are the paper's. The nodes are on eight blades with 10 Gb/s each. Each node is a worker
and a server. Tensors are spread evenly over all servers.
"""

import argparse
import os

from measure import simulate, write

MODELS = ["googlenet", "inception3", "vgg19", "vgg19-22k"]
# The paper's layers are modules. The name of a module is the part of a layer's name before this character.
JOIN_BY = {"googlenet": {"join_by": "/"}, "inception3": {"join_by": "."}}
NODES = [1, 2, 4, 6, 8, 12, 18, 24, 30, 40, 50, 60, 72]
BLADES, BLADE_GBPS = 8, 10
DEFAULT_AT_72, DEFAULT_AT_30, LAYER_AT_30 = 26, 22, 21
# In figure 6 a push has this share of its full bytes: one gradient in a hundred, each with its index. The paper cites
# Aji and Heafield 2017 for these pushes, and gives no share.
SPARSE_MODELS, SPARSE = ["inception3", "vgg19"], 0.02
# The ratios of the time of pulling to the time of the forward pass. At the ratio 1 the two times are equal.
LOADS = [0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4]


def cluster(binaries, model, nodes, scale, start_up_ms, gbps=None, **more):
    """Simulates the paper's cluster, in which gradients are sent after the backward pass. Returns the simulator's report."""
    gbps = gbps or BLADE_GBPS * min(1, BLADES / nodes)
    return simulate(binaries, compute=model, nodes=nodes, gbps=gbps, time_scale=scale, start_up_ms=start_up_ms,
                    spread="even", **JOIN_BY.get(model, {}), **{"push_at_the_end": True, **more})


def of(answer, batching):
    """Returns the part of a report that is about one way to choose batches."""
    return next(each for each in answer["batchings"] if each["batching"] == batching)


def speedup(answer, batching):
    """Returns the speedup over a single node without communication."""
    return answer["nodes"] * answer["computing"] / of(answer, batching)["iteration"]


def sparse(answer, share):
    """Returns a report as if each push had this share of its full bytes. The times are exact, because
    nothing overlaps a push at the end, and a push has no start-up. The report's bound only counts
    computing."""
    backward = answer["computing"] - answer["forward"]

    def shorter(each):
        push = each["iteration"] - each["pull_and_forward"] - backward
        return {**each, "iteration": each["iteration"] - (1 - share) * push}
    return {**answer, "bound": answer["computing"], "batchings": [shorter(each) for each in answer["batchings"]]}


def solve(low, high, rises_at):
    """Returns the value between `low` and `high` from which on a condition is true."""
    for _ in range(24):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if rises_at(middle) else (middle, high)
    return high


def calibrate(binaries):
    """Returns the time scale of the trace, and the start-up time in ms. The two are fitted in turn, several times, because the
    start-up time changes the scale a little."""
    start_up_ms, scale = 0.0, 1.0
    for _ in range(4):
        scale = solve(0.1, 1000, lambda scale, ms=start_up_ms: speedup(
            cluster(binaries, "vgg19-22k", 72, scale, ms), "all") >= DEFAULT_AT_72)

        def is_slow(start_up_ms, scale=scale):
            answer = cluster(binaries, "vgg19-22k", 30, scale, start_up_ms)
            return speedup(answer, "layer") / speedup(answer, "all") <= LAYER_AT_30 / DEFAULT_AT_30
        start_up_ms = solve(0.01, 10000, is_slow)
    return scale, start_up_ms


def rows_of(figure, answer, load=""):
    """Yields a row for each way to choose batches."""
    for each in answer["batchings"]:
        yield {
            "figure": figure, "model": answer["compute"], "nodes": answer["nodes"], "load": load,
            "batching": each["batching"], "iteration_ms": f"{each['iteration']:.1f}",
            "speedup": f"{answer['nodes'] * answer['computing'] / each['iteration']:.2f}",
            "pull_ms": f"{each['pull']:.1f}", "pull_and_forward_ms": f"{each['pull_and_forward']:.1f}",
            "forward_ms": f"{answer['forward']:.1f}",
            "overlap_ms": f"{each['pull'] + answer['forward'] - each['pull_and_forward']:.1f}",
            "bound_ms": f"{answer['bound']:.1f}", "batches": len(each["batches"]),
        }


def main():
    """Calibrates the model, simulates all cases, writes the rows and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="target/figures", metavar="DIRECTORY")
    parser.add_argument("--binaries", default="target/release", metavar="DIRECTORY")
    args, _ = parser.parse_known_args()
    os.makedirs(args.out, exist_ok=True)
    scale, start_up_ms = calibrate(args.binaries)
    print(f"calibrated: times of the trace x {scale:.2f}, a start-up of {start_up_ms:.0f} ms")
    rows = []
    for model in MODELS:
        for nodes in NODES:
            answer = cluster(args.binaries, model, nodes, scale, start_up_ms)
            rows += rows_of("5", answer)
            if model in SPARSE_MODELS:
                rows += rows_of("6", sparse(answer, SPARSE))
    # The same nodes with this project's pushes: a layer's push is sent while the backward pass computes other layers.
    for nodes in NODES:
        answer = cluster(args.binaries, "vgg19-22k", nodes, scale, start_up_ms, push_at_the_end=False)
        rows += rows_of("5-pushed-as-made", answer)
    # The effect of the values that the paper does not give: the same cases with nodes that compute faster or slower.
    at_72 = cluster(args.binaries, "vgg19-22k", 72, scale, start_up_ms)
    ratio = of(at_72, "all")["pull"] / at_72["forward"]
    for load in LOADS:
        answer = cluster(args.binaries, "vgg19-22k", 72, scale * ratio / load, start_up_ms)
        rows += rows_of("load", answer, load)
    write(f"{args.out}/ibatch-model.csv", rows)
    say(rows)


def say(rows):
    """Prints the tables of docs/figures/batches.md."""
    print("\n| figure | model | nodes | load | default PS | layer | greedy | ibatch | iteration: over default, layer |"
          " pull and forward: over default, layer |")
    for first in range(0, len(rows), 4):
        four = {row["batching"]: row for row in rows[first:first + 4]}
        row = four["all"]
        if row["nodes"] not in (6, 30, 72):
            continue
        gain = lambda what, other: 100 * (float(four[other][what]) / float(four["ibatch"][what]) - 1)  # noqa: E731
        speedups = " | ".join(four[name]["speedup"] for name in ["all", "layer", "greedy", "ibatch"])
        print(f"| {row['figure']} | {row['model']} | {row['nodes']} | {row['load']} | {speedups} | "
              f"{gain('iteration_ms', 'all'):.0f}%, {gain('iteration_ms', 'layer'):.0f}% | "
              f"{gain('pull_and_forward_ms', 'all'):.0f}%, {gain('pull_and_forward_ms', 'layer'):.0f}% |")


if __name__ == "__main__":
    main()
