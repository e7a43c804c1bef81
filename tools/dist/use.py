"""Uses an installed wheel: starts a hub by the command on the path, trains with two workers, and reads the hub's metrics."""

import subprocess
import threading

import numpy as np

import phub

hub = subprocess.Popen(["phub-server", "serve", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
address = hub.stdout.readline().split()[-1]


def work(rank, seen):
    with phub.Session(address, rank, 2, keys={"weight": (300, 100)}, optimizer=phub.Sgd(learning_rate=0.5)) as session:
        session.broadcast({"weight": np.ones((300, 100))})
        for _ in range(10):
            session.gradient("weight")[:] = rank  # the mean of the two is a half
            session.push("weight")
            session.wait("weight")
        seen.append(float(session.weights("weight").mean()))


seen = []
workers = [threading.Thread(target=work, args=(rank, seen)) for rank in range(2)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
hub.terminate()
assert seen == [-1.5, -1.5], seen
assert hub.wait(20) == 0
