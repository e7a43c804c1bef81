"""Every kind of read of a parameter after a step waits for the new values."""

import copy
import ctypes
import functools
import io
import multiprocessing
import pickle
import threading

import numpy as np
import pytest
from conftest import in_processes

torch = pytest.importorskip("torch")

from test_torch_optimizer import Net, backward, data, same, wrap  # noqa: E402

import phub.torch  # noqa: E402
from phub.torch import _weights  # noqa: E402
from phub.torch._held import is_pending  # noqa: E402

linear = torch.nn.functional.linear


class Held:
    """A model after one step, and a second worker, which pushes its gradients when the first worker begins to wait."""

    def __init__(self, hub, monkeypatch, model=None, **settings):
        self.model = model or Net()
        keys = {name: tuple(each.shape) for name, each in self.model.named_parameters()}
        other = []

        def join():
            settings = {"optimizer": phub.Sgd(0.1), "job": "job", "schedule": "p3"}
            other.append(phub.Session(hub, 1, 2, keys=keys, **settings))
            other[0].broadcast()

        thread = threading.Thread(target=join)
        thread.start()
        sgd = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.optimizer = wrap(sgd, self.model, hub, world_size=2, **settings)
        thread.join()
        self.other, self.is_pushed = other[0], False
        session = self.optimizer.session
        for name in ("wait", "settle"):
            monkeypatch.setattr(session, name, self._after_a_push(getattr(session, name)))

    def _after_a_push(self, wait):
        def waits(*keys):
            self.push()
            wait(*keys)

        return waits

    def push(self):
        if not self.is_pushed:
            self.is_pushed = True
            self.other.wait()  # the answers of the step before
            self.other.push()

    def step(self):
        backward(self.model, *data())
        self.optimizer.step()
        assert not self.is_pushed, "a step waits for nothing"


def through_a_file(what):
    file = io.BytesIO()
    torch.save(what, file)
    file.seek(0)
    # The file is the test's own, so it may have any objects. From torch 2.6 on, a flag must allow that.
    return torch.load(file, **({"weights_only": False} if torch.__version__ >= "2" else {}))


def at(address):
    return ctypes.c_float.from_address(address).value


def averaged(model):
    average = torch.optim.swa_utils.AveragedModel(Net())
    average.update_parameters(model)
    return average.module.second.weight


def out(parameter):
    """Reads a parameter, with a result that is written into another tensor."""
    there = torch.zeros(4, 8)
    there[:] = parameter
    return there


READS = {
    "a sum": lambda model: (model.second.weight * model.second.weight).sum(),
    "a norm": lambda model: torch.norm(model.second.weight),
    "a comparison": lambda model: Net().second.weight == model.second.weight,
    "a list": lambda model: torch.tensor(model.second.weight.tolist()),
    "an index": lambda model: model.second.weight[0, 1],
    "a loop": lambda model: torch.stack(list(model.second.weight)),
    "words": lambda model: repr(model.second.weight),
    "detach": lambda model: model.second.weight.detach().clone(),
    "data": lambda model: model.second.weight.data.clone(),
    "clone": lambda model: model.second.weight.clone(),
    "numpy": lambda model: torch.from_numpy(model.second.weight.detach().numpy().copy()),
    "dlpack": lambda model: torch.from_dlpack(model.second.weight.detach()).clone(),
    "its storage": lambda model: torch.tensor(model.second.weight.storage().tolist()),
    "into another": lambda model: out(model.second.weight),
    "a vector": lambda model: torch.nn.utils.parameters_to_vector(model.parameters()),
    "several": lambda model: torch.stack(torch._foreach_norm(list(model.parameters()))),
    "functional": lambda model: linear(torch.ones(2, 8), model.second.weight, bias=model.second.bias),
    "a tied module": lambda model: tied(model)(torch.ones(2, 8)),
    "a deep copy": lambda model: copy.deepcopy(model).second.weight,
    "a copy": lambda model: copy.copy(model.second.weight).clone(),
    "an average": averaged,
    "pickle": lambda model: pickle.loads(pickle.dumps(model.second.weight)),
    "a file": lambda model: through_a_file(model.second.weight),
    "a model's file": lambda model: through_a_file(model).second.weight,
    "state_dict": lambda model: model.state_dict()["second.weight"].clone(),
    "a live state_dict": lambda model: model.state_dict(keep_vars=True)["second.weight"].clone(),
    "evaluation": lambda model: model.eval()(data()[0]),
    "another type": lambda model: copy.deepcopy(model).double().second.weight,
    "a function's": lambda model: Twice.apply(model.second.weight),
    "loaded elsewhere": lambda model: loaded(model).second.weight,
}


def tied(model):
    module = torch.nn.Linear(8, 4)
    torch.nn.Module.__setattr__(module, "weight", model.second.weight)
    return module


def loaded(model):
    other = Net()
    other.load_state_dict(model.state_dict())
    return other


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(_context, values):
        return values * 2

    @staticmethod
    def backward(_context, gradient):
        return gradient * 2


def read(name, model):
    torch.manual_seed(1)  # the bias of a tied module is random
    seen = READS[name](model)
    return seen.detach().clone() if isinstance(seen, torch.Tensor) else seen


def alike(ones, others):
    return torch.equal(ones, others) if isinstance(ones, torch.Tensor) else ones == others


def are_here(model):
    return not any(is_pending(each) for each in model.parameters())


def are_ordinary(model):
    return all(type(each) is torch.nn.Parameter for each in model.parameters())


@pytest.mark.parametrize("name", READS)
def test_a_read_waits(hub, monkeypatch, name):
    held = Held(hub, monkeypatch)
    old = read(name, held.model)
    held.model.train()
    held.step()
    seen = read(name, held.model)
    assert held.is_pushed, "it has waited"
    held.optimizer.synchronize()
    assert are_here(held.model)
    assert alike(seen, read(name, held.model)) and not alike(seen, old)


def test_a_read_waits_for_what_it_reads_only(hub, monkeypatch):
    held = Held(hub, monkeypatch)
    held.step()
    held.other.push("first.weight")
    held.is_pushed = True
    old, new = held.model.first.weight.detach(), held.model.first.weight
    assert torch.equal(old, new) and not is_pending(new)
    assert not held.optimizer.session.is_ready("second.weight")
    held.other.push("first.bias", "second.weight", "second.bias")


def test_neighbours_are_taken_along_if_they_are_there(hub, monkeypatch):
    held = Held(hub, monkeypatch)
    first, *others = held.optimizer.session.keys
    for are_there in (False, True):
        held.step()
        held.is_pushed = True  # the test pushes itself, below
        held.other.wait()
        held.other.push(*(held.optimizer.session.keys if are_there else [first]))
        if are_there:
            held.other.wait()
            held.optimizer.session.settle()
        held.model.first.weight.sum()
        pending = [is_pending(each) for each in held.model.parameters()]
        assert pending == [False, *([not are_there] * len(others))]
        if not are_there:
            held.other.push(*others)
        held.optimizer.synchronize()
        held.is_pushed = False


def test_what_is_no_value_is_not_waited_for(hub, monkeypatch):
    held = Held(hub, monkeypatch)
    held.step()
    for parameter in held.model.parameters():
        assert isinstance(parameter, torch.nn.Parameter) and parameter.grad is not None
        assert (parameter.requires_grad, parameter.is_leaf, parameter.dtype) == (True, True, torch.float32)
        assert parameter.shape == parameter.size() and parameter.numel() > 0 and parameter.device.type == "cpu"
    names = [name for name, _ in held.model.named_parameters()]
    held.optimizer.zero_grad(set_to_none=False)
    assert all(not each.grad.any() for each in held.model.parameters())
    held.model.zero_grad(set_to_none=True)
    held.optimizer.param_groups[0]["params"].index(held.model.first.weight)
    assert all(each.grad is None for each in held.model.parameters())
    assert list(held.model.state_dict(keep_vars=True)) == names
    assert not held.is_pushed, "nothing has waited"


def test_a_deep_copy_is_ordinary_and_its_own(hub, monkeypatch):
    held = Held(hub, monkeypatch)
    held.step()
    first, second = copy.deepcopy((held.model, held.model.first.weight)), copy.deepcopy(held.model)
    assert are_ordinary(first[0]) and first[0].first.weight is first[1], "what is one stays one"
    kept = first[1].detach().clone()
    held.is_pushed = False
    held.step()
    held.optimizer.synchronize()
    assert not torch.equal(held.model.first.weight, kept) and torch.equal(second.first.weight, kept)
    torch.optim.SGD(first[0].parameters(), lr=0.1).step()
    held.is_pushed = False
    held.step()
    made = type(held.model.first.weight)(torch.ones(2))
    assert made.tolist() == [1, 1] and not is_pending(made), "a script's own"


def test_between_backward_and_step_a_read_is_old(hub, monkeypatch):
    held = Held(hub, monkeypatch)
    before = held.model.first.weight.detach().clone()
    backward(held.model, *data())
    held.push()
    assert torch.equal(before, held.model.first.weight), "a step is made by step()"
    held.optimizer.step()
    assert not torch.equal(before, held.model.first.weight)


def test_a_view_from_before_the_step_is_new_after_it(hub, monkeypatch):
    held = Held(hub, monkeypatch)
    view = held.model.first.weight.data
    before = view.clone()
    backward(held.model, *data())
    held.optimizer.step()
    assert held.is_pushed, "the step has waited, for this parameter"
    assert not torch.equal(view, before) and torch.equal(view, held.model.first.weight)


def test_after_the_end(hub, monkeypatch):
    held = Held(hub, monkeypatch)
    held.step()
    model, optimizer = held.model, held.optimizer
    leave = threading.Thread(target=held.other.leave)
    held.push()
    leave.start()
    optimizer.leave()
    leave.join()
    assert are_ordinary(model)
    with torch.no_grad():
        model.first.weight.zero_()  # an ordinary parameter again, which the script may write
    assert not model.first.weight.any()


def test_a_read_of_what_will_never_come_is_an_error(hub, monkeypatch):
    held = Held(hub, monkeypatch)
    held.step()
    held.is_pushed = True  # so that the second worker never pushes
    held.optimizer.session.close()
    for _ in range(2):
        with pytest.raises(phub.Error):
            held.model.second.weight.sum()
    with pytest.raises(phub.Error):
        held.optimizer.leave()
    assert are_ordinary(held.model), "the script may load others"


def test_two_optimizers_for_the_same_parameters(hub):
    ours, theirs = Net(), Net()
    make = lambda model, lr: torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)  # noqa: E731
    optimizers = [wrap(make(ours, lr), ours, hub, job=f"job{lr}") for lr in (0.1, 0.2)]
    for model, each in ((ours, optimizers), (theirs, [make(theirs, lr) for lr in (0.1, 0.2)])):
        for number in range(6):
            model.zero_grad()
            backward(model, *data(number))
            each[number // 2 % 2].step()
    for optimizer in optimizers:
        optimizer.leave()
    assert are_ordinary(ours)
    same(ours, theirs)


def test_at_an_address_that_was_taken_the_value_is_new_after_the_step(hub, monkeypatch):
    held = Held(hub, monkeypatch)
    address = held.model.second.weight.data_ptr()
    old = at(address)
    backward(held.model, *data())
    held.optimizer.step()
    assert held.is_pushed, "the step has waited"
    assert at(address) != old


def test_a_parameter_that_is_moved_is_stepped_where_it_is(hub):
    model = Net()
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub)
    model.second.weight.data = there = model.second.weight.data.clone()
    before = there.clone()
    backward(model, *data())
    optimizer.step()
    assert torch.equal(model.second.weight, there) and not torch.equal(there, before)


def test_a_parameter_with_another_shape_or_type_is_refused_until_it_is_changed_back(hub):
    model = Net()
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub)
    weight = model.second.weight
    for value, words in [
        (weight.detach().clone().double(), r"float32 of shape \(4, 8\) at .*, and is torch.float64 of shape \(4, 8\) now"),
        (torch.ones(1, 8), r"float32 of shape \(4, 8\) at .*, and is torch.float32 of shape \(1, 8\) now"),
    ]:
        kept, weight.data, weight.grad = weight.data, value, None
        with pytest.raises(phub.SettingsError, match=f"parameter 'second.weight' was torch.{words}"):
            optimizer.step()
        weight.data = kept
        backward(model, *data())
        optimizer.step()
    optimizer.leave()


def gradients_in_16_bits(rank, hub):
    model = Net()
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub, rank=rank, world_size=2)
    model.bfloat16()
    model(data(rank)[0].bfloat16()).float().square().mean().backward()
    gradients = [each.grad.float().numpy() for each in model.parameters()]
    optimizer.step()
    optimizer.leave()
    return [*gradients, *(each.detach().float().numpy() for each in model.parameters())]


def test_after_a_change_to_16_bits_a_script_reads_means(hub):
    for ours, theirs in zip(*in_processes(2, gradients_in_16_bits, hub.address)):
        assert (ours == theirs).all()


@pytest.mark.skipif(not hasattr(torch.utils, "swap_tensors"), reason="torch 2.3 is the first with swap_tensors")
def test_a_parameter_that_is_exchanged_is_named_at_the_step(hub):
    model = Net()
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub)
    torch.utils.swap_tensors(model.second.weight, torch.nn.Parameter(torch.ones(4, 8)))
    backward(model, *data())
    with pytest.raises(phub.torch.StateError, match="parameter 'second.weight' was exchanged for another tensor"):
        optimizer.step()
    optimizer.leave()


class Own(torch.nn.Parameter):
    """A parameter whose own class has its own functions."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.Tensor.sum:
            return "mine"
        return super().__torch_function__(function, types, args, kwargs or {})


def test_parameters_of_other_classes(hub, monkeypatch):
    model = Net()
    model.first.weight = Own(model.first.weight.data)
    held = Held(hub, monkeypatch, model)
    held.step()
    assert model.first.weight.sum() == "mine" and held.is_pushed
    assert isinstance(model.first.weight, Own)


COMPILED = {
    "a module": lambda model, compile_: compile_(model),
    "a part": lambda model, compile_: torch.nn.Sequential(model.first, torch.nn.ReLU(), compile_(model.second)),
    "in place": lambda model, compile_: (model.compile(backend=compile_.keywords["backend"]), model)[1],
    "a function": lambda model, compile_: compile_(lambda inputs: model(inputs)),
    "a function of parameters": lambda model, compile_: compile_(functional(*model.parameters())),
}


def functional(w, b, last_w, last_b):
    return lambda inputs: linear(torch.relu(linear(inputs, w, b)), last_w, last_b)


# These versions leave out a module whose parameters have another class (docs/pytorch.md).
LEAVES_OUT = (2, 5) <= tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 8)


@pytest.mark.skipif(not hasattr(torch, "compiler"), reason="NOT RUN: torch.compile came with torch 2")
@pytest.mark.parametrize("first", ["compiled", "eager"])
@pytest.mark.parametrize("what", COMPILED)
def test_compiled(hub, monkeypatch, what, first):
    testing = pytest.importorskip("torch._dynamo.testing")
    torch._dynamo.reset()
    counter = testing.CompileCounter()
    held = Held(hub, monkeypatch)
    if first == "eager":
        held.step()  # the optimizer learns in it for which parameters each module waits
    run = COMPILED[what](held.model, functools.partial(torch.compile, backend=counter))
    inputs, targets = data()
    old = run(inputs)
    for _ in range(4):
        held.is_pushed = False
        torch.nn.functional.cross_entropy(run(inputs), targets).backward()
        held.optimizer.step()
        seen = run(inputs)
        assert held.is_pushed
        held.optimizer.synchronize()
        assert torch.equal(seen, run(inputs)) and not torch.equal(seen, old)
        old = seen
    assert counter.frame_count == 1 or first == "eager" or LEAVES_OUT, "nothing is compiled again"


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch.compile came with torch 2")
def test_a_copy_without_values_has_none(hub, monkeypatch):
    """torch.compile of torch 2.4 makes such a copy of a model. It ended the process if a parameter of the copy had another class."""
    fake = pytest.importorskip("torch._subclasses.fake_tensor")
    held = Held(hub, monkeypatch)
    with fake.FakeCopyMode(fake.FakeTensorMode()):
        copied = copy.deepcopy(held.model)
    assert all(isinstance(each, fake.FakeTensor) for each in copied.parameters())
    assert not any(isinstance(each, fake.FakeTensor) for each in copy.deepcopy(held.model).parameters())


def at_the_end(rank, hub):
    """Returns the output of a script that reads parameters after each step and at its end, outside of modules."""
    torch.set_num_threads(1)
    torch.manual_seed(5)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    settings = {"rank": rank, "world_size": 3, "job": "job"}
    optimizer = phub.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters(), hub=hub, **settings
    )
    generator = torch.Generator().manual_seed(rank)
    sums = []
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(4, 64, generator=generator)).square().mean().backward()
        optimizer.step()
        sums.append(sum(each.sum().item() for each in model.parameters()))
    last = np.concatenate([each.detach().numpy().ravel().copy() for each in model.parameters()])
    optimizer.leave()
    return sums, last.tobytes()


def test_all_workers_print_the_same(hub):
    results = in_processes(3, at_the_end, hub.address)
    assert results[0] == results[1] == results[2]
    assert len(set(results[0][0])) == 10, "each step changes them"


def actor(asked, answers, kept):
    for at_value in iter(asked.recv, None):
        if at_value:
            with torch.no_grad():
                kept[0].fill_(at_value)
        answers.send([each.double().sum().item() for each in kept])


def shared_by_share_memory(model):
    model.share_memory()


def shared_by_a_queue(model):
    multiprocessing.reduction.ForkingPickler.dumps(model)  # as `Queue.put` and the arguments of a process that is spawned


@pytest.mark.parametrize("share", [shared_by_share_memory, shared_by_a_queue])
@pytest.mark.parametrize("number", [0, 2])
def test_a_process_that_shares_the_memory_has_the_values_after_a_step(hub, share, number):
    """An actor reads the parameters after each step, and writes a parameter, also before the first step."""
    context, (asked, ask), (answers, answer) = multiprocessing.get_context("fork"), *(multiprocessing.Pipe(False) for _ in range(2))
    models = Net(), Net()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in models]
    for step in range(5):
        if step == number:
            share(models[0])
            process = context.Process(target=actor, args=(asked, answer, list(models[0].state_dict().values())), daemon=True)
            process.start()
        if step == 0:
            optimizers[0] = wrap(optimizers[0], models[0], hub)
        if step:
            for model, optimizer in zip(models, optimizers):
                optimizer.zero_grad()
                backward(model, *data())
                optimizer.step()
        if step >= number:
            value = {0: 0.25, 3: 0.5}.get(step, 0.0)
            ask.send(value)
            seen = answers.recv()
            if value:
                with torch.no_grad():
                    models[1].first.weight.fill_(value)
            np.testing.assert_allclose(seen, [each.double().sum().item() for each in models[1].parameters()], rtol=1e-4, atol=1e-5)
    ask.send(None)
    process.join()
    optimizers[0].leave()
    same(*models)


def test_a_thread_that_reads_during_a_step_does_not_hide_the_new_values(hub, monkeypatch):
    """The thread has copied the values of the first step when the script makes the second step."""
    model, theirs = Net(), Net()
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub)
    backward(model, *data())
    optimizer.step()
    windows, copied, stepped = optimizer._phub._windows, threading.Event(), threading.Event()
    take = windows.take

    def take_slowly(keys, into):
        take(keys, into)
        if threading.current_thread() is reader:
            copied.set()
            stepped.wait(0.5)  # the script waits for this thread, or makes its step now

    monkeypatch.setattr(windows, "take", take_slowly)
    reader = threading.Thread(target=lambda: model.first.weight.sum())
    reader.start()
    copied.wait()
    for each in model.parameters():
        each.grad = torch.ones(each.shape)  # reads no values
    optimizer.step()
    stepped.set()
    reader.join()
    local = torch.optim.SGD(theirs.parameters(), lr=0.1)
    backward(theirs, *data())
    local.step()
    for each in theirs.parameters():
        each.grad = torch.ones_like(each)
    local.step()
    same(model, theirs)
    optimizer.leave()


@pytest.mark.parametrize("error", [None, AttributeError, RuntimeError, TypeError])
def test_writes_are_counted_in_all_versions_of_torch(monkeypatch, error):
    def increment(_tensors):  # torch 2.4 takes one tensor
        raise error("increment_version expect a Tensor as input")

    if error is not None:
        monkeypatch.setattr(torch.autograd.graph, "increment_version", increment, raising=False)
    place, count = _weights._counting()
    values = torch.ones(3)
    with torch.no_grad():
        count([place(values)])
    assert values._version == 1 and values.tolist() == [1.0] * 3
