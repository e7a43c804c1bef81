"""Sessions: windows without copies, rounds, Ctrl-C, threads, fork and spawn."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from conftest import in_processes

import phub

KEYS = {"weight": (3, 40), "bias": (7,)}
SGD = phub.Sgd(learning_rate=0.5)


def join(hub, rank=0, world_size=1, **settings):
    settings = {"keys": KEYS, "optimizer": SGD, "job": "job", **settings}
    return phub.Session(hub, rank, world_size, **settings)


def pair(hub, **settings):
    """Returns the sessions of two workers in this process, after a broadcast of zeros."""
    sessions = [None, None]

    def start(rank):
        sessions[rank] = join(hub, rank, 2, **settings)
        if settings.get("optimizer", SGD) != phub.Average():
            sessions[rank].broadcast()

    threads = [threading.Thread(target=start, args=(rank,)) for rank in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert all(sessions), "a worker failed, see above"
    return sessions


def test_rounds_step_the_weights_in_the_window(hub):
    first, second = pair(hub)
    for session, value in ((first, 1.0), (second, 3.0)):
        session.gradient("weight")[:] = value
        session.gradient("bias")[:] = np.arange(7) * value
        session.push("bias")
        session.push("weight")
    for session in (first, second):
        weights = session.weights("weight")
        session.wait()
        assert session.is_ready("weight")
        np.testing.assert_array_equal(weights, np.full((3, 40), -1.0, np.float32))
        np.testing.assert_array_equal(session.weights("bias"), -np.arange(7, dtype=np.float32))
        assert session.next_round == 2
    assert first.members() == [0, 1]
    # Formerly a script that broadcast new weights here continued with the old weights, without an error.
    with pytest.raises(phub.OrderError, match="a broadcast before round 2 would change nothing"):
        first.broadcast({"bias": np.zeros(7)})
    first.leave()
    second.leave()


def test_a_session_says_where_its_time_went(hub, caplog):
    first, second = pair(hub)
    started = first.times
    assert (started.rounds, started.sent) == (0, 0)

    def train():
        for _ in range(3):
            first.push()
            first.wait()

    waiter = threading.Thread(target=train)
    waiter.start()
    for round in range(3):
        while first.times.waiting < 0.05 * (round + 1):
            pass
        second.push()
        second.wait()
    waiter.join()
    times = first.times
    # The two keys may be sent in one message, which includes the padding between them.
    apart, together = 3 * 4 * (120 + 7), 3 * 4 * (128 + 7)
    assert times.rounds == 3 and apart <= times.sent <= together and apart <= times.received <= together
    assert times.waiting >= 0.15 and times.waiting > second.times.waiting
    assert times.computing + times.pushing + times.waiting == pytest.approx(times.total)
    with caplog.at_level("INFO", "phub"):
        second.close()
        first.leave()
    lines = [record.getMessage() for record in caplog.records if record.name == "phub"]
    assert [line.split(":")[0] for line in lines] == ["job job, rank 1", "job job, rank 0"]
    assert "3 rounds in " in lines[1] and "% waiting for the hub" in lines[1]
    assert first.times.rounds == 3, "also after the end"


@pytest.mark.parametrize(
    "codec",
    [phub.F16(), phub.Bf16(), phub.Qsgd(bits=4, bucket=64), phub.OneBit(), phub.TernGrad(), phub.TopK(0.1)]
    + [phub.RandomK(0.1), phub.Dgc(0.1, warmup_rounds=3)],
)
def test_compressed_workers_have_the_same_weights(hub, codec):
    sessions = pair(hub, keys={"weight": (300, 40)}, compression=codec, seed=5)
    before = sessions[0].traffic
    for _ in range(3):
        for rank, session in enumerate(sessions):
            session.gradient("weight")[:] = np.random.default_rng(rank).normal(size=(300, 40))
            session.push("weight")
        for session in sessions:
            session.wait("weight")
        np.testing.assert_array_equal(*(session.weights("weight") for session in sessions))
    assert np.abs(sessions[0].weights("weight")).max() > 0.0
    now = sessions[0].traffic
    assert 0 < now.sent - before.sent < 3 * 0.51 * 48_000
    assert 0 < now.received - before.received < 3 * 0.51 * 48_000
    assert sessions[0].not_finite == 0
    for session in sessions:
        session.leave()


def test_a_compression_that_is_none_is_told_why(hub):
    with pytest.raises(phub.SettingsError, match="bits"):
        join(hub, compression=phub.Qsgd(bits=9))


@pytest.mark.parametrize(("of_hub", "of_workers"), [(True, None), (False, True), (False, None)])
def test_workers_by_tcp_have_equal_weights_and_checksums_if_somebody_asks(of_hub, of_workers):
    with phub.serve(cores=1, checksum=of_hub) as hub:
        sessions = pair(hub, transport="tcp", checksum=of_workers, compare_every=2)
        for _ in range(4):
            for rank, session in enumerate(sessions):
                session.gradient("weight")[:] = rank
                session.gradient("bias")[:] = 1.0
                session.push("weight")
                session.push("bias")
            for session in sessions:
                session.wait(*session.keys)
        for session in sessions:
            np.testing.assert_array_equal(session.weights("weight"), -1.0)
            np.testing.assert_array_equal(session.weights("bias"), -2.0)
            session.leave()


def test_the_hub_may_answer_before_the_push(hub):
    keys = {"weight": (300, 100)}
    sessions = pair(hub, keys=keys, optimizer=phub.Sgd(0.5), transport="tcp", answers_ahead=True, compare_every=1)
    expected = np.zeros((300, 100), np.float32)
    for number in range(4):
        for rank, session in enumerate(sessions):
            session.gradient("weight")[:] = 1 + 2 * rank
            session.send_ahead("weight")
        if number % 2 == 0:  # the test cannot wait for the early answer, so this write is before or after it
            sessions[0].gradient("weight")[:] = 5
            sessions[0].push("weight", rewritten=True)
        else:
            sessions[0].push("weight")
        sessions[1].push("weight")
        expected -= 0.5 * (4 if number % 2 == 0 else 2)
        for session in sessions:
            session.wait()
            np.testing.assert_array_equal(session.weights("weight"), expected)
    for session in sessions:
        session.leave()


def test_a_job_on_two_hubs():
    with phub.serve(cores=1) as first, phub.serve(cores=1) as second:
        with join(f"{first.address},{second.address}", keys={"large": (50_000,), "small": (3,)}) as session:
            assert len(session.ways) == 2
            session.broadcast({"large": np.full(50_000, 2.0)})
            np.testing.assert_array_equal(session.push_pull("large", np.ones(50_000)), 1.5)


LAYERS = [["first", "also first"], ["second"], ["third"]]


def pulling(hub, pull, **settings):
    keys = {key: (50,) for layer in LAYERS for key in layer}
    settings = {"schedule": "kvstore", "pull": pull, "pull_layers": LAYERS, **settings}
    return join(hub, keys=keys, **settings)


@pytest.mark.parametrize("pull", ["ibatch", "greedy", "layer", "all"])
def test_weights_are_pulled_in_batches(hub, pull):
    with pulling(hub, pull) as session:
        session.broadcast({key: np.zeros(50) for key in session.keys})
        needs_profile = pull in ("ibatch", "greedy")
        for number in range(9):
            if needs_profile and number <= 6:
                assert session.pull_plan is None, "three rounds layer by layer, and three at once"
            for key in reversed(session.keys):
                session.gradient(key)[:] = 1.0
                session.push(key)
            for layer in LAYERS:
                session.wait(*layer)
                assert all((session.weights(key) == -0.5 * (number + 1)).all() for key in layer)
        plan = session.pull_plan
        assert plan.batching == pull and plan.profiles == (1 if needs_profile else 0)
        assert [key for batch in plan.batches for key in batch] == [key for layer in LAYERS for key in layer]
        assert {"layer": 3, "all": 1}.get(pull, len(plan.batches)) == len(plan.batches)
        assert (plan.predicted is None) == (plan.start_up is None) == (not needs_profile)
        assert plan.rounds > 0 and plan.measured > 0.0
        assert str(plan).startswith(f"{pull}, {len(plan.batches)} batches of ")


def test_waiting_for_all_is_no_forward_pass(hub):
    with pulling(hub, "ibatch") as session:
        session.broadcast()
        for wait in (session.wait, session.settle):
            for _ in range(10):
                session.push()
                wait()
        assert session.pull_plan is None


def test_other_layers_can_be_learnt(hub):
    with pulling(hub, "layer", pull_layers=None) as session:
        assert session.pull_plan.batches == [[key] for key in session.keys]
        session.broadcast()
        session.push("also first")  # in flight until the layer before it has arrived
        with pytest.raises(phub.OrderError, match="in flight.*pulling by other layers"):
            session.pull_by(LAYERS)
        session.push("first", "second", "third")
        session.wait()
        session.pull_by(LAYERS[::-1])
        assert session.pull_plan.batches == LAYERS[::-1]
        session.push()
        session.wait()


def test_pulls_that_cannot_be(hub):
    for settings, words in [
        ({"pull": "some"}, "expected ibatch, greedy, layer or all"),
        ({"pull": None}, "pull_layers without pull"),
        ({"pull": "all", "schedule": "p3"}, "pull all with schedule p3: only kvstore"),
        ({"pull": "all", "pull_layers": LAYERS[1:]}, "key 0 is in 0 layers"),
        ({"pull": "all", "pull_layers": [["fourth"]]}, "'fourth' is not one of this job's 4"),
        ({"pull": "all", "pull_layers": ["fourth"]}, r"a layer is 'fourth': expected a list of names, such as \['fourth'\]"),
    ]:
        with pytest.raises(phub.SettingsError, match=words):
            pulling(hub, **settings)
    session = pulling(hub, "all")
    session.broadcast()
    session.push("first")
    with pytest.raises(phub.OrderError, match="push every key of a round"):
        session.wait("first")
    session.push("also first", "second", "third")
    session.wait("first")
    session.leave()
    with join(hub, job="other") as session, pytest.raises(phub.SettingsError, match="does not pull layers in batches"):
        session.pull_by([["weight"], ["bias"]])


def test_windows_are_shown_without_copies_and_outlive_the_session(hub):
    session = join(hub)
    session.broadcast({"weight": np.full((3, 40), 5.0)})
    weights, gradient = session.weights("weight"), session.gradient("weight")
    assert session.weights("weight") is weights
    assert weights.dtype == np.float32 and weights.shape == (3, 40)
    assert not weights.flags.writeable and not weights.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        weights[0, 0] = 1.0
    np.testing.assert_array_equal(weights, 5.0)
    gradient[:] = 4.0
    session.push()
    session.wait()
    np.testing.assert_array_equal(weights, 3.0)  # the same array has the new values
    session.leave()
    del session
    gc.collect()
    np.testing.assert_array_equal(weights, 3.0)
    gradient[:] = 6.0
    np.testing.assert_array_equal(gradient, 6.0)


def test_private_weights_can_be_written(hub):
    with join(hub, weights="private") as session:
        session.broadcast({"bias": np.ones(7)})
        session.weights("bias")[0] = 100.0
        session.push_pull("bias", np.ones(7))
        np.testing.assert_array_equal(session.weights("bias"), 0.5)


def test_keys_of_half_precision_and_multipliers(hub):
    keys = {
        "half": phub.Key((4,), "f16"),
        "brain": phub.Key((4,), "bf16"),
        "array": np.zeros(4, np.float16),
        "twice": phub.Key((4,), lr_mult=2.0),
    }
    with join(hub, keys=keys) as session:
        session.broadcast()
        assert session.gradient("half").dtype == session.gradient("array").dtype == np.float16
        session.gradient("brain")[:] = 0x3F80  # 1.0 as bf16: the upper half of the bits of its f32
        session.push("brain")
        session.wait("brain")
        np.testing.assert_array_equal(session.weights("brain"), 0xBF00)  # -0.5
        np.testing.assert_array_equal(session.push_pull("half", np.ones(4)), np.float16(-0.5))
        np.testing.assert_array_equal(session.push_pull("twice", np.ones(4)), -1.0)


def test_average_is_an_all_reduce(hub):
    sessions = pair(hub, optimizer=phub.Average())
    means = [None, None]

    def reduce(rank):
        means[rank] = sessions[rank].average({"bias": np.full(7, 2.0 * rank), "weight": np.ones((3, 40))})

    threads = [threading.Thread(target=reduce, args=(rank,)) for rank in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for mean in means:
        np.testing.assert_array_equal(mean["bias"], 1.0)
        np.testing.assert_array_equal(mean["weight"], 1.0)


def test_the_mean_of_no_keys_pushes_none(hub):
    with phub.Session(hub, 0, 1, keys={"only": (3,)}, optimizer=phub.Average(), job="none") as session:
        session.average({"only": np.ones(3)})
        sent, round_ = session.traffic.sent, session.next_round
        assert session.average({}) == {}
        assert (session.traffic.sent, session.next_round) == (sent, round_)


def test_a_round_without_gradients_keeps_the_norm_that_clips_the_next_step(hub):
    steps, before = [], 0.0
    optimizer = phub.Sgd(1.0)
    with phub.Session(hub, 0, 1, keys={"only": (4,)}, optimizer=optimizer, clip_norm_last=1.0, job="kept") as session:
        session.broadcast({"only": np.zeros(4)})
        for number in range(6):
            if number in (2, 4):
                session.gradient("only")[:] = session.weights("only")
                session.push_weights("only")
                session.wait()
            if number in (3, 4):
                session.push_nothing("only")
                session.wait()
            after = float(session.push_pull("only", np.full(4, 50.0))[0])  # of norm 100
            steps.append(before - after)
            before = after
    assert steps == pytest.approx([50.0, *[0.5] * 5], abs=1e-4)


def test_others_run_while_one_waits(hub):
    # Both workers are in this process. The second worker needs the GIL to push while the first worker waits.
    first, second = pair(hub)
    first.push()
    waited = threading.Event()
    waiter = threading.Thread(target=lambda: (first.wait(), waited.set()))
    waiter.start()
    assert not waited.is_set()
    second.push()
    second.wait()
    waiter.join()
    assert waited.is_set()


def test_ctrl_c_ends_a_wait_and_the_session_lives_on(hub):
    first, second = pair(hub)
    first.push()
    pressed = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    pressed.start()
    with pytest.raises(KeyboardInterrupt):
        first.wait()
    pressed.join()
    second.push()
    first.wait()
    second.wait()


def test_a_push_that_slim_dp_cannot_use_is_refused_at_once(hub):
    session = join(hub, compression=phub.SlimDP(0.5, 0.25, q=4))
    session.broadcast()
    first, *others = KEYS
    session.push(first)
    session.wait(first)
    with pytest.raises(phub.OrderError, match="push every key once a round"):
        session.push(first)
    session.push(*others, first)
    session.wait()
    session.leave()


def test_ctrl_c_ends_a_join(hub):
    pressed = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    pressed.start()
    with pytest.raises(KeyboardInterrupt):
        join(hub, 0, 2)
    pressed.join()
    pair(hub)  # the rank is free


def test_a_child_of_fork_is_told_and_the_parent_goes_on(hub):
    session = join(hub)
    session.broadcast({"bias": np.ones(7)})
    for ends_by in ("deleting it", "leaving it alone"):
        child = os.fork()
        if child == 0:
            try:
                for call in (session.push, session.wait, session.leave, session.members):
                    try:
                        call()
                    except phub.ForkError as error:
                        assert str(os.getppid()) in str(error) and "fork copies no threads" in str(error)
                    else:
                        os._exit(1)
                assert session.weights("bias")[0] == 1.0
                if ends_by == "deleting it":
                    session.close()
                    del session
                    gc.collect()
                os._exit(0)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, ends_by
        session.gradient("bias")[:] = 0.0
        session.push()
        session.wait()
    session.leave()


def _rounds(rank, hub, world_size):
    with join(hub, rank, world_size, job="spawned") as session:
        session.broadcast({"bias": np.ones(7)})
        for _ in range(3):
            session.gradient("bias")[:] = rank
            session.push()
            session.wait()
        return session.weights("bias").tolist()


@pytest.mark.parametrize("world_size", [1, 4])
def test_workers_under_spawn(hub, world_size):
    spawns = multiprocessing.get_context("spawn")
    results = in_processes(world_size, _rounds, hub.address, world_size, context=spawns)
    mean = sum(range(world_size)) / world_size
    assert results == [[1.0 - 3 * 0.5 * mean] * 7] * world_size


def test_a_script_that_ends_without_a_word_leaves_in_good_order(hub):
    script = f"""
import phub
session = phub.Session({hub.address!r}, 1, 2, keys={KEYS!r}, optimizer=phub.{SGD!r}, job="job")
session.broadcast()
"""
    ends = subprocess.Popen([sys.executable, "-c", script])
    session = join(hub, 0, 2)
    session.broadcast()
    assert ends.wait() == 0
    session.push()
    with pytest.raises(phub.PeerLeftError, match="worker 1 left before round 1"):
        session.wait()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_what_is_pushed_may_be_nothing_or_weights_or_have_left_ahead(hub, transport):
    keys = {"weight": (300, 100), "bias": (7,), "idle": (40,)}
    sessions = pair(hub, keys=keys, optimizer=phub.Momentum(0.5, momentum=0.5), transport=transport)
    model = {key: [np.zeros(shape, np.float32), np.zeros(shape, np.float32)] for key, shape in keys.items()}

    def step(key, gradient):
        weights, velocity = model[key]
        velocity[:] = 0.5 * velocity + gradient
        weights -= 0.5 * velocity

    def check(*left_alone):
        for session in sessions:
            session.wait()
            for key, (weights, _) in model.items():
                np.testing.assert_array_equal(session.weights(key), weights)
                assert session.was_left_alone(key) == (key in left_alone), key

    before = [session.traffic.sent for session in sessions]
    for rank, session in enumerate(sessions):
        session.gradient("weight")[:] = 1 + 2 * rank
        session.send_ahead("weight", "bias", "idle")
        if rank == 0:
            session.gradient("weight")[:] = 5
        session.push("weight", rewritten=rank == 0)
        session.push_nothing("idle")
        if rank == 0:
            session.push_nothing("bias")
        else:
            session.gradient("bias")[:] = 4
            session.push("bias")
        with pytest.raises(phub.OrderError, match="before sending its gradient ahead"):
            session.send_ahead("idle")
    step("weight", 4)
    step("bias", 2)
    check("idle")
    sent = [session.traffic.sent - before for session, before in zip(sessions, before)]
    assert sent[1] == 4 * (300 * 100 + 7), "its bytes were sent once"
    assert 4 * 300 * 100 <= sent[0] <= (1 if transport == "shm" else 2) * 4 * 300 * 100

    for rank, session in enumerate(sessions):
        session.gradient("bias")[:] = 50 + rank
        session.push_weights("bias")
        session.push_nothing("weight")
        session.gradient("idle")[:] = 1
        session.push("idle")
    model["bias"][0][:] = 50
    step("idle", 1)
    check("weight")

    for session in sessions:
        for key in keys:
            session.gradient(key)[:] = 0
        session.push()
    for key in keys:
        step(key, 0)
    check()
    for session in sessions:
        session.leave()


def test_weights_go_with_weights_alone(hub):
    first, second = pair(hub)
    first.push_weights("bias")
    second.push("bias")
    for session in (first, second):
        with pytest.raises(phub.JobFailedError, match=r'key "bias" got in round 1 weights from rank 0; a gradient from rank 1'):
            session.wait()


def test_a_job_that_takes_gradients_only_says_so(hub):
    session = join(hub, consistency="asp")
    session.broadcast()
    for push in (session.push_nothing, session.push_weights):
        with pytest.raises(phub.OrderError, match=r'key "bias" cannot be pushed as .*: workers that step alone'):
            push("bias")
    session.send_ahead("bias")
    session.push()
    session.wait()
    assert not session.was_left_alone("bias")
    session.leave()
