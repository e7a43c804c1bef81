"""MXNet's KVStore, dist_sync over ps-lite: the parameter server that the papers compare with.

A scheduler, servers and workers, all processes of this machine. The servers sum the gradients and run
MXNet's own Nesterov optimizer with its own settings; keys are the model's tensors. A worker's round is that
of MXNet's examples: push and pull every key, with the key's negative index as priority, and wait for all.

On a CPU MXNet's worker has no buffers of its own: a pull arrives in the array that was pushed, and is copied
from there to its destination. So the gradients of every round after the first are the weights of the round
before. The expected result takes that in, because to fill the gradients again would cost a pass over memory.

Knows nothing of hubs. `kvstore.sh` finds a Python for it and the module `peer` of benches/peers.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time

import peer

PR_SET_PDEATHSIG = 1


def parse():
    parser = peer.options("Measures MXNet's KVStore; prints one JSON object.")
    parser.add_argument(
        "--tensors", type=peer.lengths, default=resnet50(), metavar="N,N,...", help="elements of each key"
    )
    parser.add_argument("--servers", type=peer.whole(1, 64), default=1, metavar="N", help="server processes (1)")
    return parser.parse_args()


def resnet50():
    """The elements of ResNet-50's 161 tensors, in the order of the forward pass."""

    def convolution(inputs, outputs, side):
        return [inputs * outputs * side * side, outputs, outputs]

    tensors, inputs = convolution(3, 64, 7), 64
    for width, blocks in (64, 3), (128, 4), (256, 6), (512, 3):
        for block in range(blocks):
            tensors += convolution(inputs, width, 1) + convolution(width, width, 3) + convolution(width, 4 * width, 1)
            tensors += convolution(inputs, 4 * width, 1) if block == 0 else []
            inputs = 4 * width
    return tensors + [inputs * 1000, 1000]


def run_worker(settings):
    import mxnet as mx

    store = mx.kv.create("dist_sync")
    rank, total = store.rank, sum(settings.tensors)
    values = {
        "gradient": peer.repeat(peer.gradient_period(rank), total),
        "weights": peer.repeat(peer.first_weight_period(), total),
    }
    flat = {name: peer.buffer(total) for name in values}
    tensors = {name: [] for name in values}
    for name, value in values.items():
        flat[name][:] = value
        at = 0
        for length in settings.tensors:
            tensors[name].append(mx.nd.from_numpy(flat[name][at : at + length], zero_copy=True))
            at += length
    keys = list(range(len(settings.tensors)))
    store.init(keys, tensors["weights"])
    store.set_optimizer(
        mx.optimizer.NAG(
            learning_rate=peer.LEARNING_RATE,
            momentum=peer.MOMENTUM,
            wd=peer.WEIGHT_DECAY,
            rescale_grad=1 / settings.workers,
        )
    )

    def run_round():
        for key in keys:
            store.push(key, tensors["gradient"][key], priority=-key)
            store.pull(key, tensors["weights"][key], priority=-key)
        mx.nd.waitall()

    for _ in range(settings.warmup):
        run_round()
    store._barrier()
    times = [time.perf_counter()]
    for _ in range(settings.rounds):
        run_round()
        times.append(time.perf_counter())
    rounds = [end - begin for begin, end in zip(times, times[1:])]
    steps = settings.warmup + settings.rounds
    expected = peer.weight_period(settings.workers, steps, weights_are_gradients=True)
    peer.check(f"kvstore: worker {rank}: weights", flat["weights"], expected)
    print(json.dumps([times[-1] - times[0], peer.median(rounds)]), flush=True)
    store._barrier()  # nobody leaves while another still pulls


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def launch(settings):
    """Starts every role, and adds up what the workers say. One that fails ends all."""
    common = {
        **os.environ,
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_SERVER": str(settings.servers),
        "DMLC_NUM_WORKER": str(settings.workers),
    }
    roles = ["scheduler"] + ["server"] * settings.servers + ["worker"] * settings.workers
    processes = []
    try:
        for role in roles:
            environment = {**common, "DMLC_ROLE": role}
            stdout = subprocess.PIPE if role == "worker" else subprocess.DEVNULL
            processes.append(
                subprocess.Popen(
                    [sys.executable, *sys.argv], env=environment, stdout=stdout, preexec_fn=die_with_parent
                )
            )
        running = {process.pid: (process, role) for process, role in zip(processes, roles)}
        while running:
            pid, status = os.wait()
            process, role = running.pop(pid)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode != 0:
                sys.exit(f"kvstore: a {role} failed ({process.returncode}); its own words are above")
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                process.wait()
    said = [json.loads(process.stdout.read()) for process, role in zip(processes, roles) if role == "worker"]
    # Back-to-back rounds take every worker equally long but for its skew; the slowest one counts.
    seconds, round_seconds = (max(column) for column in zip(*said))
    more = {"calls_per_round": len(settings.tensors), "servers": settings.servers}
    peer.print_result("mxnet", settings, sum(settings.tensors), seconds, round_seconds, **more)


def main():
    settings = parse()
    role = os.environ.get("DMLC_ROLE")
    if role is None:
        launch(settings)
    elif role == "worker":
        run_worker(settings)
    else:
        import mxnet  # noqa: F401: to import it is to be what DMLC_ROLE says, until the workers leave


if __name__ == "__main__":
    main()
