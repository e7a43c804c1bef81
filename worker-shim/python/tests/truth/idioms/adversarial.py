"""Two networks and two optimizers: GANs, and models that are trained in turns."""

import itertools

import torch

from ..context import Mlp, adam, adamw, sgd
from ..idiom import idiom


def both(ctx, make):
    """Returns a generator and a discriminator, the models to call for them, and an optimizer for each."""
    generator, discriminator = Mlp(4, 8, 6), Mlp(6, 8, 1)
    by_generator, to_generator = ctx.wrap(generator, make(generator.parameters()))
    by_discriminator, to_discriminator = ctx.wrap(discriminator, make(discriminator.parameters()))
    return generator, discriminator, by_generator, by_discriminator, to_generator, to_discriminator


def binary(outputs, label):
    return torch.nn.functional.binary_cross_entropy_with_logits(outputs, torch.full_like(outputs, label))


@idiom()
def dcgan(ctx):
    """PyTorch's example: separate backward passes for the real and the fake batch, and the fake batch is used again."""
    netG, netD, callG, callD, optimizerG, optimizerD = both(ctx, adam)
    for real, _ in ctx.batches():
        netD.zero_grad()
        errD_real = binary(callD(real), 1.0)
        errD_real.backward()
        fake = callG(real[:, :4])
        errD_fake = binary(callD(fake.detach()), 0.0)
        errD_fake.backward()
        optimizerD.step()
        netG.zero_grad()
        errG = binary(callD(fake), 1.0)
        errG.backward()
        optimizerG.step()
        ctx.record(netG, netD, errors=[errD_real, errD_fake, errG])


@idiom()
def generator_first(ctx):
    """The generator's step comes first, as in a well-known repository. The discriminator's gradients of that pass are zeroed."""
    generator, discriminator, by_generator, by_discriminator, optimizer_G, optimizer_D = both(ctx, adam)
    for real, _ in ctx.batches():
        optimizer_G.zero_grad()
        made = by_generator(real[:, :4])
        g_loss = binary(by_discriminator(made), 1.0)
        g_loss.backward()
        optimizer_G.step()
        optimizer_D.zero_grad()
        d_loss = (binary(by_discriminator(real), 1.0) + binary(by_discriminator(made.detach()), 0.0)) / 2
        d_loss.backward()
        optimizer_D.step()
        ctx.record(generator, discriminator, losses=[g_loss, d_loss])


@idiom()
def discriminator_frozen_meanwhile(ctx):
    """`set_requires_grad(D, False)` in the generator's pass, as in pix2pix."""
    generator, discriminator, by_generator, _, of_generator, of_discriminator = both(ctx, adam)
    call = ctx.parallel(discriminator, unused=True)
    for real, _ in ctx.batches():
        made = by_generator(real[:, :4])
        discriminator.requires_grad_(True)
        of_discriminator.zero_grad()
        (binary(call(real), 1.0) + binary(call(made.detach()), 0.0)).backward()
        of_discriminator.step()
        discriminator.requires_grad_(False)
        of_generator.zero_grad()
        loss = binary(discriminator(made), 1.0)
        loss.backward()
        of_generator.step()
        ctx.record(generator, discriminator, loss=loss)


@idiom()
def wgan(ctx):
    """The critic makes two steps for each step of the generator, and the critic's weights are clipped."""
    generator, critic, by_generator, by_critic, of_generator, of_critic = both(ctx, sgd)
    for step, (real, _) in enumerate(ctx.batches(6)):
        of_critic.zero_grad()
        with torch.no_grad():
            made = generator(real[:, :4])
        loss = by_critic(made).mean() - by_critic(real).mean()
        loss.backward()
        of_critic.step()
        for each in critic.parameters():
            each.data.clamp_(-0.2, 0.2)
        if step % 2:
            of_generator.zero_grad()
            critic.zero_grad()
            (-critic(by_generator(real[:, :4])).mean()).backward()
            of_generator.step()
        ctx.record(generator, critic, loss=loss)


@idiom()
def wgan_with_gradient_penalty(ctx):
    generator, critic, by_generator, by_critic, of_generator, of_critic = both(ctx, adam)
    source = torch.Generator().manual_seed(9)
    for real, _ in ctx.batches():
        made = by_generator(real[:, :4])
        share = torch.rand(len(real), 1, generator=source)
        between = (share * real + (1 - share) * made.detach()).requires_grad_(True)
        of_critic.zero_grad()
        outputs = by_critic(between)
        (slope,) = torch.autograd.grad(outputs, between, torch.ones_like(outputs), create_graph=True)
        penalty = (slope.norm(2, dim=1) - 1).pow(2).mean()
        loss = critic(made.detach()).mean() - critic(real).mean() + 10 * penalty + 0 * outputs.mean()
        loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        (-critic(made).mean()).backward()
        of_generator.step()
        ctx.record(generator, critic, loss=loss, penalty=penalty)


@idiom()
def two_optimizers_with_one_loss(ctx):
    """An encoder and a decoder, each with its optimizer, and one backward pass."""
    encoder, decoder, encode, decode, of_encoder, of_decoder = both(ctx, adamw)
    for inputs, _ in ctx.batches():
        of_encoder.zero_grad()
        of_decoder.zero_grad()
        loss = (decode(encode(inputs[:, :4])) - inputs[:, :1]).pow(2).mean()
        loss.backward()
        of_encoder.step()
        of_decoder.step()
        ctx.record(encoder, decoder, loss=loss)


@idiom()
def two_optimizers_of_one_model(ctx):
    """Biases by SGD, matrices by Adam, as repositories with several optimizers do."""
    net = Mlp()
    matrices = [each for each in net.parameters() if each.dim() > 1]
    biases = [each for each in net.parameters() if each.dim() == 1]
    model, by_adam = ctx.wrap(net, adam(matrices))
    by_sgd = ctx.also(net, sgd(biases))
    for inputs, targets in ctx.batches():
        for each in (by_adam, by_sgd):
            each.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        by_adam.step()
        by_sgd.step()
        ctx.record(net, loss=loss)


@idiom()
def two_optimizers_in_turns(ctx):
    """One model, one loss, and in each step only one of two optimizers steps."""
    net = Mlp()
    model, of_body = ctx.wrap(net, sgd([*net.first.parameters(), *net.second.parameters()]))
    of_head = ctx.also(net, adamw(net.head.parameters()))
    for step, (inputs, targets) in enumerate(ctx.batches(6)):
        net.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        (of_head if step % 2 else of_body).step()
        ctx.record(net, loss=loss)


@idiom()
def two_models_in_one_optimizer(ctx):
    """One optimizer with `itertools.chain` of the parameters of two networks, as in CycleGAN."""
    there, back = Mlp(6, 8, 6), Mlp(6, 8, 6)
    (go, come), optimizer = ctx.wrap([there, back], adam(itertools.chain(there.parameters(), back.parameters())))
    for inputs, _ in ctx.batches():
        optimizer.zero_grad()
        loss = (come(go(inputs)) - inputs).abs().mean()
        loss.backward()
        optimizer.step()
        ctx.record(there, back, loss=loss)


@idiom()
def two_models_apart(ctx):
    """Two independent trainings in one script."""
    one, other = ctx.run(), ctx.run(Mlp(6, 4, 3), adamw)
    for _ in zip(one.after_steps(), other.before_steps()):
        pass


@idiom()
def optimizers_in_a_list(ctx):
    """An optimizer for each layer."""
    net = Mlp()
    model, first = ctx.wrap(net, sgd(net.first.parameters()))
    optimizers = [first, ctx.also(net, sgd(net.second.parameters())), ctx.also(net, adamw(net.head.parameters()))]
    for inputs, targets in ctx.batches():
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        for each in optimizers:
            each.step()
            each.zero_grad()
        ctx.record(net, loss=loss)


@idiom()
def reversed_gradients(ctx):
    """Domain adaptation: a layer that reverses the sign of the gradient."""

    class Reversed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, inputs):
            return inputs.view_as(inputs)

        @staticmethod
        def backward(ctx, gradient):
            return -0.5 * gradient

    class Adapted(Mlp):
        def __init__(self):
            super().__init__()
            self.domain = torch.nn.Linear(8, 3)

        def forward(self, inputs):
            features = self.features(inputs)
            return self.head(features) + self.domain(Reversed.apply(features))

    ctx.run(Adapted()).train()
