//! GoogLeNet (Inception v1): 6,998,552 parameters in 116 tensors, under Caffe's layer names.
//!
//! The network is that of the paper, as the Caffe model zoo publishes it: no batch normalization, and a bias on every
//! convolution. The two auxiliary classifiers are left out. With these classifiers, the network has 13,378,280
//! parameters.
//!
//! The papers count differently. Slim-DP counts 13M parameters, because it uses the zoo's training network, which has
//! the auxiliary classifiers. The iBatch paper counts 5M, which follows the GoogLeNet paper's "12 times fewer than
//! AlexNet". That count is less than the sum of the GoogLeNet paper's table 1. The `googlenet` of torchvision is a
//! different network. It has batch normalization, and 3x3 convolutions instead of 5x5 convolutions. This module must
//! not depend on how its keys are used.

use super::builder::Builder;
use crate::layout::Key;

pub(super) const PAPER: &str = "GoogLeNet, ImageNet-1K, without auxiliary classifiers: Szegedy et al., Going \
                                Deeper with Convolutions, CVPR 2015; the Caffe model zoo's layer names";

const CLASSES: u64 = 1000;

/// The output channels of the convolutions in one inception module (the paper's table 1).
struct Module {
    name: &'static str,
    one: u64,
    three_reduce: u64,
    three: u64,
    five_reduce: u64,
    five: u64,
    pool: u64,
}

#[rustfmt::skip]
const MODULES: [Module; 9] = [
    Module { name: "3a", one:  64, three_reduce:  96, three: 128, five_reduce: 16, five:  32, pool:  32 },
    Module { name: "3b", one: 128, three_reduce: 128, three: 192, five_reduce: 32, five:  96, pool:  64 },
    Module { name: "4a", one: 192, three_reduce:  96, three: 208, five_reduce: 16, five:  48, pool:  64 },
    Module { name: "4b", one: 160, three_reduce: 112, three: 224, five_reduce: 24, five:  64, pool:  64 },
    Module { name: "4c", one: 128, three_reduce: 128, three: 256, five_reduce: 24, five:  64, pool:  64 },
    Module { name: "4d", one: 112, three_reduce: 144, three: 288, five_reduce: 32, five:  64, pool:  64 },
    Module { name: "4e", one: 256, three_reduce: 160, three: 320, five_reduce: 32, five: 128, pool: 128 },
    Module { name: "5a", one: 256, three_reduce: 160, three: 320, five_reduce: 32, five: 128, pool: 128 },
    Module { name: "5b", one: 384, three_reduce: 192, three: 384, five_reduce: 48, five: 128, pool: 128 },
];

pub(super) fn keys() -> Vec<Key> {
    let mut net = Builder::default();
    net.conv_bias("conv1/7x7_s2", 3, 64, (7, 7));
    net.conv_bias("conv2/3x3_reduce", 64, 64, (1, 1));
    net.conv_bias("conv2/3x3", 64, 192, (3, 3));
    let mut channels = 192;
    for module in &MODULES {
        channels = inception(&mut net, module, channels);
    }
    net.linear("loss3/classifier", channels, CLASSES);
    net.finish()
}

fn inception(net: &mut Builder, module: &Module, from: u64) -> u64 {
    let mut conv = |layer: &str, from, to, side| {
        net.conv_bias(&format!("inception_{}/{layer}", module.name), from, to, (side, side));
    };
    conv("1x1", from, module.one, 1);
    conv("3x3_reduce", from, module.three_reduce, 1);
    conv("3x3", module.three_reduce, module.three, 3);
    conv("5x5_reduce", from, module.five_reduce, 1);
    conv("5x5", module.five_reduce, module.five, 5);
    conv("pool_proj", from, module.pool, 1);
    module.one + module.three + module.five + module.pool
}

#[cfg(test)]
mod tests {
    #[test]
    fn shapes_in_the_middle() {
        let keys = super::keys();
        let shape = |name: &str| keys.iter().find(|key| key.name == name).unwrap().shape.clone();
        assert_eq!(shape("inception_3a/5x5.weight"), [32, 16, 5, 5]);
        assert_eq!(shape("inception_4e/3x3_reduce.weight"), [160, 528, 1, 1]);
        assert_eq!(shape("inception_5b/pool_proj.bias"), [128]);
        assert_eq!(shape("loss3/classifier.weight"), [1000, 1024]);
    }
}
