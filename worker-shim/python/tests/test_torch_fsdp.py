"""FSDP2 within each of two replicas, with the hub's means over the replicas."""

import pytest
from conftest import in_processes

torch = pytest.importorskip("torch")
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 7):
    pytest.skip(f"set_all_reduce_hook needs torch 2.7 or later, and this is {torch.__version__}", allow_module_level=True)

import phub.torch  # noqa: E402

REPLICAS, SHARDS, STEPS, RATE = 2, 2, 5, 0.1


def net():
    torch.manual_seed(3)
    layers = [torch.nn.Linear(6, 7), torch.nn.Tanh(), torch.nn.Linear(7, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)]
    return torch.nn.Sequential(*layers)  # 7, 5 and 3 rows, so FSDP pads the last shards


def rows(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, 6, generator=generator), torch.randint(0, 3, (4,), generator=generator)


def gradients(model, step, rank):
    inputs, targets = rows(step, rank)
    return torch.autograd.grad(torch.nn.functional.cross_entropy(model(inputs), targets), list(model.parameters()))


def by_hand():
    """Returns the weights of one process, which adds the gradients in the order of FSDP and the hub."""
    model = net()
    for step in range(STEPS):
        each = [gradients(model, step, rank) for rank in range(REPLICAS * SHARDS)]
        with torch.no_grad():
            for number, parameter in enumerate(model.parameters()):
                replicas = [(each[first][number] + each[first + 1][number]) / SHARDS for first in (0, SHARDS)]
                parameter.sub_((replicas[0] + replicas[1]) / REPLICAS, alpha=RATE)
    return [each.detach() for each in model.parameters()]


def sharded(rank, hub, file, are_together):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{file}", rank=rank, world_size=REPLICAS * SHARDS)
    mesh = init_device_mesh("cpu", (REPLICAS, SHARDS), mesh_dim_names=("replica", "shard"))
    model = net()
    for layers in [[model[0]], [model[2], model[4]]] if are_together else [model[0], model[2]]:
        fully_shard(layers, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    replicas = phub.torch.Replicas(model, mesh["replica"], hub=hub, job="fsdp")
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = rows(step, rank)
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    keys = replicas.session.keys
    replicas.leave()
    whole = [each.full_tensor().detach() for each in model.parameters()]
    torch.distributed.destroy_process_group()
    return keys, [each.numpy() for each in whole]


@pytest.mark.parametrize("are_together", [False, True], ids=["each_layer", "two_layers_together"])
def test_replicas_of_shards_have_the_bits_of_the_sums_by_hand(hub, tmp_path, are_together):
    expected = by_hand()
    results = in_processes(REPLICAS * SHARDS, sharded, hub.address, tmp_path / "store", are_together)
    for rank, (keys, weights) in enumerate(results):
        assert sorted(keys) == sorted(f"{name}/{rank % SHARDS}" for name, _ in net().named_parameters())
        for ours, theirs in zip(weights, expected):
            assert torch.equal(torch.from_numpy(ours), theirs)


def test_a_model_that_is_not_sharded_is_refused(hub):
    with pytest.raises(phub.SettingsError, match="call fully_shard on the model before"):
        phub.torch.Replicas(net(), None, hub=hub)
    with pytest.raises(phub.SettingsError, match="give hub='host:port', or set PHUB_HUB"):
        phub.torch.Replicas(net(), None)
