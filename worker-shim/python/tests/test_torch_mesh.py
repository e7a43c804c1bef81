"""PyTorch in a mesh of two machines with one worker each. A script gets the same numbers as with two workers of one hub, although
each worker is rank 0 of 1 on its machine."""

import concurrent.futures

import pytest
from conftest import in_processes, mesh

torch = pytest.importorskip("torch")

import phub.torch  # noqa: E402
from phub.torch._pushes import SCALES, _check_scales, _own_scale, scales_key  # noqa: E402


def meshed(hubs):
    return [{"hub": hub.address, "rank": 0, "world_size": 1, "mesh": mesh(hubs, i)} for i, hub in enumerate(hubs)]


class Branches(torch.nn.Module):
    """A frozen layer and a BatchNorm, and then one of two branches."""

    def __init__(self):
        super().__init__()
        self.frozen = torch.nn.Linear(6, 6).requires_grad_(False)
        self.norm = torch.nn.BatchNorm1d(6)
        self.branches = torch.nn.ModuleList([torch.nn.Linear(6, 3), torch.nn.Linear(6, 3)])

    def forward(self, inputs, branch):
        return self.branches[branch](self.norm(self.frozen(inputs)))


def script(machine, places):
    """Trains. The machines begin with different weights, clip the mean, later leave a branch out, and set different rates. Returns the
    norms of gradients, the losses, and all values at the end."""
    torch.manual_seed(machine)
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = phub.torch.DistributedOptimizer(optimizer, model, job="job", broadcast_buffers=True, **places[machine])
    seen = []
    for step in range(5):
        inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(2 * step + machine))
        optimizer.zero_grad()
        loss = model(inputs, 0 if step < 3 else machine).square().sum()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) if step < 3 else torch.zeros(())
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.05 * (1 + 9 * machine)  # rank 0's counts
        seen.append((norm.item(), loss.item()))
    model(inputs, 0)  # takes rank 0's buffers of the last step
    optimizer.leave()
    return seen, {name: each.tolist() for name, each in model.state_dict().items() if "norm.running" not in name}


@pytest.mark.filterwarnings("ignore:.*clip_grad_norm_ needs the mean")
def test_a_script_has_the_numbers_of_one_hub(hub, hubs):
    flat = [{"hub": hub.address, "rank": rank, "world_size": 2} for rank in range(2)]
    expected = in_processes(2, script, flat)
    for (seen, values), (right, right_values) in zip(in_processes(2, script, meshed(hubs)), expected):
        assert [each for pair in seen for each in pair] == pytest.approx([each for pair in right for each in pair], rel=1e-5)
        for name, each in right_values.items():
            torch.testing.assert_close(torch.tensor(values[name]), torch.tensor(each), rtol=1e-5, atol=1e-6)


def helpers(machine, places):
    tensors = {"half": torch.tensor([1.5 + machine, -0.0]), "whole": torch.tensor([7 + machine, -1])}
    phub.torch.broadcast_parameters(tensors, **places[machine])
    metrics = phub.torch.allreduce_metrics({"loss": 1.0 + machine, "seen": 2.0**23 + 1}, **places[machine])
    return {name: each.tolist() for name, each in tensors.items()}, metrics


def test_helpers_give_the_first_machines_tensors_and_means_of_all(hubs):
    for tensors, metrics in in_processes(2, helpers, meshed(hubs)):
        assert tensors == {"half": [1.5, 0.0], "whole": [7, -1]}
        assert metrics == {"loss": 1.5, "seen": 2.0**23 + 1}


@pytest.mark.parametrize("scales, is_error", [((1024.0, 1024.0), False), ((1024.0, 1056.0), True), ((1024.0, None), False)])
def test_scalers_of_two_machines_have_one_scale(hubs, scales, is_error):
    def worker(machine):
        place = meshed(hubs)[machine]
        with phub.Session(keys={"other": (2,)}, optimizer=phub.Average(), job="first", **place) as first:
            keys = {SCALES: scales_key(first)}
        with phub.Session(keys=keys, optimizer=phub.Average(), job="job", **place) as session:
            assert not session.is_alone and session.is_first == (machine == 0)
            own = _own_scale(session, None if scales[machine] is None else torch.tensor(1 / scales[machine]))
            if own is None:
                session.push_nothing(SCALES)
            else:
                session.gradient(SCALES)[:] = own.numpy()
                session.push(SCALES)
            session.wait()
            try:
                _check_scales(session)
            except phub.torch.MeanError as error:
                return str(error)
        return None

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        for error in threads.map(worker, range(2)):
            assert (error is not None) == is_error, error
            assert error is None or "workers on different machines have different scales, whose mean is 1040" in error


def test_observers_of_machines_need_their_ranks_among_all(hubs):
    with pytest.raises(phub.SettingsError, match="observe: mesh=.* needs the rank among all workers: init_process_group"):
        phub.torch.observe(torch.nn.Linear(2, 2), **meshed(hubs)[0])
