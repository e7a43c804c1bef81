"""PyTorch below another hub and in a mesh: a script that itself gives its ranks gets the same numbers as with one hub. Machines
may have different numbers of workers."""

import concurrent.futures

import pytest
from conftest import in_processes, mesh

import phub

torch = pytest.importorskip("torch")

import phub.torch  # noqa: E402


@pytest.fixture(params=["below", "mesh"])
def machines(request, hubs):
    """Returns a function that returns the place of each worker. Its argument is a list: the number of workers of each machine."""
    if request.param == "mesh":
        yield lambda workers: [
            {"hub": hub.address, "rank": rank, "world_size": of, "mesh": mesh(hubs, number)}
            for number, (hub, of) in enumerate(zip(hubs, workers))
            for rank in range(of)
        ]
        return
    settings = {"cores": 1, "idle": "sleep", "heartbeat_limit_s": 30}
    with phub.serve(**settings) as top:
        below = [phub.serve(above=top.address, machine=f"{number}/2", **settings) for number in range(2)]
        yield lambda workers: [
            {"hub": hub.address, "rank": rank, "world_size": of} for hub, of in zip(below, workers) for rank in range(of)
        ]
        for hub in below:
            hub.stop()


def script(worker, places):
    """Trains, with rates and clipping that each worker asks for, and calls the helpers. Returns all numbers."""
    place, number = places[worker], worker
    torch.manual_seed(number)
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3))
    phub.torch.broadcast_parameters(model.state_dict(), **place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = phub.torch.DistributedOptimizer(optimizer, model, broadcast_buffers=True, **place)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    seen = []
    for step in range(5):
        inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(10 * step + number))
        optimizer.zero_grad()
        loss = model(inputs).square().sum()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) if step < 3 else torch.zeros(())
        optimizer.step()
        schedule.step()
        optimizer.param_groups[0]["weight_decay"] = 0.01 * (1 + 50 * number)  # rank 0's counts
        seen += [norm.item(), loss.item()]
    model(inputs)  # takes rank 0's buffers of the last step
    optimizer.leave()
    with phub.Session(keys={"a": (3,)}, optimizer=phub.Average(), **place) as session:
        seen += session.average({"a": [number] * 3})["a"].tolist()
    metrics = phub.torch.allreduce_metrics({"loss": 1.0 + number, "seen": number}, **place)
    values = {name: each.tolist() for name, each in model.state_dict().items() if "norm.running" not in name and "1.running" not in name}
    return [*seen, *metrics.values()], values


def compare(hub, places):
    flat = [{"hub": hub.address, "rank": rank, "world_size": len(places)} for rank in range(len(places))]
    expected = in_processes(len(places), script, flat)
    for (seen, values), (right, right_values) in zip(in_processes(len(places), script, places), expected):
        assert seen == pytest.approx(right, rel=1e-4)
        for name, each in right_values.items():
            torch.testing.assert_close(torch.tensor(values[name]), torch.tensor(each), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*clip_grad_norm_ needs the mean")
@pytest.mark.parametrize("workers", [(2, 2), (1, 1), (2, 1)])
def test_a_script_has_the_numbers_of_one_hub(hub, machines, workers):
    compare(hub, machines(workers))


def test_an_observer_below_others_needs_the_rank_among_all(machines):
    def observe(place):
        with pytest.raises(phub.SettingsError, match="observe: .* needs the rank among all workers"):
            phub.torch.observe(torch.nn.Linear(2, 2), **place)

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        list(threads.map(observe, machines((1, 1))))
