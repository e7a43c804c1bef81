"""Measures a round that clips by the norm, with the hub and with gloo in the same run.

    torchrun --standalone --nproc_per_node 4 worker-shim/python/benches/clip.py [--parameters 25557032] [--legs 9]

With the hub, a round is push, sum, norm, step and pull. The gradients are already in the memory from which they are sent. With
gloo, a round is one all-reduce of a flat tensor, `clip_grad_norm_` and torch's fused step on each worker. No model is computed.
Rounds with the hub and with gloo alternate in legs, so that a change of the machine's load affects both. The slowest worker's
time counts.
"""

import argparse
import json
import statistics
import time

import torch

import phub

MOST = 1.0
RATE, MOMENTUM, DECAY = 0.1, 0.9, 1e-4
LARGEST = 4_000_000


def with_hub(parameters, value):
    """Joins a job, and returns a function that makes a round with the hub."""
    starts = range(0, parameters, LARGEST)
    keys = {f"key{start}": (min(LARGEST, parameters - start),) for start in starts}
    optimizer = phub.Nesterov(learning_rate=RATE, momentum=MOMENTUM, weight_decay=DECAY)
    session = phub.Session(keys=keys, optimizer=optimizer, clip_norm=MOST)
    session.broadcast({key: torch.zeros(shape).numpy() for key, shape in keys.items()})
    for key in keys:
        session.gradient(key)[:] = value

    def a_round():
        session.push(*keys)
        session.wait(*keys)

    return session, a_round


def with_gloo(parameters, value):
    """Returns a function that makes a round with gloo."""
    parameter = torch.nn.Parameter(torch.zeros(parameters))
    parameter.grad = torch.full((parameters,), value)
    optimizer = torch.optim.SGD([parameter], lr=RATE, momentum=MOMENTUM, weight_decay=DECAY, nesterov=True, fused=True)
    workers = torch.distributed.get_world_size()

    def a_round():
        torch.distributed.all_reduce(parameter.grad)
        parameter.grad.div_(workers)
        torch.nn.utils.clip_grad_norm_([parameter], MOST)
        optimizer.step()

    return a_round


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=25_557_032, help="parameters of the model (%(default)s: ResNet-50)")
    parser.add_argument("--legs", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of a leg")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank, workers = torch.distributed.get_rank(), torch.distributed.get_world_size()
    session, of_hub = with_hub(arguments.parameters, 1e-3 * (rank + 1))
    rounds = {"hub": of_hub, "gloo": with_gloo(arguments.parameters, 1e-3 * (rank + 1))}
    found = {name: [] for name in rounds}
    for leg in range(arguments.legs + 1):
        for name, a_round in rounds.items():
            torch.distributed.barrier()
            begun = time.perf_counter()
            for _ in range(arguments.rounds):
                a_round()
            took = torch.tensor([(time.perf_counter() - begun) / arguments.rounds])
            torch.distributed.all_reduce(took, torch.distributed.ReduceOp.MAX)
            if leg > 0:  # the first touches memory
                found[name].append(took.item())
    session.leave()
    if rank == 0:
        times = [gloo / hub for gloo, hub in zip(found["gloo"], found["hub"])]
        report = {"torch": torch.__version__, "workers": workers, "parameters": arguments.parameters}
        report["ms_a_round"] = {name: round(1e3 * statistics.median(legs), 1) for name, legs in found.items()}
        report["times_as_fast"] = [round(each, 2) for each in (statistics.median(times), min(times), max(times))]
        print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
