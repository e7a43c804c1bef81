"""Weights for inference engines: the parts of `phub.engines` that need no engine. `test_engines_vllm.py` has the real vLLM."""

import dataclasses
import importlib.metadata
import subprocess
import sys
import typing

import numpy as np
import pytest

import phub
from phub import engines
from phub.engines import sglang

torch = pytest.importorskip("torch")

from phub.engines import _twin  # noqa: E402

# The limit of every wait, so that an error in the code does not make a test hang.
LIMIT_S = 120
SHAPES = {"norm": (4,), "q": (4, 4), "k": (2, 4)}


class Model(torch.nn.Module):
    """A model like an engine's, in which two tensors of the checkpoint are one matrix."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.Parameter(torch.zeros(4), requires_grad=False)
        self.inner = torch.nn.Module()
        self.inner.qk = torch.nn.Parameter(torch.zeros(6, 4), requires_grad=False)

    def load_weights(self, weights):
        for name, values in weights:
            if name == "norm":
                self.norm.data.copy_(values)
            else:
                first, count = {"q": (0, 4), "k": (4, 2)}[name]
                part = self.inner.qk.data.narrow(0, first, count)
                assert part.shape == values.shape
                part.copy_(values)

    def state(self):
        return {name: tensor.clone() for name, tensor in self.state_dict().items()}


@dataclasses.dataclass(frozen=True)
class Context:
    """The fields of SGLang's WeightUpdateReceiverContext at its commit fd623da that the receiver uses."""

    model: typing.Any
    tp_rank: int = 0
    tp_size: int = 1
    init_payload: typing.Optional[typing.Dict[str, typing.Any]] = None


def join(hub, shapes=SHAPES):
    session = phub.Session(hub, 0, 1, keys=shapes, optimizer=phub.Sgd(0.5), job="job")
    session.broadcast({key: np.ones(shape, np.float32) for key, shape in shapes.items()})
    return session


def step(session):
    for key in session.keys:
        session.gradient(key)[...] = 1
        session.push(key)
    for key in session.keys:
        session.wait(key)


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in {**one, **other})


@pytest.mark.parametrize("fetch_deltas", [False, True])
def test_a_receiver_of_sglang_prepares_applies_and_aborts(hub, fetch_deltas):
    model = Model()
    session = join(hub)
    payload = {"hub": hub.address, "job": "job", "timeout": LIMIT_S, "fetch_deltas": fetch_deltas}
    receiver = sglang.receiver(Context(model, init_payload=payload))
    receiver.receive()
    assert all(bool((tensor == 1).all()) for tensor in model.state().values())
    # A prepared version is applied, although the job has newer weights by then.
    receiver.receive({"do": "prepare"})
    receiver._receiver._reading[1].result(LIMIT_S)
    step(session)
    receiver.receive({"do": "apply"})
    assert all(bool((tensor == 1).all()) for tensor in model.state().values())
    # After an aborted request, the newest version is read.
    receiver.receive({"do": "prepare", "round": 99})
    receiver.receive({"do": "abort"})
    receiver.receive()
    assert all(bool((tensor == 0.5).all()) for tensor in model.state().values())
    # If the prepared version is older than the wanted round, a new version is read.
    receiver.receive({"do": "prepare"})
    receiver._receiver._reading[1].result(LIMIT_S)
    step(session)
    receiver.receive({"round": session.next_round})
    assert all(bool((tensor == 0).all()) for tensor in model.state().values())
    receiver.destroy()


def test_a_fused_key_of_the_job_is_cut_into_the_tensors_of_the_checkpoint(hub):
    model = Model()
    session = join(hub, {"norm": (4,), "qk": (6, 4)})
    names = {"qk": {"split": [{"name": "q", "shape": [4, 4]}, {"name": "k", "shape": [2, 4]}]}}
    payload = {"hub": hub.address, "job": "job", "timeout": LIMIT_S, "names": names}
    receiver = sglang.receiver(Context(model, init_payload=payload))
    step(session)
    receiver.receive()
    assert all(bool((tensor == 0.5).all()) for tensor in model.state().values())
    receiver.destroy()


def test_a_version_of_a_directory_is_wanted_by_its_number(hub, tmp_path):
    model = Model()
    session = join(hub)
    receiver = sglang.receiver(Context(model, init_payload={"directory": str(tmp_path), "timeout": LIMIT_S}))
    command = [sys.executable, "-m", "phub", "publish", "job", hub.address, "--to", str(tmp_path), "--once", "--dtype", "bf16"]
    subprocess.run(command, check=True, timeout=LIMIT_S)
    receiver.receive({"number": 1})
    assert all(bool((tensor == 1).all()) for tensor in model.state().values())
    receiver.receive({"do": "prepare", "number": 2})
    step(session)
    subprocess.run(command, check=True, timeout=LIMIT_S)
    receiver.receive({"number": 2})
    assert all(bool((tensor == 0.5).all()) for tensor in model.state().values())
    receiver.destroy()


@pytest.mark.parametrize(
    ("payload", "error", "text"),
    [
        ({"do": "load"}, phub.SettingsError, "do 'load': expected one of 'prepare', 'apply', 'abort'"),
        ({"number": 1}, phub.SettingsError, "only versions in a directory have numbers"),
        ({"step": 1}, phub.SettingsError, r"\['step'\] do not fit phub.engines.Request"),
        ({"round": 99}, phub.UnreachableError, "expected a version of round 99 or later: .* still before round 1"),
    ],
)
def test_a_wrong_request_is_an_error_that_changes_nothing(hub, payload, error, text):
    model = Model()
    session = join(hub)
    receiver = sglang.receiver(Context(model, init_payload={"hub": hub.address, "job": "job", "timeout": 1}))
    with pytest.raises(error, match=text):
        receiver.receive(payload)
    assert same(model.state(), Model().state())
    receiver.receive()
    assert session.next_round == 1 and not same(model.state(), Model().state())
    receiver.destroy()


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({}, phub.SettingsError, "expected a hub and a job, or a directory"),
        ({"hub": "h", "job": "j", "directory": "d"}, phub.SettingsError, "a directory has"),
        ({"url": "h"}, phub.SettingsError, r"\['url'\] do not fit phub.engines.Source"),
    ],
)
def test_wrong_settings_are_an_error_before_the_first_update(settings, error, text):
    with pytest.raises(error, match=text):
        sglang.receiver(Context(Model(), init_payload=settings))


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        ({"norm": (4,), "q": (4, 4)}, r"no tensor fills \['inner.qk \(16 of 24 elements\)'\]"),
        ({"q": (4, 4), "k": (2, 4)}, r"no tensor fills \['norm \(0 of 4 elements\)'\]"),
        ({**SHAPES, "norm": (2,)}, r"tensor 'norm', f32 of the shape \(2,\); expected the shape \(4,\)"),
        ({**SHAPES, "k": (2, 2)}, r"tensor 'k', f32 of the shape \(2, 2\); the engine says AssertionError"),
        ({**SHAPES, "v": (2, 4)}, "tensor 'v', f32 .* the engine says KeyError: 'v'; give `names`"),
    ],
)
def test_weights_that_do_not_fit_change_nothing(hub, shapes, text):
    model = Model()
    session = join(hub, shapes)
    receiver = sglang.receiver(Context(model, init_payload={"hub": hub.address, "job": "job", "timeout": LIMIT_S}))
    with pytest.raises(phub.SettingsError, match=f"does not fit the engine's model, which is unchanged: .*{text}"):
        receiver.receive()
    assert session.next_round == 1 and same(model.state(), Model().state())
    receiver.destroy()


def test_a_parameter_that_two_layers_share_is_filled_once():
    model = Model()
    model.head = torch.nn.Module()
    model.head.weight = model.norm
    _twin.check(_twin.twin_of(model), [(name, shape, "f32") for name, shape in SHAPES.items()])
    assert same(model.state(), {**Model().state(), "head.weight": torch.zeros(4)})


def test_weights_for_a_parameter_of_integers_are_an_error():
    model = Model()
    model.norm = torch.nn.Parameter(torch.zeros(4, dtype=torch.int8), requires_grad=False)
    forms = [(name, shape, "bf16") for name, shape in SHAPES.items()]
    with pytest.raises(phub.SettingsError, match="tensor 'norm', bf16 .* the type torch.int8"):
        _twin.check(_twin.twin_of(model), forms)


def test_a_lost_hub_is_an_error_that_names_it():
    model = Model()
    with phub.serve(cores=1, idle="sleep", heartbeat_limit_s=30) as hub:
        address = hub.address
        receiver = sglang.receiver(Context(model, init_payload={"hub": address, "job": "job", "timeout": 1}))
    with pytest.raises(phub.UnreachableError, match=f"expected the newest version: .*{address}"):
        receiver.receive()
    assert same(model.state(), Model().state())
    receiver.destroy()


def ranks(rank, address, path):
    """Updates the model of one of two ranks. Returns the errors and the weights."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    model, errors = Model(), []

    def check(forms):
        if rank == 1 and not errors:
            raise phub.SettingsError("only here")
        _twin.check(_twin.twin_of(model), forms)

    source = engines.Source(hub=address, job="job", dtype="bf16", timeout=1 if rank == 0 else LIMIT_S)
    receiver = engines.Receiver(source, check=check, load=model.load_weights, group=dist.group.WORLD)
    for request in (engines.Request(), engines.Request(round=99), engines.Request()):
        try:
            receiver.update(request)
        except phub.Error as error:
            assert same(model.state(), Model().state())
            errors.append(f"{type(error).__name__}: {error}")
    receiver.close()
    return errors, {name: tensor.numpy() for name, tensor in model.state().items()}


def test_all_ranks_of_an_engine_get_one_version_or_none(hub, tmp_path):
    from conftest import in_processes

    session = join(hub)
    for (wrong, late), weights in in_processes(2, ranks, hub.address, tmp_path / "meeting"):
        assert "only here" in wrong and "SettingsError" in wrong
        assert "expected a version of round 99 or later" in late
        assert session.next_round == 1 and all((values == 1).all() for values in weights.values())


def test_the_wheel_names_the_plugin_and_it_is_silent_without_vllm(tmp_path):
    found = importlib.metadata.distribution("phub").entry_points
    [plugin] = [each for each in found if each.group == "vllm.general_plugins"]
    assert plugin.value == "phub.engines:register"
    # Without vLLM, `register` is silent. With a vLLM that has no weight transfer, it warns.
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    program = "import sys, warnings; warnings.simplefilter('error'); {}; import phub.engines; phub.engines.register()"
    hidden = "import importlib.util as u; find = u.find_spec; u.find_spec = lambda name: name != 'vllm' and find(name) or None"
    silent = subprocess.run([sys.executable, "-c", program.format(hidden)], capture_output=True, text=True)
    assert (silent.returncode, silent.stdout, silent.stderr) == (0, "", "")
    old = program.format(f"sys.path.insert(0, {str(tmp_path)!r})")
    warned = subprocess.run([sys.executable, "-c", old], capture_output=True, text=True)
    assert 'RuntimeWarning: phub: the weight-transfer backend "phub" is not registered' in warned.stderr
