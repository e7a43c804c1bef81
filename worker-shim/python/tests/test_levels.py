"""Two machines with a hub each: means are over all workers, and a state is read from both hubs and given to both hubs."""

import concurrent.futures

import numpy as np
import pytest

import phub
from conftest import mesh
from phub import _state

MACHINES, WORKERS = 2, 2
NESTEROV = phub.Nesterov(0.5, 0.5)
# With chunks of 64 bytes, "a" is spread over several hubs, and "c" is at one hub.
KEYS = {"a": (30, 40), "b": (3,), "c": ()}


@pytest.mark.parametrize("workers", [1, WORKERS])
def test_a_mesh_of_two_machines_averages_over_all_workers(hubs, workers):
    def worker(number):
        machine, rank = divmod(number, workers)
        keys = {"a": (1000,), "b": (3,)}
        place = {"rank": rank, "world_size": workers, "mesh": mesh(hubs, machine)}
        with phub.Session(hubs[machine], **place, keys=keys, optimizer=phub.Average()) as session:
            means = [session.average({"a": [number] * 1000, "b": [number] * 3}) for _ in range(3)]
            return [np.unique(np.concatenate([mean["a"], mean["b"]])).tolist() for mean in means]

    with concurrent.futures.ThreadPoolExecutor(MACHINES * workers) as threads:
        for seen in threads.map(worker, range(MACHINES * workers)):
            assert seen == [[workers - 0.5]] * 3


def train(settings, state=None):
    """Trains for three rounds, with a worker on a thread for each entry of `settings`. Returns for each worker the state after
    the second round, and the weights at the end."""

    def worker(number):
        job = {"keys": KEYS, "optimizer": NESTEROV, "chunk_bytes": 64, "state": state, **settings[number]}
        with phub.Session(**job) as session:
            session.broadcast({key: np.arange(np.prod(shape)).reshape(shape) for key, shape in KEYS.items()})
            for step in range(3):
                if step == 2:
                    saved = session.state()
                    for key in KEYS:
                        np.testing.assert_array_equal(saved.tensors[key], session.weights(key))
                for key in session.keys:
                    session.gradient(key)[...] = session.next_round + number
                session.push()
                session.wait()
            return saved, {key: session.weights(key).copy() for key in KEYS}

    with concurrent.futures.ThreadPoolExecutor(len(settings)) as threads:
        return list(threads.map(worker, range(len(settings))))


def same(ours, theirs):
    (state, weights), (their_state, their_weights) = ours, theirs
    assert state.round == their_state.round and state.tensors.keys() == their_state.tensors.keys()
    for name, tensor in state.tensors.items():
        np.testing.assert_array_equal(tensor, their_state.tensors[name], err_msg=name)
    for key, values in weights.items():
        np.testing.assert_array_equal(values, their_weights[key], err_msg=key)


def test_a_state_goes_through_several_hubs_and_through_a_mesh(hub, hubs):
    flat = [{"hub": hub, "rank": rank, "world_size": 2, "job": "flat"} for rank in range(2)]
    below = [{"hub": at, "rank": 0, "world_size": 1, "job": "below", "mesh": mesh(hubs, i)} for i, at in enumerate(hubs)]
    with phub.serve(cores=1) as first, phub.serve(cores=1) as second:
        both = [{"hub": f"{first.address}, {second.address}", "rank": rank, "world_size": 2, "job": "over"} for rank in range(2)]
        expected = train(flat)
        state = expected[0][0]
        assert state.round == 3 and state.names == ["momentum_buffer"] and state.tensors["c"].shape == ()
        rest = train([{**each, "job": "flat.rest"} for each in flat], state)
        assert rest[0][0].round == 5
        for settings in both, below:
            for ours, theirs in zip(train(settings), expected):
                same(ours, theirs)
            for ours, theirs in zip(train([{**each, "job": "rest"} for each in settings], state), rest):
                same(ours, theirs)


def test_a_state_is_that_of_the_running_job_if_a_failed_job_has_the_same_name(hubs):
    machines = [{"hub": at, "rank": 0, "world_size": 1, "job": "again", "mesh": mesh(hubs, i)} for i, at in enumerate(hubs)]

    def join(place):
        return phub.Session(keys=KEYS, optimizer=NESTEROV, **place)

    with concurrent.futures.ThreadPoolExecutor(MACHINES) as threads:
        sessions = list(threads.map(join, machines))  # all have joined before one fails
    for session in sessions:
        session.close("on purpose")
    assert [state.round for state, _weights in train(machines)] == [3] * MACHINES


def test_parts_that_do_not_belong_together_are_refused(hub):
    settings = {"rank": 0, "world_size": 1, "keys": {"a": (3,)}, "optimizer": NESTEROV, "job": "job"}
    with phub.serve(cores=1) as other, phub.Session(hub, **settings) as ours, phub.Session(other, **settings) as theirs:
        for session in ours, theirs:
            session.broadcast({"a": [1, 2, 3]})
        both = [hub.address, other.address]
        with pytest.raises(phub.RefusedError, match="not whole.*48 bytes, expected 24"):
            _state.fetch(both, "job", {"a": (3,)})
        theirs.push_pull("a", [1, 1, 1])
        with pytest.raises(phub.RefusedError, match=f"before rounds 1 at {hub.address}, 2 at {other.address}"):
            _state.fetch(both, "job", {"a": (3,)})
