//! Tests of the network's derivatives against differences of its loss.

use super::*;
use crate::Weights;

fn batch() -> Samples {
    let inputs = (0..12).map(|i| ((i * 7) % 11) as f32 / 5.0 - 1.0).collect();
    Samples::new(3, inputs, vec![0, 1, 1, 0])
}

fn loss(network: &Network, weights: &Weights) -> f32 {
    let mut pass = NetworkPass::new(network);
    run_forward(&mut pass, weights);
    pass.loss(batch().labels())
}

fn run_forward(pass: &mut NetworkPass, weights: &Weights) {
    pass.begin(&batch());
    for layer in 0..pass.network.layers() {
        pass.forward(layer, weights.key(Network::weight(layer)), weights.key(Network::bias(layer)));
    }
}

#[test]
fn gradients_are_the_slopes_of_the_loss() {
    let network = Network::new([3, 5, 4, 2]);
    let mut weights = Weights::first(&network, 5);
    let mut pass = NetworkPass::new(&network);
    run_forward(&mut pass, &weights);
    pass.loss(batch().labels());
    let mut gradients = Weights::zeroed(&network);
    for layer in (0..network.layers()).rev() {
        pass.backward(layer, weights.key(Network::weight(layer)));
        pass.weight_gradient(layer, gradients.key_mut(Network::weight(layer)));
        pass.bias_gradient(layer, gradients.key_mut(Network::bias(layer)));
    }
    // The width is so large that the last bits of the loss do not matter, and so small that few kinks are
    // crossed.
    let width = 1e-3;
    for key in 0..network.keys().len() as u32 {
        let key = KeyId(key);
        for element in 0..weights.key(key).len() {
            let here = weights.key(key)[element];
            weights.key_mut(key)[element] = here + width;
            let above = loss(&network, &weights);
            weights.key_mut(key)[element] = here - width;
            let below = loss(&network, &weights);
            weights.key_mut(key)[element] = here;
            let slope = (above - below) / (2.0 * width);
            let gradient = gradients.key(key)[element];
            assert!(
                (slope - gradient).abs() < 2e-3,
                "{key:?}[{element}]: slope {slope}, gradient {gradient}"
            );
        }
    }
    assert!(gradients.key(KeyId(0)).iter().any(|&gradient| gradient != 0.0));
}

#[test]
fn a_network_that_knows_nothing_loses_the_logarithm_of_the_classes() {
    let network = Network::new([3, 2]);
    let zeros = Weights::zeroed(&network);
    assert!((loss(&network, &zeros) - 2f32.ln()).abs() < 1e-6);
}

#[test]
fn the_largest_output_names_the_class() {
    let network = Network::new([1, 2]);
    let mut weights = Weights::zeroed(&network);
    weights.key_mut(Network::weight(0)).copy_from_slice(&[-1.0, 1.0]);
    let samples = Samples::new(1, vec![-2.0, 3.0], vec![0, 1]);
    assert_eq!(network.classify(&samples, |key| weights.key(key)), [0, 1]);
}
