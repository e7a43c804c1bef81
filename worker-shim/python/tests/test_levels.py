"""Two machines with a hub each: the mean is that of all workers."""

import concurrent.futures

import numpy as np

import phub

MACHINES, WORKERS = 2, 2


def test_a_mesh_of_two_machines_averages_over_all_workers():
    hubs = [phub.serve(cores=1) for _ in range(MACHINES)]

    def worker(number):
        machine, rank = divmod(number, WORKERS)
        keys = {"a": (1000,), "b": (3,)}
        mesh = f"{machine}/{MACHINES}@{hubs[0].address}"
        with phub.Session(hubs[machine], rank, WORKERS, mesh=mesh, keys=keys, optimizer=phub.Average()) as session:
            means = [session.average({"a": [number] * 1000, "b": [number] * 3}) for _ in range(3)]
            return [np.unique(np.concatenate([mean["a"], mean["b"]])).tolist() for mean in means]

    with concurrent.futures.ThreadPoolExecutor(MACHINES * WORKERS) as threads:
        for seen in threads.map(worker, range(MACHINES * WORKERS)):
            assert seen == [[1.5]] * 3
    for hub in hubs:
        hub.stop()
