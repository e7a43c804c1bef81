//! VGG-16, VGG-19 and VGG19-22K, under torchvision's names.
//!
//! | model     | parameters  | tensors |
//! | --------- | ----------- | ------- |
//! | vgg16     | 138,357,544 | 32      |
//! | vgg19     | 143,667,240 | 38      |
//! | vgg19-22k | 229,052,817 | 38      |
//!
//! 71.5% of VGG-19 are its first fully connected layer (P3, section 3), so VGG-19 shows the effect of slicing. VGG19-22K is
//! VGG-19 with one output for each of the 21,841 categories of ImageNet-22K. This gives iBatch's 229M parameters (22,000
//! outputs would give 229.7M). This module must not depend on how its keys are used.

use super::builder::Builder;
use crate::layout::Key;

pub(super) const PAPER_16: &str = "VGG-16 (configuration D), ImageNet-1K: Simonyan and Zisserman, Very Deep \
                                   Convolutional Networks, ICLR 2015; torchvision's names and order";
pub(super) const PAPER_19: &str = "VGG-19 (configuration E), ImageNet-1K: Simonyan and Zisserman, Very Deep \
                                   Convolutional Networks, ICLR 2015; torchvision's names and order";
pub(super) const PAPER_19_22K: &str = "VGG-19 with 21,841 outputs, ImageNet-22K: Zhang et al., Poseidon, ATC \
                                       2017, and iBatch; torchvision's names and order";

/// The number of convolutions in each of the five blocks. A max-pooling ends a block.
const BLOCKS_16: [usize; 5] = [2, 2, 3, 3, 3];
const BLOCKS_19: [usize; 5] = [2, 2, 4, 4, 4];
const CHANNELS: [u64; 5] = [64, 128, 256, 512, 512];
/// The height and width of the last feature map, for the published input of 224x224.
const LAST_MAP: u64 = 7;
const HIDDEN: u64 = 4096;
const IMAGENET_1K: u64 = 1000;
const IMAGENET_22K: u64 = 21_841;

pub(super) fn keys_16() -> Vec<Key> {
    keys(BLOCKS_16, IMAGENET_1K)
}

pub(super) fn keys_19() -> Vec<Key> {
    keys(BLOCKS_19, IMAGENET_1K)
}

pub(super) fn keys_19_22k() -> Vec<Key> {
    keys(BLOCKS_19, IMAGENET_22K)
}

fn keys(blocks: [usize; 5], classes: u64) -> Vec<Key> {
    let mut net = Builder::default();
    let mut from = 3;
    // torchvision numbers the modules of a sequence, and counts activations and poolings as modules.
    let mut module = 0;
    for (convolutions, to) in blocks.into_iter().zip(CHANNELS) {
        for _ in 0..convolutions {
            net.conv_bias(&format!("features.{module}"), from, to, (3, 3));
            module += 2;
            from = to;
        }
        module += 1;
    }
    net.linear("classifier.0", from * LAST_MAP * LAST_MAP, HIDDEN);
    net.linear("classifier.3", HIDDEN, HIDDEN);
    net.linear("classifier.6", HIDDEN, classes);
    net.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_in_the_middle() {
        let shape =
            |keys: &[Key], name: &str| keys.iter().find(|key| key.name == name).unwrap().shape.clone();
        let (small, large, wide) = (keys_16(), keys_19(), keys_19_22k());
        assert_eq!(shape(&small, "features.28.weight"), [512, 512, 3, 3]);
        assert_eq!(shape(&large, "features.19.weight"), [512, 256, 3, 3]);
        assert_eq!(shape(&large, "features.34.bias"), [512]);
        assert_eq!(shape(&large, "classifier.0.weight"), [4096, 25_088]);
        assert_eq!(shape(&wide, "classifier.6.weight"), [21_841, 4096]);
    }

    #[test]
    fn the_heaviest_layer_is_the_share_that_p3_says() {
        let keys = keys_19();
        let layer =
            |name: &str| keys.iter().filter(|k| k.name.starts_with(name)).filter_map(Key::elements).sum();
        let (heaviest, all): (u64, u64) = (layer("classifier.0"), layer(""));
        assert_eq!((1000 * heaviest + all / 2) / all, 715);
    }
}
