"""Reinforcement learning: returns, target networks, several epochs with one batch."""

import copy

import torch

from ..context import Mlp, adam, adamw, sgd
from ..idiom import idiom


def actions(ctx, logits):
    """Draws actions, with random numbers that are the same in each mode of the run."""
    return (logits.detach() + 0.1).argmax(1)


@idiom()
def reinforce(ctx):
    """REINFORCE: the returns of an episode, and one step at its end."""
    run = ctx.run(make=adam)
    for states, rewards in ctx.batches():
        losses, value = [], 0.0
        for state, reward in zip(states, rewards):
            logits = run.net(state[None]) if ctx.world == 1 else run.model(state[None])
            value = reward + 0.9 * value
            losses.append(-torch.log_softmax(logits, 1)[0, actions(ctx, logits)[0]] * value)
            if ctx.world > 1:
                break  # DDP allows only one forward pass for each backward pass
        run.optimizer.zero_grad()
        loss = torch.stack(losses).sum()
        loss.backward()
        run.optimizer.step()
        ctx.record(run.net, loss=loss)


@idiom()
def hard_target_network(ctx):
    """DQN: in every second step the target network gets the policy's weights."""
    run = ctx.run(make=adamw)
    target = copy.deepcopy(run.net)
    for step, (states, chosen) in enumerate(ctx.batches(6)):
        with torch.no_grad():
            wanted = 0.5 + 0.9 * target(states).max(1).values
        run.optimizer.zero_grad()
        loss = torch.nn.functional.smooth_l1_loss(run.model(states).gather(1, chosen[:, None])[:, 0], wanted)
        loss.backward()
        torch.nn.utils.clip_grad_value_(run.net.parameters(), 0.05)
        run.optimizer.step()
        if step % 2:
            target.load_state_dict(run.net.state_dict())
        ctx.record(run.net, target, loss=loss)


@idiom()
def soft_target_network(ctx):
    """Polyak averages by `state_dict`, as in PyTorch's tutorial."""
    run = ctx.run(make=adamw)
    target = copy.deepcopy(run.net)
    for states, chosen in ctx.batches():
        with torch.no_grad():
            wanted = 0.5 + 0.9 * target(states).max(1).values
        run.optimizer.zero_grad()
        loss = (run.model(states).gather(1, chosen[:, None])[:, 0] - wanted).pow(2).mean()
        loss.backward()
        for each in run.net.parameters():
            each.grad.data.clamp_(-1, 1)
        run.optimizer.step()
        kept, new = target.state_dict(), run.net.state_dict()
        for name in new:
            kept[name] = new[name] * 0.1 + kept[name] * 0.9
        target.load_state_dict(kept)
        ctx.record(run.net, target, loss=loss)


@idiom()
def polyak_by_data(ctx):
    """Spinning Up's way, with `mul_` and `add_` on `data`."""
    run = ctx.run(make=adam)
    target = copy.deepcopy(run.net)
    for each in target.parameters():
        each.requires_grad = False
    for _ in run.after_steps():
        with torch.no_grad():
            for ours, theirs in zip(run.net.parameters(), target.parameters()):
                theirs.data.mul_(0.9)
                theirs.data.add_(0.1 * ours.data)
        ctx.record(target)


@idiom()
def proximal_policy(ctx):
    """PPO: several epochs with one batch, clipping by the norm, and an early stop by the divergence."""
    run = ctx.run(make=adam)
    for states, chosen in ctx.batches(3):
        with torch.no_grad():
            old = torch.log_softmax(run.net(states), 1).gather(1, chosen[:, None])
        for _ in range(4):
            new = torch.log_softmax(run.model(states), 1).gather(1, chosen[:, None])
            ratio = (new - old).exp()
            loss = -torch.min(ratio, ratio.clamp(0.9, 1.1)).mean()
            run.optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(run.net.parameters(), 0.5)
            run.optimizer.step()
            ctx.record(run.net, loss=loss, norm=norm)
            if ctx.mean((old - new.detach()).mean()) > 0.02:
                break


@idiom()
def actor_and_critic(ctx):
    actor, critic = Mlp(6, 8, 3), Mlp(6, 8, 1)
    act, of_actor = ctx.wrap(actor, adam(actor.parameters()))
    judge, of_critic = ctx.wrap(critic, sgd(critic.parameters()))
    for states, chosen in ctx.batches():
        values = judge(states)[:, 0]
        advantage = chosen.float() - values.detach()
        of_critic.zero_grad()
        loss = (values - chosen.float()).pow(2).mean()
        loss.backward()
        of_critic.step()
        of_actor.zero_grad()
        (-(torch.log_softmax(act(states), 1).gather(1, chosen[:, None])[:, 0] * advantage).mean()).backward()
        of_actor.step()
        ctx.record(actor, critic, loss=loss)


@idiom()
def temperature(ctx):
    """SAC: a single number, the temperature, has its own optimizer."""

    class Temperature(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.log_alpha = torch.nn.Parameter(torch.zeros(()))

        def forward(self, entropy):
            return -(self.log_alpha * (entropy - 0.5)).mean()

    policy, alpha = Mlp(), Temperature()
    act, of_policy = ctx.wrap(policy, adam(policy.parameters()))
    call, of_alpha = ctx.wrap(alpha, adam(alpha.parameters()))
    for states, chosen in ctx.batches():
        logs = torch.log_softmax(act(states), 1)
        entropy = -(logs.exp() * logs).sum(1)
        loss = torch.nn.functional.nll_loss(logs, chosen) - alpha.log_alpha.exp().detach() * entropy.mean()
        of_policy.zero_grad()
        loss.backward()
        of_policy.step()
        of_alpha.zero_grad()
        call(entropy.detach()).backward()
        of_alpha.step()
        ctx.record(policy, alpha, loss=loss)


@idiom()
def replayed_twice(ctx):
    """TD3: one optimizer has two critics, whose smaller value counts. The actor steps after every second batch."""
    critics, actor = torch.nn.ModuleList([Mlp(6, 8, 1), Mlp(6, 8, 1)]), Mlp(6, 8, 6)
    calls, of_critics = ctx.wrap(list(critics), adamw(critics.parameters()))
    act, of_actor = ctx.wrap(actor, adamw(actor.parameters()))
    target = copy.deepcopy(critics)
    for step, (states, rewards) in enumerate(ctx.batches(6)):
        with torch.no_grad():
            wanted = rewards[:, None] + 0.9 * torch.min(*(each(states) for each in target))
        loss = sum((call(states) - wanted).pow(2).mean() for call in calls)
        of_critics.zero_grad()
        loss.backward()
        of_critics.step()
        if step % 2:
            of_actor.zero_grad()
            (-critics[0](states + act(states)).mean()).backward()
            of_actor.step()
            with torch.no_grad():
                for ours, theirs in zip(critics.parameters(), target.parameters()):
                    theirs.lerp_(ours, 0.1)
        ctx.record(critics, actor, target, loss=loss)
