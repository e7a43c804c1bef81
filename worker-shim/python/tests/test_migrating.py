"""Scripts for Horovod, torchft's DiLoCo and MXNet's KVStore, changed as docs/migrating.md says, train with the hub."""

import os

import numpy as np
import pytest
from conftest import in_processes

import phub

torch = pytest.importorskip("torch")

import phub.torch  # noqa: E402

LOCAL_STEPS, ROUNDS = 4, 5
INNER = {"lr": 1e-2, "weight_decay": 0.01}


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


def data(rank):
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)


def step(model, optimizer, images, labels):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def close(ours, theirs):
    for our, their in zip(ours, theirs):
        np.testing.assert_allclose(our, their, rtol=0, atol=2e-6)


def arrays(model):
    return [parameter.detach().numpy().copy() for parameter in model.parameters()]


def horovod(rank, hub):
    os.environ.update({"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": "2", "PHUB_HUB": hub, "PHUB_JOB": "horovod"})
    os.environ.update({"HOROVOD_LOCAL_RANK": str(rank), "HOROVOD_LOCAL_SIZE": "2"})
    me = phub.worker()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = phub.torch.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    losses = [step(model, optimizer, *data(me.rank)) for _ in range(ROUNDS)]
    mean = phub.torch.allreduce_metrics({"loss": losses[-1]})["loss"]
    return (me.rank, me.world_size), arrays(model), losses[-1], mean


def test_a_script_of_horovod(hub):
    results = in_processes(2, horovod, hub.address)
    assert [place for place, *_ in results] == [(0, 2), (1, 2)]
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images, labels = (torch.cat(both) for both in zip(data(0), data(1)))
    for _ in range(ROUNDS):
        step(model, optimizer, images, labels)
    for _, ours, _, mean in results:
        close(ours, arrays(model))
        assert mean == pytest.approx((results[0][2] + results[1][2]) / 2)


def local_steps(rank, hub, outer):
    model = network()
    inner = torch.optim.AdamW(model.parameters(), **INNER)
    keys = dict(model.named_parameters())
    first = {name: parameter.detach().numpy() for name, parameter in keys.items()}
    with phub.Session(hub, rank, 2, keys=first, optimizer=outer, job="local") as session:
        session.broadcast(first)
        for _ in range(ROUNDS):
            for _ in range(LOCAL_STEPS):
                step(model, inner, *data(rank))
            for name, parameter in keys.items():
                session.gradient(name)[...] = session.weights(name) - parameter.detach().numpy()
                session.push(name)
            for name, parameter in keys.items():
                session.wait(name)
                with torch.no_grad():
                    parameter.copy_(torch.from_numpy(session.weights(name).copy()))
    return arrays(model)


@pytest.mark.parametrize(
    "ours, theirs",
    [(phub.Nesterov(0.7, 0.9), {"lr": 0.7, "momentum": 0.9, "nesterov": True}), (phub.Sgd(1.0), {"lr": 1.0})],
    ids=["diloco", "local sgd"],
)
def test_local_steps(hub, ours, theirs):
    """Outer steps with the mean of all workers' changes give the same weights as the same steps in one process."""
    outer = network()
    optimizer = torch.optim.SGD(outer.parameters(), **theirs)
    models = [network() for _ in range(2)]
    inner = [torch.optim.AdamW(model.parameters(), **INNER) for model in models]
    for _ in range(ROUNDS):
        for rank, model in enumerate(models):
            for _ in range(LOCAL_STEPS):
                step(model, inner[rank], *data(rank))
        for parameter, *local in zip(outer.parameters(), *(model.parameters() for model in models)):
            parameter.grad = parameter.detach() - sum(each.detach() for each in local) / len(models)
        optimizer.step()
        for model in models:
            model.load_state_dict(outer.state_dict())
    for weights in in_processes(2, local_steps, hub.address, ours):
        close(weights, arrays(outer))


def kvstore(rank, hub):
    os.environ.update({"DMLC_WORKER_ID": str(rank), "DMLC_NUM_WORKER": "2", "PHUB_JOB": "kvstore"})
    host, port = hub.rsplit(":", 1)
    os.environ.update({"DMLC_PS_ROOT_URI": host, "DMLC_PS_ROOT_PORT": port})
    pulled = []
    with phub.Session(keys={"3": (2, 3)}, optimizer=phub.Sgd(0.1)) as session:  # kv.create, kv.set_optimizer
        session.broadcast({"3": np.ones((2, 3))})  # kv.init
        for value in (1, 2):
            session.gradient("3")[...] = value * (rank + 1)
            session.push("3")  # kv.push
            session.wait("3")  # kv.pull
            pulled.append(session.weights("3").copy())
    return pulled


def test_a_script_of_kvstore(hub):
    """The hub makes steps with the mean, which is 1.5 and then 3. MXNet's dist_sync would give the sum to its optimizer."""
    for pulled in in_processes(2, kvstore, hub.address):
        np.testing.assert_allclose(pulled[0], np.full((2, 3), 1 - 0.1 * 1.5), rtol=1e-6)
        np.testing.assert_allclose(pulled[1], np.full((2, 3), 1 - 0.1 * 4.5), rtol=1e-6)


def asynchronous(rank, hub):
    with phub.Session(hub, rank, 2, keys={"3": (4,)}, optimizer=phub.Sgd(1.0), consistency="asp", job="async") as session:
        session.broadcast({"3": np.zeros(4)})
        for _ in range(3 * (rank + 1)):  # no worker waits for the other
            session.push_pull("3", np.full(4, -1.0))
        return session.weights("3")[0]


def test_dist_async_is_asp(hub):
    """Each push is a step. One worker makes three steps, and the other worker makes six steps. The worker that ends last gets the
    weights after nine steps."""
    assert max(in_processes(2, asynchronous, hub.address)) == 9
