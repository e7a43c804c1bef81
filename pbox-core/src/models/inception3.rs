//! Inception v3 with its auxiliary classifier: 27,161,264 parameters in 292 tensors, under
//! torchvision's names.
//!
//! The auxiliary classifier (`AuxLogits`) is trained, so its gradients are sent. With this classifier, the network has
//! iBatch's 27M parameters; inference needs 23.8M. The classifier branches off after `Mixed_6e`, and its keys are at
//! that place in the order of keys. The second auxiliary classifier in the paper's figure is neither in torchvision nor
//! in the published weights. This module must not depend on how its keys are used.

use super::builder::{Builder, Kernel};
use crate::layout::Key;

pub(super) const PAPER: &str = "Inception v3, ImageNet-1K, with the auxiliary classifier: Szegedy et al., \
                                Rethinking the Inception Architecture, CVPR 2016; torchvision's names, order";

const CLASSES: u64 = 1000;

pub(super) fn keys() -> Vec<Key> {
    let mut net = Builder::default();
    for (name, from, to, side) in [
        ("Conv2d_1a_3x3", 3, 32, 3),
        ("Conv2d_2a_3x3", 32, 32, 3),
        ("Conv2d_2b_3x3", 32, 64, 3),
        ("Conv2d_3b_1x1", 64, 80, 1),
        ("Conv2d_4a_3x3", 80, 192, 3),
    ] {
        conv_norm(&mut net, name, from, to, (side, side));
    }
    let mut channels = 192;
    for (name, pool) in [("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)] {
        channels = Mixed::new(&mut net, name, channels).five_by_five(pool);
    }
    channels = Mixed::new(&mut net, "Mixed_6a", channels).reduce_to_17();
    for (name, inner) in [("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)] {
        channels = Mixed::new(&mut net, name, channels).seven_by_seven(inner);
    }
    conv_norm(&mut net, "AuxLogits.conv0", channels, 128, (1, 1));
    conv_norm(&mut net, "AuxLogits.conv1", 128, 768, (5, 5));
    net.linear("AuxLogits.fc", 768, CLASSES);
    channels = Mixed::new(&mut net, "Mixed_7a", channels).reduce_to_8();
    for name in ["Mixed_7b", "Mixed_7c"] {
        channels = Mixed::new(&mut net, name, channels).expanded();
    }
    net.linear("fc", channels, CLASSES);
    net.finish()
}

/// Adds torchvision's `BasicConv2d`: a convolution without bias, then a batch normalization.
fn conv_norm(net: &mut Builder, name: &str, from: u64, to: u64, kernel: Kernel) {
    net.conv(&format!("{name}.conv"), from, to, kernel);
    net.batch_norm(&format!("{name}.bn"), to);
}

/// One inception module. The last method call decides the module's kind, and returns the number of output channels: the
/// sum over all branches. A pooling branch without a convolution has as many channels as the input.
struct Mixed<'a> {
    net: &'a mut Builder,
    name: &'static str,
    from: u64,
}

impl<'a> Mixed<'a> {
    fn new(net: &'a mut Builder, name: &'static str, from: u64) -> Self {
        Mixed { net, name, from }
    }

    fn branch(&mut self, layer: &str, from: u64, to: u64, kernel: Kernel) -> u64 {
        conv_norm(self.net, &format!("{}.{layer}", self.name), from, to, kernel);
        to
    }

    /// Adds a module at 35x35 (torchvision's `InceptionA`).
    fn five_by_five(mut self, pool: u64) -> u64 {
        let from = self.from;
        let one = self.branch("branch1x1", from, 64, (1, 1));
        self.branch("branch5x5_1", from, 48, (1, 1));
        let five = self.branch("branch5x5_2", 48, 64, (5, 5));
        self.branch("branch3x3dbl_1", from, 64, (1, 1));
        self.branch("branch3x3dbl_2", 64, 96, (3, 3));
        let double = self.branch("branch3x3dbl_3", 96, 96, (3, 3));
        one + five + double + self.branch("branch_pool", from, pool, (1, 1))
    }

    /// Adds the module from 35x35 to 17x17 (`InceptionB`).
    fn reduce_to_17(mut self) -> u64 {
        let from = self.from;
        let three = self.branch("branch3x3", from, 384, (3, 3));
        self.branch("branch3x3dbl_1", from, 64, (1, 1));
        self.branch("branch3x3dbl_2", 64, 96, (3, 3));
        three + self.branch("branch3x3dbl_3", 96, 96, (3, 3)) + from
    }

    /// Adds a module at 17x17, in which 1x7 and 7x1 convolutions replace 7x7 (`InceptionC`).
    fn seven_by_seven(mut self, inner: u64) -> u64 {
        let from = self.from;
        let one = self.branch("branch1x1", from, 192, (1, 1));
        self.branch("branch7x7_1", from, inner, (1, 1));
        self.branch("branch7x7_2", inner, inner, (1, 7));
        let seven = self.branch("branch7x7_3", inner, 192, (7, 1));
        self.branch("branch7x7dbl_1", from, inner, (1, 1));
        self.branch("branch7x7dbl_2", inner, inner, (7, 1));
        self.branch("branch7x7dbl_3", inner, inner, (1, 7));
        self.branch("branch7x7dbl_4", inner, inner, (7, 1));
        let double = self.branch("branch7x7dbl_5", inner, 192, (1, 7));
        one + seven + double + self.branch("branch_pool", from, 192, (1, 1))
    }

    /// Adds the module from 17x17 to 8x8 (`InceptionD`).
    fn reduce_to_8(mut self) -> u64 {
        let from = self.from;
        self.branch("branch3x3_1", from, 192, (1, 1));
        let three = self.branch("branch3x3_2", 192, 320, (3, 3));
        self.branch("branch7x7x3_1", from, 192, (1, 1));
        self.branch("branch7x7x3_2", 192, 192, (1, 7));
        self.branch("branch7x7x3_3", 192, 192, (7, 1));
        three + self.branch("branch7x7x3_4", 192, 192, (3, 3)) + from
    }

    /// Adds a module at 8x8, in which parallel 1x3 and 3x1 convolutions replace 3x3 (`InceptionE`).
    fn expanded(mut self) -> u64 {
        let from = self.from;
        let one = self.branch("branch1x1", from, 320, (1, 1));
        self.branch("branch3x3_1", from, 384, (1, 1));
        let three =
            self.branch("branch3x3_2a", 384, 384, (1, 3)) + self.branch("branch3x3_2b", 384, 384, (3, 1));
        self.branch("branch3x3dbl_1", from, 448, (1, 1));
        self.branch("branch3x3dbl_2", 448, 384, (3, 3));
        let double = self.branch("branch3x3dbl_3a", 384, 384, (1, 3))
            + self.branch("branch3x3dbl_3b", 384, 384, (3, 1));
        one + three + double + self.branch("branch_pool", from, 192, (1, 1))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn shapes_in_the_middle() {
        let keys = super::keys();
        let shape = |name: &str| keys.iter().find(|key| key.name == name).unwrap().shape.clone();
        assert_eq!(shape("Mixed_5d.branch_pool.conv.weight"), [64, 288, 1, 1]);
        assert_eq!(shape("Mixed_6c.branch7x7_2.conv.weight"), [160, 160, 1, 7]);
        assert_eq!(shape("AuxLogits.conv1.conv.weight"), [768, 128, 5, 5]);
        assert_eq!(shape("Mixed_7b.branch1x1.conv.weight"), [320, 1280, 1, 1]);
        assert_eq!(shape("Mixed_7c.branch3x3dbl_1.bn.bias"), [448]);
        assert_eq!(shape("fc.weight"), [1000, 2048]);
    }

    #[test]
    fn without_the_auxiliary_classifier_it_is_the_network_of_inference() {
        let keys = super::keys();
        let rest = keys.iter().filter(|key| !key.name.starts_with("AuxLogits."));
        assert_eq!(rest.filter_map(crate::layout::Key::elements).sum::<u64>(), 23_834_568);
    }
}
