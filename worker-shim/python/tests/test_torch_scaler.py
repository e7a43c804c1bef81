"""Torch's `GradScaler` in a job with `skip_nonfinite`: the number of calls to the hub that it needs, and the settings that are
refused. The tests of `truth` show that the numbers equal torch's."""

import re

import pytest
from conftest import in_processes

torch = pytest.importorskip("torch")
if not hasattr(torch.amp, "GradScaler"):
    pytest.skip("torch 2.3 has the first GradScaler for the processor", allow_module_level=True)

from test_torch_optimizer import Net, data, wrap  # noqa: E402

import phub.torch  # noqa: E402

STEPS = 8


def scaled(model, seed):
    return torch.nn.functional.cross_entropy(model(data(seed)[0]), data(seed)[1])


def train(rank, hub):
    """Trains with bytes that are sent ahead. Returns the calls of each step, scales, skipped rounds, whether the job that
    makes means was joined, and the parameters."""
    model = Net()
    settings = {"transport": "tcp", "chunk_bytes": 64, "skip_nonfinite": True, "rank": rank, "world_size": 2}
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub, **settings)
    calls = []
    for name in ("send_ahead", "push"):
        call = getattr(optimizer.session, name)

        def counted(*keys, call=call, name=name, **settings):
            calls[-1].append((name, bool(settings)))
            call(*keys, **settings)

        setattr(optimizer.session, name, counted)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    scales = []
    for step in range(STEPS):
        calls.append([])
        optimizer.zero_grad()
        loss = scaled(model, 2 * step + rank) * (float("inf") if step == 4 and rank == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        calls[-1].append(("pending", bool(optimizer._phub._weights.pending)))
        scaler.update()
        scales.append(scaler.get_scale())
    skipped, means = optimizer.session.skipped, optimizer._phub._gradients._mean._session
    optimizer.leave()
    return calls, scales, skipped, means is not None, [each.tolist() for each in model.parameters()]


def test_a_scaler_costs_no_exchange_of_means_and_bytes_leave_ahead(hub):
    first, second = in_processes(2, train, hub.address)
    for calls, scales, skipped, joined_means, _ in (first, second):
        assert scales == [1024.0, 1024.0, 2048.0, 2048.0, 1024.0, 1024.0, 1024.0, 2048.0]
        assert skipped == 1 and not joined_means
        assert all(("send_ahead", False) in each for each in calls)
        # Bytes that are sent ahead are multiplied by the factor of the previous step. If the scale has changed since, the push
        # sends them again.
        rewritten = [step for step, each in enumerate(calls) if ("push", True) in each]
        assert rewritten == [0, 3, 5]
        assert all(("pending", True) in each for each in calls), "step() waits for nothing"
    assert first[-1] == second[-1]


def ask_late(rank, hub):
    """Makes a step with the scaler, and then a step without it, which is skipped. Only then the scaler reads whether its own step
    was skipped. Returns the scale, and the number of skipped steps."""
    model = Net()
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub, skip_nonfinite=True, rank=rank, world_size=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    scaler.scale(scaled(model, rank)).backward()
    scaler.step(optimizer)
    optimizer.zero_grad()
    (scaled(model, rank) * float("inf")).backward()
    optimizer.step()
    scaler.update()
    optimizer.synchronize()
    skipped = optimizer.session.skipped
    optimizer.leave()
    return scaler.get_scale(), skipped


def test_a_scaler_that_asks_late_hears_of_its_own_step(hub):
    assert in_processes(2, ask_late, hub.address) == [(2048.0, 1)] * 2


def test_a_clip_by_value_is_refused(hub):
    model = Net()
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub, skip_nonfinite=True, clip_value=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(scaled(model, 0)).backward()
    with pytest.raises(phub.torch.GradientError, match=r"clip_value=1.0 .* use clip_norm"):
        scaler.step(optimizer)


def test_gradients_in_float16_are_refused(hub):
    model = Net().half()
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub, skip_nonfinite=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(sum(each.float().sum() for each in model.parameters())).backward()
    with pytest.raises(phub.torch.GradientError, match=r"'first.weight' has float16 gradients, .* torch.autocast"):
        scaler.step(optimizer)


def with_other_scales(rank, hub):
    """Trains without a scaler, and with a scale for each rank, which the hub need not know. Returns both trainings' weights."""
    found = []
    for job, scale in (("unscaled", None), ("scaled", (1024.0, 64.0)[rank])):
        model = Net()
        settings = {"skip_nonfinite": True, "rank": rank, "world_size": 2, "job": job}
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub, **settings)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, growth_interval=3, enabled=scale is not None)
        for step in range(STEPS):
            optimizer.zero_grad()
            scaler.scale(scaled(model, 2 * step + rank)).backward()
            scaler.step(optimizer)
            scaler.update()
        found.append([each.tolist() for each in model.parameters()])
        optimizer.leave()
    return found


def test_each_worker_unscales_its_own_gradients_by_its_own_scale(hub):
    (unscaled, first), (_, second) = in_processes(2, with_other_scales, hub.address)
    assert first == second == unscaled, "powers of two are exact"


def of_means(rank, hub, unscales, clip_value):
    """Has the scaler unscale means: with one scale for both ranks, and then with a scale for each rank. Returns the error."""
    model = Net()
    settings = {"rank": rank, "world_size": 2, "clip_value": clip_value}
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub, **settings)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    for number in range(4):
        optimizer.zero_grad()
        scaler.scale(scaled(model, 2 * number + rank)).backward()
        try:
            if unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
        except phub.torch.MeanError as error:
            return number, str(error)
        scaler.update(64.0 if number == 1 and rank == 1 else None)
    return None


@pytest.mark.parametrize("unscales, clip_value", [(True, None), (False, None), (True, 1e-3)])
def test_means_of_differently_scaled_gradients_are_an_error_with_both_scales(hub, unscales, clip_value):
    words = (
        r"^test_torch_scaler.py:\d+: the GradScaler of rank 0 has the scale 4096, and the GradScaler of rank 1 has the scale 64: .*"
        r"same init_scale.*skip_nonfinite=True"
    )
    for number, error in in_processes(2, of_means, hub.address, unscales, clip_value):
        assert number == 2 and re.search(words, error), error


def with_slim_dp(rank, hub):
    """Trains with Slim-DP, which sends all changes. In one step only rank 1 finds a gradient that is not finite."""
    model = Net()
    settings = {"rank": rank, "world_size": 2, "compression": phub.SlimDP(1.0, 0.5)}
    optimizer = wrap(torch.optim.AdamW(model.parameters(), lr=0.01), model, hub, **settings)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    weights = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = scaled(model, 2 * step + rank)
        scaler.scale(loss * float("inf") if (step, rank) == (4, 1) else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        weights.append([each.tolist() for each in model.parameters()])
    optimizer.leave()
    return weights, scaler.get_scale()


def test_with_slim_dp_a_skipped_step_is_still_an_exchange(hub):
    models = [Net(), Net()]
    locals_ = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in models]
    means = []
    for step in range(STEPS):
        for rank, (model, optimizer) in enumerate(zip(models, locals_)):
            optimizer.zero_grad()
            scaled(model, 2 * step + rank).backward()
            if (step, rank) != (4, 1):
                optimizer.step()
        with torch.no_grad():
            for first, second in zip(*(model.parameters() for model in models)):
                first.copy_((first + second) / 2)
                second.copy_(first)
        means.append([each.detach().clone() for each in models[0].parameters()])
    for rank, (weights, scale) in enumerate(in_processes(2, with_slim_dp, hub.address)):
        assert scale == (1024.0, 512.0)[rank]
        for seen, expected in zip(weights, means):
            torch.testing.assert_close([torch.tensor(each) for each in seen], expected, atol=1e-6, rtol=0)
