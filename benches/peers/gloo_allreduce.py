"""The gloo peer: a data-parallel job with PyTorch's all-reduce on CPUs instead of a hub.

Every rank is a process with a gradient, a momentum and a weights buffer of the model's size. One round
sums the gradients over all ranks, and then every rank makes the optimizer's step on its own copy of the
weights (the formula is in peer.py).

Choices that make gloo as fast as possible:
  - --piece sums the buffer in pieces that are all in flight at once, like the buckets of
    DistributedDataParallel, and makes the step of each piece when its sum is there. 6553600 elements are
    its 25 MiB.
  - gloo sums in place. To fill the gradients again between two rounds would cost a pass over memory.
    Instead the step leaves the mean in place of the sum: the sum of all ranks' means is the sum again.
  - The step runs over slices of 1 MiB, which stay in the cache from one operation to the next; torch's
    own optimizer makes several passes over memory.
  - Buffers are in huge pages, and are touched before the first round.
  - One torch thread for each rank if there are no more cores than ranks.

Prints one JSON object. Knows nothing of hubs.
"""

import os
import tempfile
import time
from datetime import timedelta

import peer
import torch
import torch.distributed as dist
import torch.multiprocessing

SLICE = 1 << 18
LIMIT = timedelta(seconds=60)


class Rank:
    """One rank's buffers, and its rounds."""

    def __init__(self, settings, elements, rank):
        self.workers = settings.workers
        names = ("gradient", "momentum", "weights")
        self.gradient, self.momentum, self.weights = (torch.from_numpy(peer.buffer(elements)) for _ in names)
        self.gradient.copy_(torch.from_numpy(peer.repeat(peer.gradient_period(rank), elements)))
        self.weights.copy_(torch.from_numpy(peer.repeat(peer.first_weight_period(), elements)))
        scratch = torch.zeros(min(SLICE, elements))
        self.pieces = []
        for piece in zip(*(whole.split(settings.piece) for whole in (self.gradient, self.momentum, self.weights))):
            slices = zip(*(part.split(SLICE) for part in piece))
            self.pieces.append((piece[0], [(*views, scratch[: len(views[0])]) for views in slices]))

    def round(self):
        works = [dist.all_reduce(gradient, async_op=True) for gradient, _ in self.pieces]
        for work, (_, slices) in zip(works, self.pieces):
            work.wait()
            for views in slices:
                self.step(*views)

    def step(self, gradient, momentum, weights, scratch):
        gradient.div_(self.workers)
        torch.add(gradient, weights, alpha=peer.WEIGHT_DECAY, out=scratch)
        momentum.mul_(peer.MOMENTUM).add_(scratch)
        weights.add_(scratch.add_(momentum, alpha=peer.MOMENTUM), alpha=-peer.LEARNING_RATE)


def run_rank(rank, settings, elements, store, threads):
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", f"file://{store}", LIMIT, settings.workers, rank)
    mine = Rank(settings, elements, rank)
    for _ in range(settings.warmup):
        mine.round()
    dist.barrier()
    times = [time.perf_counter()]
    for _ in range(settings.rounds):
        mine.round()
        times.append(time.perf_counter())

    rounds = [end - begin for begin, end in zip(times, times[1:])]
    # Rounds run back to back, so all ranks take equally long except for skew. The slowest rank counts.
    slowest = torch.tensor([times[-1] - times[0], peer.median(rounds)], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    name = f"gloo_allreduce: rank {rank}"
    peer.check(f"{name}: mean", mine.gradient.numpy(), peer.mean_period(settings.workers))
    steps = settings.warmup + settings.rounds
    peer.check(f"{name}: weights", mine.weights.numpy(), peer.weight_period(settings.workers, steps))
    dist.barrier()  # every rank's result is right
    if rank == 0:
        more = {"calls_per_round": len(mine.pieces), "threads": threads}
        peer.print_result("gloo", settings, elements, *slowest.tolist(), **more)
    dist.barrier()  # no rank exits while another still sends


def main():
    parser = peer.options("Measures gloo's all-reduce; prints one JSON object.")
    number = peer.whole(1, 2**31 - 1)
    parser.add_argument("--elements", type=number, default=25557032, metavar="N", help="f32 elements (ResNet-50)")
    parser.add_argument("--piece", type=number, default=2**31 - 1, metavar="N", help="elements in one call (all)")
    parser.add_argument("--interfaces", type=peer.whole(1, 64), default=1, metavar="N", help="how often lo (1)")
    parser.add_argument("--threads", type=peer.whole(1, 1024), metavar="N", help="of torch, for a rank")
    settings = parser.parse_args()
    threads = settings.threads or max(1, len(os.sched_getaffinity(0)) // settings.workers)
    # The host's own name may not resolve. For each interface in the list gloo adds a connection between
    # two ranks, and two threads to each rank.
    os.environ["GLOO_SOCKET_IFNAME"] = ",".join(["lo"] * settings.interfaces)
    with tempfile.TemporaryDirectory() as directory:
        arguments = (settings, settings.elements, os.path.join(directory, "store"), threads)
        torch.multiprocessing.start_processes(run_rank, arguments, settings.workers, start_method="fork")


if __name__ == "__main__":
    main()
