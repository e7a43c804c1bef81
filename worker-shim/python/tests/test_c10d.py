"""torch.distributed's backend "phub": the operations of the hub, the operations of gloo, and the end. Needs torch 2.4."""

import datetime
import inspect
import os
import signal
import time

import pytest
from conftest import in_processes

torch = pytest.importorskip("torch")
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 4):
    pytest.skip(f"phub.c10d needs torch 2.4 or later, and this is {torch.__version__}", allow_module_level=True)

import models  # noqa: E402
import torch.distributed as dist  # noqa: E402

import phub.c10d  # noqa: E402
from phub.torch._means import pieces  # noqa: E402


def begin(store, rank, world_size, hub, backend="phub"):
    if hub is not None:
        os.environ["PHUB_HUB"] = hub
    dist.init_process_group(backend, f"file://{store}", rank=rank, world_size=world_size)


def test_pieces_cover_a_tensor():
    for elements in [1, 255, 256, 257, 1000, (1 << 17) + 1, (1 << 18) - 1, 1 << 18, 7_000_001]:
        cut = list(pieces(elements))
        assert sum(used for _, used in cut) == elements
        assert all(used <= size and (2 * used > size or size == 256) for size, used in cut)


def shapes_and_types(rank, store, world_size, hub):
    begin(store, rank, world_size, hub)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        # The largest tensor has more elements than all keys together, so that keys are used again.
        for shape in ((), (1,), (7, 5), (300_001,), (5_000_000,)):
            for op, times in ((dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, world_size)):
                ones = torch.arange(torch.Size(shape).numel()).remainder(8).reshape(shape).to(dtype)
                tensor = ones * (rank + 1)
                dist.all_reduce(tensor, op=op)
                assert torch.equal(tensor, ones * (sum(range(1, world_size + 1)) / times)), (dtype, shape, op)
    turned = torch.arange(6.0).reshape(2, 3).t()
    assert not turned.is_contiguous()
    dist.all_reduce(turned)
    assert torch.equal(turned, torch.arange(6.0).reshape(2, 3).t() * world_size)
    works = [dist.all_reduce(torch.full((100_000,), float(number)), async_op=True) for number in range(30)]
    for number, work in reversed(list(enumerate(works))):
        work.wait()
        assert work.is_completed() and work.get_future().value()[0].max() == number * world_size
    by_hub = phub.c10d.counts()
    assert by_hub["hub"] == {"allreduce": 3 * 5 * 2 + 1 + 30} and "allreduce" not in by_hub["gloo"], by_hub
    dist.destroy_process_group()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_sums_and_means_of_all_shapes_go_by_the_hub(hub, tmp_path, world_size):
    in_processes(world_size, shapes_and_types, tmp_path / "store", world_size, hub.address)


def in_inference_mode(rank, store, hub):
    begin(store, rank, 2, hub)
    with torch.inference_mode():  # as in an evaluation, whose metrics are means
        kinds = [torch.ones(3), torch.ones(2, 3).t(), torch.ones(300_001), torch.ones(3, dtype=torch.int64)]
        for ones in kinds:
            for op, sum_ in ((dist.ReduceOp.SUM, 4.0), (dist.ReduceOp.AVG, 2.0)):
                tensor = ones.clone() * (1 + 2 * rank)
                dist.all_reduce(tensor, op=op)
                assert tensor.unique().tolist() == [sum_], (ones.dtype, ones.shape, op)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return tensor.tolist()


def test_tensors_of_inference_mode(hub, tmp_path):
    assert in_processes(2, in_inference_mode, tmp_path / "store", hub.address) == [[2.0] * 3] * 2


def without_store(rank, store, hub):
    """Gives a store only to a group of torch's own class, as torch 2.9 does."""
    kind = phub.c10d._Group
    make = kind.__init__

    def of_torch_2_9(group, *arguments):
        if type(group) is not kind and isinstance(arguments[0], dist.Store):
            raise TypeError("construction failed: returned holder-wrapped instance is not an alias instance")
        make(group, *arguments)

    kind.__init__ = of_torch_2_9
    return in_inference_mode(rank, store, hub)


@pytest.mark.skipif(bool(phub.c10d._OPTIONS), reason="groups of torch 2.4 need a store, for their options")
def test_a_group_without_a_store(hub, tmp_path):
    assert in_processes(2, without_store, tmp_path / "store", hub.address) == [[2.0] * 3] * 2


def other_sizes(rank, store, world_size, hub, sizes, op):
    begin(store, rank, world_size, hub)
    try:
        dist.all_reduce(torch.ones(sizes[rank]), op=op)
    except phub.OrderError as error:
        assert f"rank {rank} has another number of elements" in str(error), error
        return
    assert sizes[rank] in (256, 1 << 18), "only a tensor that fills its key may find nothing"


@pytest.mark.parametrize("sizes", [(5, 3, 5), (256, 200, 256), (1 << 18, 1 << 18, (1 << 18) - 1)], ids=str)
@pytest.mark.parametrize("op", [dist.ReduceOp.SUM, dist.ReduceOp.AVG], ids=["sum", "mean"])
def test_tensors_of_different_sizes_are_an_error(hub, tmp_path, sizes, op):
    in_processes(3, other_sizes, tmp_path / "store", 3, hub.address, sizes, op)


def the_rest(rank, store, world_size, hub):
    begin(store, rank, world_size, hub)
    number = torch.tensor([rank + 1])
    dist.all_reduce(number)
    mean = torch.tensor([rank * 3 + 2])
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    assert mean.item() == 3, "7 / 2, toward zero"
    highest = torch.tensor([float(rank)])
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    double = torch.tensor([0.5], dtype=torch.float64)
    dist.all_reduce(double)
    sparse = torch.sparse_coo_tensor([[rank]], [1.0], (world_size,))
    dist.all_reduce(sparse)
    first = torch.tensor([float(rank + 5)])
    dist.broadcast(first, 0)
    gathered = [torch.zeros(1) for _ in range(world_size)]
    dist.all_gather(gathered, torch.tensor([float(rank)]))
    objects = [None] * world_size
    dist.all_gather_object(objects, {"rank": rank})
    dist.barrier()
    by_gloo, limit = dist.new_group(backend="gloo"), datetime.timedelta(seconds=30)
    dist.monitored_barrier(by_gloo, timeout=limit)
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 15):
        dist.monitored_barrier(timeout=limit)
        assert phub.c10d.counts()["gloo"]["monitored_barrier"] == 1
    else:
        with pytest.raises(ValueError, match="monitored_barrier"):
            dist.monitored_barrier(timeout=limit)
    assert (number.item(), highest.item(), double.item(), first.item()) == (3, 1.0, 1.0, 5.0)
    assert sparse.to_dense().tolist() == [1.0, 1.0]
    assert [each.item() for each in gathered] == [0.0, 1.0] and objects == [{"rank": 0}, {"rank": 1}]
    for members in ([0], [0, 1]):
        group = dist.new_group(members)
        if rank in members:
            ones = torch.ones(3)
            dist.all_reduce(ones, group=group)
            assert ones.tolist() == [len(members)] * 3
    counts = phub.c10d.counts()
    dist.destroy_process_group()
    assert counts["hub"] == {}
    assert counts["gloo"]["allreduce"] == 5 and counts["gloo"]["broadcast"] == 1 and counts["gloo"]["barrier"] == 1
    assert counts["gloo"]["new_group"] == (2 if rank == 0 else 1), counts  # a group of another backend is not counted


def test_gloo_takes_the_rest(hub, tmp_path):
    in_processes(2, the_rest, tmp_path / "store", 2, hub.address)


def twice(rank, store, world_size):
    for number in range(2):
        begin(f"{store}-{number}", rank, world_size, None)  # rank 0 starts the hub, and writes its address to the store
        tensor = torch.ones(10)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [2.0] * 10
        dist.destroy_process_group()
    return phub.c10d.counts()["hub"]


def test_a_group_can_be_made_again_and_rank_0_starts_the_hub(tmp_path):
    assert in_processes(2, twice, tmp_path / "store", 2) == [{"allreduce": 2}] * 2


def in_a_store(rank, port, hub, is_restart):
    os.environ["PHUB_HUB"] = hub
    if is_restart and rank == 0:
        time.sleep(1)  # so that rank 1 looks first, and finds what the former rank 0 wrote
    store, limit = dist.TCPStore("127.0.0.1", port, is_master=False), datetime.timedelta(seconds=30)
    dist.init_process_group("phub", store=store, rank=rank, world_size=2, timeout=limit)
    for group in (None, dist.new_group([0, 1])):
        tensor = torch.ones(10)
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [2.0] * 10
    dist.destroy_process_group()


def test_a_restart_in_the_same_store_reads_nothing_of_the_attempt_before(hub):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for is_restart in (False, True):
        in_processes(2, in_a_store, store.port, hub.address, is_restart)


def train(rank, backend, kind, store, world_size, hub):
    begin(store, rank, world_size, hub, backend)
    model = torch.nn.parallel.DistributedDataParallel(models.fresh(kind), bucket_cap_mb=0.01)
    optimizer = models.optimizer_of(kind, model)
    losses = []
    for inputs, targets in models.batches(kind, 10, rank, world_size):
        optimizer.zero_grad()
        loss = models.loss_of(model, inputs, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    counts = phub.c10d.counts()["hub"]
    dist.destroy_process_group()
    return losses, models.digest(model), counts.get("allreduce", 0)


@pytest.mark.parametrize("kind, world_size", [("cnn", 1), ("cnn", 2), ("transformer", 2), ("cnn", 3)])
def test_ddp_learns_as_with_gloo(hub, tmp_path, kind, world_size):
    gloo = in_processes(world_size, train, "gloo", kind, tmp_path / "gloo", world_size, None)
    ours = in_processes(world_size, train, "phub", kind, tmp_path / "phub", world_size, hub.address)
    for (by_gloo, _, none), (by_hub, digest, calls) in zip(gloo, ours):
        assert by_hub == pytest.approx(by_gloo, rel=1e-4)
        assert digest == ours[0][1], "all workers end with the same bits"
        assert none == 0 and calls >= 1 + 9 * 2, "one bucket at first, then several, and all go by the hub"


def lose_one(rank, store, hub, how):
    begin(store, rank, 2, hub)
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    if how == "sum":
        with pytest.raises(phub.Error, match="rank 1|worker 1"):
            for _ in range(2):
                dist.all_reduce(tensor)
    else:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4), init_sync=False)
        with pytest.raises(RuntimeError, match="JobFailedError|PeerLeftError"):
            model(torch.ones(4)).sum().backward()
    dist.destroy_process_group()
    return time.monotonic() - began


HAS_INIT_SYNC = "init_sync" in inspect.signature(torch.nn.parallel.DistributedDataParallel).parameters


@pytest.mark.parametrize(
    "how", ["sum", pytest.param("ddp", marks=pytest.mark.skipif(not HAS_INIT_SYNC, reason="needs DDP's init_sync"))]
)
def test_a_killed_worker_is_named(hub, tmp_path, how):
    with pytest.raises(AssertionError, match="rank 1: it ended without a word, status -9") as failed:
        in_processes(2, lose_one, tmp_path / "store", hub.address, how)
    assert failed.value.args[0].startswith("rank 1"), "rank 0 saw the error that it expects"


