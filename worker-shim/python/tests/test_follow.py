"""Readers of a job's weights: `phub.subscribe`, from hubs and from directories, while a job trains."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import phub

SHAPES = {"a": (100,), "b": (30, 50)}
# The limit of every wait, so that an error in the code does not make a test hang.
LIMIT_S = 120


def join(hub, job="job", optimizer=None, **settings):
    """Returns the worker of a job whose weights are `1 - steps / 2`, so that the weights of a version show its round."""
    session = phub.Session(hub, 0, 1, keys=SHAPES, optimizer=optimizer or phub.Sgd(0.5), job=job, **settings)
    session.broadcast({key: np.ones(shape, np.float32) for key, shape in SHAPES.items()})
    return session


def step(session, count=1):
    for _ in range(count):
        for key in session.keys:
            session.gradient(key)[...] = 1
            session.push(key)
        for key in session.keys:
            session.wait(key)


def check(version, names=("a", "b")):
    """Asserts that a version has all weights of its round."""
    assert sorted(version) == sorted(names)
    for values in version.values():
        np.testing.assert_array_equal(values, 1 - (version.round - 1) / 2)


def saved_bytes(hub, token):
    """Returns the number of bytes that the hub has not sent to readers, because differences took their place."""
    request = urllib.request.Request(f"http://{hub.address}/metrics", headers={"authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("phub_job_read_saved_bytes_total"))


def test_a_reader_gets_differences_if_it_asks_for_them():
    token = "a-secret-of-a-test-of-readers"
    with phub.serve(cores=1, idle="sleep", token=token) as hub, join(hub) as session:
        for fetch_deltas in (False, True):
            settings = {"every": 0, "timeout": LIMIT_S, "token": token, "fetch_deltas": fetch_deltas}
            with phub.subscribe(hub.address, "job", **settings) as versions:
                for _ in range(3):
                    step(session)
                    check(next(versions))
            read = phub._phub.token("read", "*", token)
            assert (saved_bytes(hub, read) > 0) == fetch_deltas
    with pytest.raises(phub.SettingsError, match="or fetch_deltas with it"):
        phub.subscribe(directory="/somewhere", fetch_deltas=True)
    with pytest.raises(phub.SettingsError, match="fetch_deltas is 'no': expected True or False"):
        phub.subscribe("localhost", "job", fetch_deltas="no")


@contextlib.contextmanager
def stepping(session):
    """Makes steps on a thread until the end of the context. Yields a list whose only element is the number of steps so far."""
    count, ends = [0], threading.Event()

    def run():
        while not ends.is_set():
            step(session)
            count[0] += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield count
    finally:
        ends.set()
        thread.join()


def test_each_version_has_all_weights_of_one_round_and_the_last_ends_with_the_job(hub):
    session = join(hub, optimizer=phub.Sgd(0.5))
    versions = phub.subscribe(hub.address, "job", every=0, timeout=LIMIT_S)
    rounds = []
    with stepping(session):
        for version in versions:
            check(version)
            rounds.append(version.round)
            if len(rounds) == 20:
                break
    assert rounds == sorted(set(rounds)), "each is newer than the one before"
    step(session)
    last = next(versions)
    assert last.round == session.next_round and (last.id, last.skipped, last.job) == (None, 0, "job")
    assert not last["a"].flags.writeable
    with pytest.raises(ValueError):
        last["a"][0] = 0
    session.leave()
    assert list(versions) == []
    check(last)


def test_the_weights_before_each_kth_round_come_and_those_that_were_missed_are_counted(hub):
    session = join(hub)
    step(session)
    versions = phub.subscribe(hub.address, "job", each=20, timeout=LIMIT_S)
    last = None
    with stepping(session):
        for version in versions:
            check(version)
            assert version.round % 20 == 0
            assert version.skipped == (0 if last is None else (version.round - last) // 20 - 1)
            last = version.round
            if last > 100:
                break
    session.leave()


def test_a_job_over_several_hubs_is_followed_with_all_weights_of_one_round(hubs):
    addresses = ",".join(hub.address for hub in hubs)
    session = join(addresses, chunk_bytes=1024)
    versions = phub.subscribe(addresses, "job", every=0, timeout=LIMIT_S)
    rounds = []
    with stepping(session):
        for version in versions:
            check(version)
            assert {name: values.shape for name, values in version.items()} == SHAPES
            rounds.append(version.round)
            if len(rounds) == 10:
                break
    assert rounds == sorted(set(rounds)), "each is newer than the one before"
    with pytest.raises(phub.SettingsError, match="number of hubs given .* is 1; expected all 2 hubs"):
        next(phub.subscribe(hubs[0].address, "job", timeout=LIMIT_S))
    session.leave()
    assert list(versions) == []


def test_types_names_and_averages_are_those_that_are_asked_for(hub):
    with join(hub, ema=0.5) as session:
        step(session)
        names = {"b": "decoder.weight"}
        halves = next(phub.subscribe(hub.address, "job", dtype="f16", names=names, timeout=LIMIT_S))
        check(halves, ["a", "decoder.weight"])
        assert halves["decoder.weight"].dtype == np.float16 and halves["decoder.weight"].shape == (30, 50)
        mixed = {"b": {"name": "decoder.weight", "dtype": "bf16"}}
        version = next(phub.subscribe(hub.address, "job", names=mixed, timeout=LIMIT_S))
        assert (version.dtype("a"), version.dtype("decoder.weight")) == ("f32", "bf16")
        assert np.all(version["decoder.weight"] == 0x3F00), "0.5"
        coarse = next(phub.subscribe(hub.address, "job", dtype="bf16", timeout=LIMIT_S))
        assert coarse.dtype("a") == "bf16" and np.all(coarse["a"] == 0x3F00), "0.5"
        averages = next(phub.subscribe(hub.address, "job", ema=True, timeout=LIMIT_S))
        for key in SHAPES:
            np.testing.assert_array_equal(averages[key], session.ema()[key])
            assert not np.array_equal(averages[key], session.weights(key))
        for wrong, said in (
            ({"dtype": "f64"}, "dtype.*f64.*f32"),
            ({"names": {"c": "x"}, "timeout": LIMIT_S}, "no key.*c"),
            ({"names": {"b": {"name": "x", "dtype": "int8"}}}, "key.*b.*as tensor.*x.*dtype.*int8.*expected"),
            ({"each": 0}, "each 0.*expected a number from 1"),
            ({"each": 2, "every": 1.0}, "both are given"),
            ({"every": -1.0}, "every -1.*expected seconds"),
            ({"directory": "/nowhere", "timeout": 1}, "a directory has"),
        ):
            with pytest.raises(phub.SettingsError, match=said):
                next(phub.subscribe(hub.address, "job", **wrong))
    with join(hub, "plain") as session, pytest.raises(phub.RefusedError, match="keeps no averages"):
        next(phub.subscribe(hub.address, "plain", ema=True, timeout=LIMIT_S))


def test_keys_are_cut_and_joined_along_their_first_dimension(hub):
    shapes = {"qkv": (12, 4), "expert.0": (3, 5), "expert.1": (3, 5), "a": (7,)}
    weights = {key: np.random.default_rng(1).standard_normal(shape, np.float32) for key, shape in shapes.items()}
    parts = {"q": (8, 4), "k": (2, 4), "v": (2, 4)}
    names = {
        "qkv": {"split": [{"name": name, "shape": shape} for name, shape in parts.items()]},
        "experts": {"join": ["expert.0", "expert.1"], "shape": [2, 3, 5]},
    }
    names["qkv"]["split"][1]["dtype"] = "f16"
    with phub.Session(hub.address, 0, 1, keys=shapes, optimizer=phub.Sgd(0.5), job="job") as session:
        session.broadcast(weights)
        step(session)
        version = next(phub.subscribe(hub.address, "job", names=names, timeout=LIMIT_S))
        now = {key: session.weights(key) for key in shapes}
        expected = dict(zip(parts, np.split(now["qkv"], [8, 10])))
        expected["k"] = expected["k"].astype(np.float16)
        expected.update(a=now["a"], experts=np.stack([now["expert.0"], now["expert.1"]]))
        assert sorted(version) == sorted(expected)
        for name, values in expected.items():
            assert (version[name].dtype, version[name].shape) == (values.dtype, values.shape)
            np.testing.assert_array_equal(version[name], values)
        names["qkv"]["split"].pop()
        with pytest.raises(phub.SettingsError, match=r'"qkv" \[12, 4\].*tensor "k" \[2, 4\]: the parts end here, and 2 rows'):
            next(phub.subscribe(hub.address, "job", names=names, timeout=LIMIT_S))


def test_a_reader_that_is_slow_or_waits_holds_up_nobody(hub):
    session = join(hub)
    versions = phub.subscribe(hub.address, "job", every=0, timeout=LIMIT_S)
    with stepping(session) as count:
        held, before = next(versions), count[0]
        while count[0] < before + 200:  # meanwhile the reader asks for no version
            time.sleep(0.01)
        check(held)
        newest = next(versions)
        check(newest)
        assert newest.round > before + 200, "the newest comes next"
    # A wait releases the GIL, so this thread runs while the other thread waits.
    waits = threading.Thread(target=lambda: list(versions))
    waits.start()
    time.sleep(1)  # the reader gets the newest version, and waits for the next
    assert waits.is_alive()
    with pytest.raises(phub.OrderError, match="another thread waits"):
        next(versions)
    versions.close()
    waits.join(LIMIT_S)
    assert not waits.is_alive(), "close ends a wait"
    session.leave()


def test_a_timeout_and_ctrl_c_end_a_wait_and_leave_the_reader_as_it_was(hub):
    versions = phub.subscribe(hub.address, "job", every=0, timeout=0.5)
    with pytest.raises(phub.UnreachableError, match="no version within the timeout.*no job"):
        next(versions)
    patient = phub.subscribe(hub.address, "job", every=0)
    timer = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        next(patient)
    with join(hub) as session:
        step(session)
        check(next(patient))


def test_the_time_between_two_versions_is_no_part_of_the_timeout(hub):
    with join(hub) as session:
        versions = phub.subscribe(hub.address, "job", every=1.0, timeout=0.5)
        for _ in range(2):
            step(session)
            check(next(versions))


def serve(port):
    command = [sys.executable, "-m", "phub", "serve", "--listen", f"127.0.0.1:{port}", "--cores", "1", "--idle", "sleep"]
    hub = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "RUST_LOG": "error"})
    assert hub.stdout.readline()
    return hub


def test_a_reader_goes_on_with_a_hub_that_was_killed_and_comes_back():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    versions = phub.subscribe(address, "job", every=0, timeout=LIMIT_S)
    coming = []
    reader = threading.Thread(target=lambda: coming.extend(versions))
    reader.start()  # no hub runs yet
    for life in (1, 2):
        hub = serve(port)
        try:
            time.sleep(1)  # a hub that does not have the job does not end the reader
            assert reader.is_alive()
            session = join(address)
            before = len(coming)
            step(session, life)
            while len(coming) == before or coming[-1].round != life + 1:
                assert reader.is_alive()
                time.sleep(0.02)
            if life == 2:
                session.leave()
                reader.join(LIMIT_S)
                assert not reader.is_alive(), "the job has ended"
            else:
                hub.kill()
                hub.wait()
                time.sleep(1)  # the reader notices that the hub is away
                session.close()
        finally:
            hub.kill()
            hub.wait()
    for version in coming:
        check(version)


def test_other_weights_of_a_round_that_the_reader_has_are_a_version(hub):
    versions = phub.subscribe(hub.address, "job", every=0, timeout=LIMIT_S)
    for rate in (0.5, 0.25):  # two jobs of one name; the reader does not look between them
        with join(hub, optimizer=phub.Sgd(rate)) as session:
            step(session)
            version = next(versions)
            assert version.round == 2
            np.testing.assert_array_equal(version["a"], 1 - rate)


def test_a_job_whose_hub_keeps_no_weights_is_an_error_at_once(hub):
    with phub.Session(hub.address, 0, 1, keys=SHAPES, optimizer=phub.Average(), job="job"):
        with pytest.raises(phub.RefusedError, match="the job's optimizer, average, keeps no weights"):
            next(phub.subscribe(hub.address, "job", timeout=LIMIT_S))


def publish(address, directory, *more):
    command = [sys.executable, "-m", "phub", "publish", "job", address, "--to", str(directory), "--once", *more]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def test_a_hub_that_does_not_come_back_is_waited_for_so_long():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = "127.0.0.1:{}".format(nobody.getsockname()[1])
        with pytest.raises(phub.UnreachableError, match="there was no hub with the job, and the wait is over"):
            next(phub.subscribe(address, "job", hub_wait=0.2, timeout=LIMIT_S))
        with pytest.raises(phub.SettingsError, match="hub_wait -1.*expected seconds"):
            phub.subscribe(address, "job", hub_wait=-1.0)


def test_a_directory_of_versions_is_followed_and_what_was_skipped_is_told(hub, tmp_path):
    directory = tmp_path / "versions"
    versions = phub.subscribe(directory=directory, every=0, timeout=LIMIT_S)
    with pytest.raises(phub.UnreachableError, match="versions"):
        next(phub.subscribe(directory=directory, timeout=0.2))
    with join(hub) as session:
        step(session)
        publish(hub.address, directory)
        first = next(versions)
        check(first)
        assert (first.id, first.skipped, first.round) == (1, 0, 2)
        for _ in range(3):
            step(session)
            publish(hub.address, directory)
        fourth = next(versions)
        check(fourth)
        check(first)
        assert (fourth.id, fourth.skipped, fourth.round) == (4, 2, 5)
        step(session)
        publish(hub.address, directory)
        # A version of which one bit has changed since it was published is never returned.
        [file] = (directory / "weight_v000005").glob("*.safetensors")
        damaged = bytearray(file.read_bytes())
        damaged[-3] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(phub.ProtocolError, match="weight_v000005"):
            next(versions)
        step(session)
        publish(hub.address, directory)
        sixth = next(versions)
        check(sixth)
        assert (sixth.id, sixth.skipped) == (6, 1), "after a damaged one comes a whole one"


def test_the_script_of_the_docs_follows_a_job_to_its_end(hub, tmp_path):
    page = Path(__file__).parents[3] / "docs/engines.md"
    script = tmp_path / "monitor.py"
    script.write_text(page.read_text().split("## In Python")[1].split("```python\n")[1].split("```")[0])
    with join(hub) as session:
        step(session)
        command = [sys.executable, script, hub.address, "job"]
        monitor = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert monitor.stdout.readline() == "2 {'a': 0.5, 'b': 0.5}\n"
        step(session)
        assert monitor.stdout.readline() == "3 {'a': 0.0, 'b': 0.0}\n"
    assert monitor.communicate(timeout=LIMIT_S)[0] == "" and monitor.returncode == 0


torch = pytest.importorskip("torch")


class Model(torch.nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.a = torch.nn.Parameter(torch.zeros(100, dtype=dtype))
        self.b = torch.nn.Parameter(torch.zeros(30, 50, dtype=dtype))
        self.register_buffer("steps", torch.tensor(7))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("own", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_go_into_a_model_in_its_own_types(hub, dtype, own):
    with join(hub) as session:
        step(session, 2)
        model = Model(own)
        places = [model.a.data_ptr(), model.b.data_ptr()]
        version = next(phub.subscribe(hub.address, "job", dtype=dtype, timeout=LIMIT_S))
        step(session)
        version.load_into(model)
        assert [model.a.data_ptr(), model.b.data_ptr()] == places and model.a.requires_grad, "in place"
        for parameter in model.parameters():
            assert parameter.dtype == own and torch.all(parameter == 0.0)
        model.a.data.fill_(9)
        newer = next(phub.subscribe(hub.address, "job", dtype=dtype, timeout=LIMIT_S))
        newer.load_into({name: tensor for name, tensor in model.state_dict().items() if name != "steps"})
        assert torch.all(model.a == -0.5) and torch.all(model.b == -0.5) and model.steps == 7


def test_a_model_that_does_not_fit_is_named_from_both_sides_and_stays_as_it_was(hub):
    with join(hub) as session:
        step(session)
        version = next(phub.subscribe(hub.address, "job", names={"b": "c"}, timeout=LIMIT_S))
        plain = next(phub.subscribe(hub.address, "job", timeout=LIMIT_S))
    model = Model()
    with pytest.raises(phub.SettingsError, match=r"target has no \['c'\] \(1\).*version has no \['b'\] \(1\).*names"):
        version.load_into(model)
    model.b = torch.nn.Parameter(torch.zeros(50, 30))
    with pytest.raises(phub.SettingsError, match=r"'b'.*version has the shape \(30, 50\).*target has the shape \(50, 30\)"):
        plain.load_into(model)
    assert all(torch.all(parameter == 0) for parameter in model.parameters())
    model.b = torch.nn.Parameter(torch.zeros(30, 50))
    with pytest.raises(phub.SettingsError, match="'b' is of type torch.int8, which cannot hold weights"):
        plain.load_into({"a": model.a, "b": model.b.to(torch.int8)})
    with pytest.raises(phub.SettingsError, match="'b' has no values .device 'meta'.: call to_empty"):
        plain.load_into({"a": model.a, "b": model.b.to("meta")})
    assert all(torch.all(parameter == 0) for parameter in model.parameters())
    repeated = torch.zeros(1, 50).expand(30, 50)
    with pytest.raises(phub.SettingsError, match="'b' is sparse, or repeats elements"):
        plain.load_into({"a": model.a, "b": repeated})
    assert torch.all(model.a == 0)


def test_a_weight_that_the_models_type_rounds_to_infinity_is_an_error(hub):
    with join(hub) as session:
        session.gradient("b")[...] = 0
        session.gradient("b")[2, 3] = -2e5  # the weight becomes 1e5 + 1
        session.push_pull("a", np.ones(100))
        session.push("b")
        session.wait()
        version = next(phub.subscribe(hub.address, "job", timeout=LIMIT_S))
    model = Model(torch.float16)
    with pytest.raises(phub.SettingsError, match=r"'b' has the weight 100001, which torch.float16 rounds to infinity"):
        version.load_into(model)
    assert all(torch.all(parameter == 0) for parameter in model.parameters())
    model = Model(torch.bfloat16)
    version.load_into(model)
    assert model.b[2, 3] == 99840 and torch.all(model.a == 0.5)


def test_two_weights_for_one_tensor_are_an_error_unless_they_are_equal(hub):
    keys = {"words": (2, 3), "head": (2, 3)}
    with phub.Session(hub, 0, 1, keys=keys, optimizer=phub.Sgd(0.5), job="job") as session:
        session.broadcast({"words": np.ones((2, 3)), "head": np.ones((2, 3))})
        equal = next(phub.subscribe(hub.address, "job", every=0, timeout=LIMIT_S))
        session.push_pull("words", np.full((2, 3), 2.0))
        session.push_pull("head", np.zeros((2, 3)))
        versions = phub.subscribe(hub.address, "job", every=0, timeout=LIMIT_S)
        different = next(versions)
    model = torch.nn.Module()
    model.words = model.head = torch.nn.Parameter(torch.zeros(2, 3))
    for target in (model, model.state_dict()):
        with pytest.raises(phub.SettingsError, match="'(head|words)' and '(head|words)' are different in the version, and one tensor"):
            different.load_into(target)
        assert torch.all(model.words == 0)
    equal.load_into(model)
    assert torch.all(model.words == 1)


def test_arguments_that_are_no_text_are_named(hub):
    for settings, words in (({"hub": hub}, "hub is <.*: expected 'host:port'"), ({"job": 5}, "job is 5"), ({"dtype": torch.bfloat16}, "dtype is torch.bf")):
        with pytest.raises(phub.SettingsError, match=words):
            phub.subscribe(**{"hub": hub.address, "job": "job", **settings})
