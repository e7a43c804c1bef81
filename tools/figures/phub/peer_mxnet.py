"""MXNet's KVStore on machines made of namespaces: a server and a worker on each machine, and the scheduler on the first. When it
is run as a program, this file is a worker, which imitates a GPU layer by layer, as `phub-probe --compute` does."""

import argparse
import contextlib
import json
import subprocess
import time

PORT = 9100
# MXNet splits a tensor with more values than this over all servers.
BIG_ARRAY = 1_000_000
# If a wait for weights is not longer than this time, in seconds, the weights had already arrived.
WAS_THERE_S = 0.0005


@contextlib.contextmanager
def started(machines, python, layers, time_scale, iterations, shrink):
    """Yields the scheduler with the servers, and the workers. At the end all these processes are killed."""
    count, processes = machines.count, []

    def start(machine, role, **more):
        settings = {
            "DMLC_ROLE": role, "DMLC_PS_ROOT_URI": machines.address(0), "DMLC_PS_ROOT_PORT": PORT,
            "DMLC_NODE_HOST": machines.address(machine), "DMLC_INTERFACE": "eth0",
            "DMLC_NUM_SERVER": count, "DMLC_NUM_WORKER": count,
            "MXNET_KVSTORE_BIGARRAY_BOUND": BIG_ARRAY // shrink, "OMP_NUM_THREADS": 1,
        }
        command = [python, "-B", __file__, layers, str(time_scale), str(iterations)]
        command = ["env", *(f"{name}={value}" for name, value in settings.items()), *command]
        processes.append(subprocess.Popen(machines.inside(machine, command), stdin=subprocess.DEVNULL, **more))
        return processes[-1]

    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        others = [start(0, "scheduler", **quiet)] + [start(machine, "server", **quiet) for machine in range(count)]
        workers = [start(machine, "worker", stdout=subprocess.PIPE, stderr=subprocess.PIPE) for machine in range(count)]
        yield others, workers
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.communicate()


class Gpu:
    """The clock of an imitated GPU. A layer begins when the previous layer has ended and its weights have arrived."""

    def __init__(self):
        self.free_at = time.perf_counter()
        self.stalled = self.computed = 0.0

    def wait_for(self, arrays):
        """Waits for weights. If they have already arrived, the GPU does not stall, although this thread may wake up late."""
        asked = time.perf_counter()
        for array in arrays:
            array.wait_to_read()
        ready = time.perf_counter()
        if ready - asked > WAS_THERE_S and ready > self.free_at:
            self.stalled += ready - self.free_at
            self.free_at = ready

    def compute(self, seconds):
        """Waits until a layer has been computed."""
        self.computed += seconds
        self.free_at += seconds
        time.sleep(max(0.0, self.free_at - time.perf_counter()))


def train(store, nd, optimizer, layers, time_scale, iterations):
    """Runs the iterations of a worker. Returns the mean times of an iteration."""
    keys, arrays = 0, []
    for layer in layers:
        layer["keys"] = list(range(keys, keys + len(layer["bytes"])))
        keys += len(layer["bytes"])
        arrays += [(nd.zeros((size // 4,)), nd.zeros((size // 4,))) for size in layer["bytes"]]
    store.init(list(range(keys)), [weights for _, weights in arrays])
    store.set_optimizer(optimizer)
    gpu, ends = Gpu(), []
    for _ in range(iterations + 1):
        for layer in layers:
            gpu.wait_for(arrays[key][1] for key in layer["keys"])
            gpu.compute(layer["forward_ms"] * time_scale / 1000)
        for layer in reversed(layers):
            gpu.compute(layer["backward_ms"] * time_scale / 1000)
            for key in layer["keys"]:
                store.push(key, arrays[key][0], priority=-key)
                store.pull(key, arrays[key][1], priority=-key)
        ends.append((gpu.free_at, gpu.stalled, gpu.computed))
    nd.waitall()
    store._barrier()  # no worker leaves while another one still pulls
    mean = [1000 * (last - first) / iterations for first, last in zip(ends[0], ends[-1])]
    return {**dict(zip(("iteration_ms", "stalled_ms", "compute_ms"), mean)), "seconds": mean[0] * iterations / 1000}


def main():
    """Runs a worker. In a server or the scheduler, `import mxnet` returns only when all workers have left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("layers")
    parser.add_argument("time_scale", type=float)
    parser.add_argument("iterations", type=int)
    args = parser.parse_args()
    import mxnet  # noqa: PLC0415 (the import makes the process what DMLC_ROLE says)

    with open(args.layers) as file:
        layers = json.load(file)
    store = mxnet.kv.create("dist_sync")
    nesterov = mxnet.optimizer.NAG(learning_rate=0.1, momentum=0.9, wd=1e-4, rescale_grad=1 / store.num_workers)
    print(json.dumps(train(store, mxnet.nd, nesterov, layers, args.time_scale, args.iterations)), flush=True)


if __name__ == "__main__":
    main()
