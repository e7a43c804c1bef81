"""The cost of many small parameters in a step of the calling thread, with the hub and with DistributedDataParallel over gloo
in the same run.

    torchrun --standalone --nproc_per_node 2 worker-shim/python/benches/parameters.py [--layers 500] [--legs 8]

The model has layers of 8 x 8, so that next to nothing is computed. For each part of the step, the result is the
processor time of the calling thread, minus the same time for the model without communication. Legs alternate, so that a change
of the machine's load affects all of them.
"""

import argparse
import json
import statistics
import time

import torch

import phub.torch

PARTS = ("forward", "backward", "step")


class NoSteps(torch.optim.SGD):
    """An optimizer that makes no steps."""

    def step(self, closure=None):
        pass


def steps(model, optimizer, inputs, count):
    """Returns seconds of the thread's processor time that each part of a step takes."""
    took = dict.fromkeys(PARTS, 0.0)
    for _ in range(count):
        begun = time.thread_time()
        optimizer.zero_grad()
        loss = model(inputs).sum()
        computed = time.thread_time()
        loss.backward()
        made = time.thread_time()
        optimizer.step()
        ended = time.thread_time()
        for part, seconds in zip(PARTS, (computed - begun, made - computed, ended - made)):
            took[part] += seconds / count
    return took


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=500)
    parser.add_argument("--legs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5, help="of a leg")
    parser.add_argument("--only", default=None, help="one system alone, for a profiler")
    parser.add_argument("--transport", default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    me = phub.worker()
    inputs = torch.randn(1, 8)

    def make():
        torch.manual_seed(1)
        return torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(arguments.layers)))

    torch.distributed.init_process_group("gloo")
    models = {name: make() for name in ("alone", "gloo", "hub")}
    optimizers = {name: torch.optim.SGD(models[name].parameters(), lr=1e-9, momentum=0.9) for name in models}
    optimizers["alone"] = NoSteps(models["alone"].parameters(), lr=1e-9)
    models["gloo"] = torch.nn.parallel.DistributedDataParallel(models["gloo"])
    optimizers["hub"] = phub.torch.DistributedOptimizer(optimizers["hub"], models["hub"], transport=arguments.transport)
    systems = [name for name in models if arguments.only in (None, name)]
    found = {name: [] for name in systems}
    for leg in range(arguments.legs + 1):
        for name in systems:
            torch.distributed.barrier()
            took = steps(models[name], optimizers[name], inputs, arguments.steps)
            if leg > 0:  # in the first leg, buckets and coverage are learnt
                found[name].append(took)
    if me.rank == 0:
        medians = {name: {part: statistics.median(leg[part] for leg in legs) for part in PARTS} for name, legs in found.items()}
        report = {"torch": torch.__version__, "workers": me.world_size, "layers": arguments.layers}
        for name, parts in medians.items():
            report[name] = {part: round(1e3 * seconds, 2) for part, seconds in parts.items()}
        if arguments.only is None:
            alone = sum(medians["alone"].values())
            hooks = {name: medians[name]["backward"] - medians["alone"]["backward"] for name in ("gloo", "hub")}
            whole = {name: sum(medians[name].values()) - alone for name in ("gloo", "hub")}
            report["ms_of_hooks"] = {name: round(1e3 * seconds, 2) for name, seconds in hooks.items()}
            report["ms_more_than_alone"] = {name: round(1e3 * seconds, 2) for name, seconds in whole.items()}
            report["ratio_of_hooks"] = round(hooks["hub"] / hooks["gloo"], 2)
            report["ratio"] = round(whole["hub"] / whole["gloo"], 2)
        print(json.dumps(report, indent=1))
    torch.distributed.barrier()


if __name__ == "__main__":
    main()
