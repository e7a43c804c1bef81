//! ResNet-50: 25,557,032 parameters in 161 tensors, under torchvision's names.
//!
//! It has four stages of bottleneck blocks (1x1 down, 3x3, 1x1 up), and a projection in the first block of each stage. This
//! module must not depend on how its keys are used.

use super::builder::Builder;
use crate::layout::Key;

pub(super) const PAPER: &str = "ResNet-50, ImageNet-1K: He et al., Deep Residual Learning for Image \
                                Recognition, CVPR 2016; torchvision's names and order";

/// The number of blocks and the inner width of each stage (the paper's table 1).
const STAGES: [(usize, u64); 4] = [(3, 64), (4, 128), (6, 256), (3, 512)];
/// The factor from a block's inner width to its output.
const EXPANSION: u64 = 4;
const STEM_CHANNELS: u64 = 64;
const CLASSES: u64 = 1000;

pub(super) fn keys() -> Vec<Key> {
    let mut net = Builder::default();
    net.conv("conv1", 3, STEM_CHANNELS, (7, 7));
    net.batch_norm("bn1", STEM_CHANNELS);
    let mut channels = STEM_CHANNELS;
    for (stage, (blocks, width)) in STAGES.into_iter().enumerate() {
        for block in 0..blocks {
            channels =
                bottleneck(&mut net, &format!("layer{}.{block}", stage + 1), channels, width, block == 0);
        }
    }
    net.linear("fc", channels, CLASSES);
    net.finish()
}

fn bottleneck(net: &mut Builder, name: &str, from: u64, width: u64, first: bool) -> u64 {
    let to = EXPANSION * width;
    net.conv(&format!("{name}.conv1"), from, width, (1, 1));
    net.batch_norm(&format!("{name}.bn1"), width);
    net.conv(&format!("{name}.conv2"), width, width, (3, 3));
    net.batch_norm(&format!("{name}.bn2"), width);
    net.conv(&format!("{name}.conv3"), width, to, (1, 1));
    net.batch_norm(&format!("{name}.bn3"), to);
    if first {
        net.conv(&format!("{name}.downsample.0"), from, to, (1, 1));
        net.batch_norm(&format!("{name}.downsample.1"), to);
    }
    to
}

#[cfg(test)]
mod tests {
    #[test]
    fn shapes_in_the_middle() {
        let keys = super::keys();
        let shape = |name: &str| keys.iter().find(|key| key.name == name).unwrap().shape.clone();
        assert_eq!(shape("conv1.weight"), [64, 3, 7, 7]);
        assert_eq!(shape("layer1.0.downsample.0.weight"), [256, 64, 1, 1]);
        assert_eq!(shape("layer3.0.conv1.weight"), [256, 512, 1, 1]);
        assert_eq!(shape("layer3.5.conv2.weight"), [256, 256, 3, 3]);
        assert_eq!(shape("layer4.2.bn3.bias"), [2048]);
        assert_eq!(shape("fc.weight"), [1000, 2048]);
        assert!(!keys.iter().any(|key| key.name == "layer1.1.downsample.0.weight"));
    }
}
