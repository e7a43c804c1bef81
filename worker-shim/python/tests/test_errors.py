"""Each cause of an error raises its own exception, in bounded time, with advice."""

import threading

import numpy as np
import pytest

import phub

KEYS = {"weight": (3, 40), "bias": (7,)}
SGD = phub.Sgd(learning_rate=0.5)


def join(hub, rank=0, world_size=1, **settings):
    settings = {"keys": KEYS, "optimizer": SGD, "job": "job", **settings}
    return phub.Session(hub, rank, world_size, **settings)


def test_every_exception_is_an_error():
    classes = [each for name, each in vars(phub).items() if name.endswith("Error") and name != "Error"]
    assert len(classes) == 16
    for each in classes:
        assert issubclass(each, phub.Error) and each.__doc__, each


def test_no_hub_at_the_address():
    with pytest.raises(phub.UnreachableError, match="127.0.0.1:1.*is phub-server running there"):
        join("127.0.0.1:1", hub_wait=0.0)


def test_a_hub_that_is_no_address():
    with pytest.raises(phub.SettingsError, match=r"hub is \['127.0.0.1:1'\]: expected 'host:port'"):
        join(["127.0.0.1:1"])


def test_no_hub_is_named(monkeypatch):
    for name in ("PHUB_HUB", "DMLC_PS_ROOT_URI", "RANK", "PHUB_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(phub.SettingsError, match="rank 1 without a launcher.*give hub="):
        join(None, 1, 2)
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    with pytest.raises(phub.SettingsError, match="no hub is known: give hub=.*PHUB_HUB"):
        join(None)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"keys": {}}, "at least one tensor"),
        ({"keys": {"weight": np.zeros(3)}}, "'weight' is an array of float64.*float32, float16 and bf16"),
        ({"keys": ["weight"]}, r"keys is \['weight'\]: expected shapes or NumPy arrays by name"),
        ({"keys": {"weight": 5}}, "'weight' is 5: expected a shape"),
        ({"keys": {"weight": (2.5,)}}, r"'weight' is \(2.5,\): expected a shape"),
        ({"keys": {"weight": (2, -1)}}, r"'weight' is \(2, -1\): expected a shape"),
        ({"keys": {"weight": phub.Key(10)}}, r"'weight' is Key\(shape=10.*: expected a shape"),
        ({"keys": {"weight": phub.Key((2, -1))}}, r"'weight' is Key\(shape=\(2, -1\).*: expected a shape"),
        ({"keys": {"weight": phub.Key((2,), np.float32)}}, r"'weight' is Key.*: expected .* a key such as phub.Key\(\(10, 64\), 'f32'\)"),
        ({"keys": {"weight": phub.Key((2,), lr_mult=None)}}, "'weight' is Key.*: expected"),
        ({"maximize": "false"}, "maximize is 'false': expected True or False"),
        ({"skip_nonfinite": "no"}, "skip_nonfinite is 'no': expected True or False"),
        ({"checksum": "0"}, "checksum is '0': expected True or False"),
        ({"state": {"weight": np.zeros((3, 40))}}, "state is {'weight'.*: expected a phub.State"),
        ({"state": phub.State(1.5, {})}, "state: round 1.5: expected 1"),
        ({"optimizer": phub.Sgd}, "optimizer is <class .*Sgd'>: expected one of phub's"),
        ({"optimizer": phub.Sgd(float("nan"))}, "Sgd: learning_rate is nan; expected a finite number"),
        ({"keys": {"weight": phub.Key((3,), "f64")}}, '"f64": expected one of .*"f32"'),
        ({"optimizer": phub.Momentum(0.1, momentum=1.5)}, "momentum is 1.5; expected"),
        (
            {"optimizer": phub.Momentum(0.1, momentum=0.9), "compression": phub.Dgc(0.1)},
            r"Dgc\(ratio=0.1, momentum=0.9.*Momentum would add momentum a second time: use phub.Sgd",
        ),
        ({"job": "no spaces"}, 'job name "no spaces"'),
        ({"job": 5}, "job is 5: expected a name"),
        ({"rank": -1}, "rank is -1: expected a whole number"),  # torch's rank of a process outside of the group
        ({"rank": "0"}, "rank is '0': expected a whole number"),
        ({"rank": True}, r"rank is True: expected a whole number from 0 to 2\^32 - 1"),
        ({"world_size": 1 << 32}, "world_size is 4294967296: expected a whole number"),
        ({"keys": {5: (3,)}}, "the name 5 is no text"),
        ({"compression": "qsgd"}, "compression is 'qsgd': expected one of phub's codecs"),
        ({"compression": phub.F16}, "compression is <class .*F16'>: expected one of phub's codecs"),
        ({"optimizer": phub.Sgd(None)}, "Sgd: learning_rate is None; expected a finite number"),
        ({"consistency": "none"}, "consistency"),
        ({"weights": "public"}, "weights"),
        ({"transport": "pigeon"}, "transport"),
        ({"schedule": "random"}, "schedule"),
        ({"credit": "much"}, "credit"),
        ({"join_limit": 0.001, "chunk_bytes": 3}, "3"),
        ({"join_limit": -1.0}, "join_limit is -1.0: expected a number of seconds"),
        ({"join_limit": 0}, "join_limit is 0"),
        ({"join_limit": "60"}, "join_limit is '60': expected a number of seconds"),
        ({"join_limit": float("nan")}, "join_limit is nan"),
        ({"join_limit": float("inf")}, "join_limit is inf"),
        ({"wait_limit": -1.0}, "wait_limit.*-1.*more than 0"),
        ({"hub_wait": "60"}, "hub_wait is '60': expected a number of seconds"),
        ({"hub_wait": float("nan")}, "hub_wait is nan: expected a number of seconds"),
    ],
)
def test_settings_that_no_job_can_have(hub, settings, words):
    with pytest.raises(phub.SettingsError, match=words):
        join(hub, **settings)


def test_workers_that_do_not_come_are_named(hub):
    with pytest.raises(phub.MissingWorkersError, match=r"\[1, 2\] of 3 to join"):
        join(hub, 0, 3, join_limit=0.3)


def test_workers_whose_models_differ(hub):
    refused = []

    def other():
        with pytest.raises(phub.RefusedError) as error:
            join(hub, 1, 2, keys={"weight": (3, 41), "bias": (7,)}, join_limit=5)
        refused.append(error.value)

    first = threading.Thread(target=lambda: pytest.raises(phub.MissingWorkersError, join, hub, 0, 2, join_limit=1.5))
    first.start()
    # The other worker joins after the first worker has created the job, and before that worker's limit. If the other worker
    # joined first, it would create the job with its own terms.
    while not _has_job(hub):
        pass
    other()
    first.join()
    assert "weight" in str(refused[0]) and refused[0].code == "terms_differ", refused


def _has_job(hub):
    import json
    import urllib.request

    request = urllib.request.Request(f"http://{hub.address}/v1/hub", headers={"Authorization": f"Bearer {phub._phub.token('read', '*', None)}"})
    with urllib.request.urlopen(request) as answer:
        return bool(json.load(answer)["jobs"])


def test_calls_out_of_order(hub):
    session = join(hub)
    with pytest.raises(phub.RefusedError, match="no weights yet") as error:
        session.push()
    assert error.value.code is None
    session.broadcast()
    with pytest.raises(phub.OrderError, match="'added' is not one of this job's 2 keys, which are fixed at the join"):
        session.push("added")
    with pytest.raises(phub.OrderError, match=r"key \['bias', 'weight'\] is not one of this job's 2"):
        session.push(["bias", "weight"])
    # The hub's answers are weights, which are no means.
    with pytest.raises(phub.SettingsError, match="average: job 'job' has an optimizer.*optimizer=phub.Average"):
        session.average({"bias": np.ones(7)})
    session.leave()
    with pytest.raises(phub.LeftError, match="has left"):
        session.push("bias")


@pytest.mark.parametrize("values", [2.0, np.zeros(40), np.zeros((1, 40)), np.zeros((40, 3))])
def test_values_of_another_shape_are_not_repeated(hub, values):
    words = r"key 'weight': the values have the shape \(.*\): expected \(3, 40\)"
    with join(hub) as session:
        with pytest.raises(phub.SettingsError, match=words):
            session.broadcast({"weight": values})
        session.broadcast({"weight": np.ones((3, 40)).tolist()})
        with pytest.raises(phub.SettingsError, match=words):
            session.push_pull("weight", values)
    with join(hub, job="mean", optimizer=phub.Average()) as session:
        with pytest.raises(phub.SettingsError, match=words):
            session.average({"weight": values})


@pytest.mark.parametrize(
    "key, values, words",
    [
        ("full", [1j, 2j], "'full': the values are not f32: .*complex"),
        ("full", np.array([1, 2], object), "'full': the values are not f32: .*'O'"),
        ("full", [[1], [2, 3]], "'full': the values are not f32"),
        ("brain", [1.0, 2.0], "'brain': the values are not bf16: .*uint16 with its bits"),
        # NumPy would take these values for the bits of numbers near zero, and raise no error.
        ("brain", [True, False], "'brain': the values are not bf16: .*bool"),
        ("brain", np.ones(2, np.uint8), "'brain': the values are not bf16: .*uint8"),
    ],
)
def test_values_of_another_type_are_not_written(hub, key, values, words):
    with join(hub, keys={"full": (2,), "brain": phub.Key((2,), "bf16")}, optimizer=phub.Average()) as session:
        with pytest.raises(phub.SettingsError, match=words):
            session.push_pull(key, values)
        session.push_pull("full", np.array([1, 2], ">i8"))
        session.push_pull("brain", np.array([0x3F80, 0xBF80], ">u2"))
        assert session.weights("full").tolist() == [1, 2] and session.weights("brain").tolist() == [0x3F80, 0xBF80]


@pytest.mark.parametrize("skips", [{"skip_nonfinite": True}, {"skip_spikes": 3.0}])
def test_a_mean_is_never_that_of_the_round_before(hub, skips):
    with join(hub, optimizer=phub.Average(), **skips) as session:
        with pytest.raises(phub.SettingsError, match="average: job 'job' skips rounds, and a skipped round has no mean"):
            session.average({"bias": np.ones(7)})


def test_values_behind_a_mask_are_not_sent(hub):
    masked = np.ma.array([1.0, 9.0], mask=[False, True])
    with join(hub, keys={"a": (2,)}, optimizer=phub.Average()) as session:
        with pytest.raises(phub.SettingsError, match=r"key 'a': some values are masked.*values.filled\(0.0\)"):
            session.average({"a": masked})
        assert session.average({"a": masked.filled(0.0)})["a"].tolist() == [1.0, 0.0]
        assert session.average({"a": np.ma.array([1.0, 9.0])})["a"].tolist() == [1.0, 9.0], "nothing is masked"


@pytest.mark.parametrize(
    "values, words",
    [
        # NumPy would convert these numbers to f32 without an error.
        (np.array([0x3F80, 0xBF80], np.uint16), r"'brain' is an array of uint16; expected f32.*bits.astype\('u4'\) << 16"),
        (np.array([1, 2]), "'brain' is an array of int64; expected f32"),
        (np.array([1 + 1j, 2]), "'brain' is an array of complex128; expected f32"),
        (np.ma.array([1.0, 9.0], mask=[False, True]), "state: 'brain': some values are masked"),
    ],
)
def test_a_state_has_numbers_and_no_bits(hub, values, words):
    settings = {"keys": {"brain": phub.Key((2,), "bf16")}, "optimizer": SGD}
    with pytest.raises(phub.SettingsError, match=words):
        join(hub, state=phub.State(1, {"brain": values}), **settings)
    numbers = (np.array([0x3F80, 0xBF80], np.uint16).astype("u4") << 16).view("f4")
    with join(hub, state=phub.State(1, {"brain": numbers}), **settings) as session:
        assert session.weights("brain").tolist() == [0x3F80, 0xBF80]


def test_a_refused_call_does_not_write_a_key_in_flight(hub):
    sessions = _both(hub)
    for session in sessions:
        session.gradient("bias")[:] = 1.0
    sessions[0].push("bias")
    with pytest.raises(phub.OrderError, match="'bias' is in flight: wait for it"):
        sessions[0].push_pull("bias", np.full(7, 9.0))
    sessions[1].push("bias")
    sessions[0].wait("bias")
    np.testing.assert_array_equal(sessions[0].gradient("bias"), 1.0)
    np.testing.assert_array_equal(sessions[0].weights("bias"), -0.5)


def test_a_key_under_way_is_not_pushed_again(hub):
    sessions = _both(hub)
    sessions[0].push("bias")
    with pytest.raises(phub.OrderError, match='"bias" is in flight in round 1'):
        sessions[0].push("bias")


def test_a_worker_that_is_lost(hub):
    sessions = _both(hub)
    sessions[0].push("weight")
    sessions[1].push("bias")
    sessions[1].close()
    with pytest.raises(phub.JobFailedError, match="worker 1"):
        sessions[0].wait()
    with pytest.raises(phub.JobFailedError, match="worker 1"):
        sessions[0].push("bias")


def test_a_worker_that_does_not_push(hub):
    sessions = _both(hub, wait_limit=0.2)
    sessions[0].push("bias")
    with pytest.raises(phub.StalledError, match="some worker has not pushed this key"):
        sessions[0].wait("bias")


def test_a_hub_that_stops():
    hub = phub.serve(cores=1)
    session = join(hub)
    session.broadcast()
    hub.stop("for the test")
    with pytest.raises(phub.JobFailedError, match="for the test"):
        while True:
            session.push("bias")
            session.wait("bias")


def test_checkpoints(tmp_path, hub):
    with join(hub) as session:
        session.broadcast()
        with pytest.raises(phub.RefusedError, match="--checkpoints"):
            session.checkpoint()
    with phub.serve(cores=1, checkpoints=tmp_path) as hub:
        with join(hub) as session:
            session.broadcast()
            session.gradient("bias")[:] = 1.0
            session.push()
            session.wait()
            assert session.checkpoint().round == 2
        with join(hub) as session:
            assert session.next_round > 0
            session.broadcast()  # does nothing, because the job has weights
            np.testing.assert_array_equal(session.weights("bias"), -0.5)


def test_hubs_that_do_not_start(hub):
    with pytest.raises(phub.HubStartError, match="cannot listen on"):
        phub.serve(hub.address)
    with pytest.raises(phub.SettingsError, match="cores"):
        phub.serve(cores="many")
    with pytest.raises(phub.SettingsError, match="idle"):
        phub.serve(idle="lazy")
    with pytest.raises(phub.SettingsError, match="cpus"):
        phub.serve(cpus=1)
    with pytest.raises(phub.SettingsError, match="insecure is 'no': expected True or False"):
        phub.serve(insecure="no")
    with pytest.raises(phub.SettingsError, match="unused_limit_s: a hub in this process does not end by itself"):
        phub.serve(unused_limit_s=30)


def test_settings_of_a_hub_that_are_texts_or_bytes(tmp_path):
    directory = tmp_path / "checkpoints"
    with phub.serve(transports="shm,tcp", checkpoints=bytes(directory)) as hub:
        with join(hub, transport="tcp") as session:
            session.broadcast()
    assert (directory / "job.safetensors").is_file()


def _both(hub, **settings):
    sessions = [None, None]

    def start(rank):
        sessions[rank] = join(hub, rank, 2, **settings)
        sessions[rank].broadcast()

    threads = [threading.Thread(target=start, args=(rank,)) for rank in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert all(sessions), "a worker failed, see above"
    return sessions


def test_gradients_that_cannot_lie_in_a_dma_buf(tmp_path):
    (tmp_path / "file").write_bytes(bytes(4096))
    with open(tmp_path / "file", "rb") as file:
        for settings, words in (
            ({"dma_buf": (file.fileno(), 64)}, "the descriptor does not belong to a dma-buf"),
            ({"dma_buf": file.fileno(), "transport": "tcp"}, "by RDMA alone"),
            ({"dma_buf": file.fileno(), "compression": phub.TopK(0.1)}, "reads gradients from host memory"),
            ({"dma_buf": 1_000_000}, "this process has no descriptor 1000000"),
        ):
            with pytest.raises(phub.Error, match=words):
                phub.Session(
                    "127.0.0.1:1", 0, 1, keys={"a": (3,)}, optimizer=phub.Sgd(0.1), job="j", hub_wait=0, **settings
                )


def test_places_are_those_of_the_window():
    places = phub.places({"a": (3,), "b": phub.Key((2, 100), "bf16"), "c": (1,)})
    assert places.keys == {"a": (0, 12), "b": (64, 400), "c": (512, 4)}
    assert places.bytes == 576
    with pytest.raises(phub.SettingsError, match="no usable size"):
        phub.places({"empty": (0,)})
