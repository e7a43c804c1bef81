//! The one-process run. It computes every worker's gradient, sums the gradients in worker order, and steps with
//! the oracle. The oracle is a plain optimizer that handles one element after another. The run uses no hub, no
//! chunk, no kernel and no other process.

use pbox_core::{KeyId, Round, oracle};

use super::network::{Network, NetworkPass};
use super::plan::TrainingPlan;
use super::samples::Samples;
use super::shard::Shard;
use super::weights::Weights;

/// Trains on `shards`, and sums their gradients in this order. Returns the last weights.
pub fn one_process(plan: &TrainingPlan, network: &Network, shards: &mut [Shard]) -> Weights {
    let mut weights = Weights::first(network, plan.seed);
    let mut state = Weights::zeroed(network);
    let mut gradients = vec![Weights::zeroed(network); shards.len()];
    let mut pass = NetworkPass::new(network);
    // The first round of the hub is the broadcast.
    let mut hub_round = Round(0);
    for epoch in 0..plan.epochs {
        shards.iter_mut().for_each(|shard| shard.begin_epoch(epoch));
        for round in 0..plan.rounds_per_epoch {
            for (shard, gradients) in shards.iter().zip(&mut gradients) {
                gradients_of(&mut pass, &shard.batch(round), &weights, gradients);
            }
            hub_round = hub_round.next();
            step(plan, network, (epoch, hub_round), &gradients, &mut weights, &mut state);
        }
    }
    weights
}

fn gradients_of(pass: &mut NetworkPass, batch: &Samples, weights: &Weights, gradients: &mut Weights) {
    let layers = pass.network().layers();
    pass.begin(batch);
    for layer in 0..layers {
        pass.forward(layer, weights.key(Network::weight(layer)), weights.key(Network::bias(layer)));
    }
    pass.loss(batch.labels());
    for layer in (0..layers).rev() {
        pass.backward(layer, weights.key(Network::weight(layer)));
        pass.weight_gradient(layer, gradients.key_mut(Network::weight(layer)));
        pass.bias_gradient(layer, gradients.key_mut(Network::bias(layer)));
    }
}

fn step(
    plan: &TrainingPlan,
    network: &Network,
    (epoch, round): (u32, Round),
    gradients: &[Weights],
    weights: &mut Weights,
    state: &mut Weights,
) {
    let (optimizer, rate) = (plan.optimizer(), plan.learning_rate(epoch));
    for (id, key) in network.keys().iter().enumerate() {
        let id = KeyId(id as u32);
        let step = oracle::Step::new(&optimizer, plan.workers, round, rate, key.lr_mult, key.wd_mult);
        let elements = weights.key_mut(id).iter_mut().zip(state.key_mut(id));
        for (element, (weight, state)) in elements.enumerate() {
            let sum = oracle::sum(gradients.iter().map(|worker| worker.key(id)[element]));
            oracle::step(&optimizer, &step, sum, weight, std::slice::from_mut(state));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting() -> (TrainingPlan, Network, Vec<Shard>) {
        let inputs = (0..240).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
        let samples = Samples::new(3, inputs, (0..80).map(|i| usize::from(i % 3 == 0)).collect());
        let plan = TrainingPlan::new(4, 3, 16, 2, samples.len()).unwrap();
        let shards = (0..plan.workers).map(|rank| Shard::new(&plan, &samples, rank)).collect();
        (plan, Network::new([3, 6, 2]), shards)
    }

    #[test]
    fn the_weights_repeat() {
        let (plan, network, mut shards) = setting();
        let first = one_process(&plan, &network, &mut shards);
        let again = one_process(&plan, &network, &mut shards);
        assert_eq!(first.difference(&again, &network), None);
        assert_ne!(first, Weights::first(&network, plan.seed));
    }

    #[test]
    fn the_order_of_the_workers_shows_in_the_bits() {
        let (plan, network, mut shards) = setting();
        let in_order = one_process(&plan, &network, &mut shards);
        shards.reverse();
        let reversed = one_process(&plan, &network, &mut shards);
        assert!(in_order.difference(&reversed, &network).is_some());
    }
}
