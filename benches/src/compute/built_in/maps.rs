//! The feature maps of the published convolutional networks: height and width of each layer's input and
//! output, by the layer's name. Inputs are 224x224, and those of Inception-v3 299x299. This module has no
//! numbers of channels: the shapes of the keys contain them.

use super::network::Map;

/// Returns the maps of torchvision's ResNet-50, which halves the map in the 3x3 convolution of a block.
pub(super) fn resnet50(layer: &str) -> Map {
    let Some((stage, (block, part))) = layer.strip_prefix("layer").and_then(|rest| {
        let (stage, rest) = rest.split_once('.')?;
        Some((stage.parse::<u32>().ok()?, rest.split_once('.')?))
    }) else {
        return if layer == "conv1" { Map::new(224, 112) } else { Map::POINT };
    };
    let to = 112 >> stage;
    // A pooling layer has already halved the map before the first stage.
    let from = if stage > 1 && block == "0" { 2 * to } else { to };
    match part {
        "conv1" => Map::same(from),
        "conv2" | "downsample.0" => Map::new(from, to),
        _ => Map::same(to),
    }
}

pub(super) fn vgg16(layer: &str) -> Map {
    vgg(layer, [5, 10, 17, 24])
}

pub(super) fn vgg19(layer: &str) -> Map {
    vgg(layer, [5, 10, 19, 28])
}

/// Returns the maps of VGG. A pooling layer before each of these modules halves the map.
fn vgg(layer: &str, halved_at: [u32; 4]) -> Map {
    let module = layer.strip_prefix("features.").and_then(|module| module.parse::<u32>().ok());
    let halvings = |module| halved_at.iter().filter(|&&at| at <= module).count();
    module.map_or(Map::POINT, |module| Map::same(224 >> halvings(module)))
}

/// Returns the maps of Caffe's GoogLeNet.
pub(super) fn googlenet(layer: &str) -> Map {
    match layer.split('/').next().unwrap_or_default() {
        "conv1" => Map::new(224, 112),
        "conv2" => Map::same(56),
        "loss3" => Map::POINT,
        module if module.starts_with("inception_3") => Map::same(28),
        module if module.starts_with("inception_4") => Map::same(14),
        _ => Map::same(7),
    }
}

/// Returns the maps of torchvision's Inception-v3, whose stem and reductions do not pad.
pub(super) fn inception3(layer: &str) -> Map {
    let (module, part) = layer.split_once('.').unwrap_or((layer, ""));
    let part = part.trim_end_matches(".conv");
    match (module, part) {
        ("Conv2d_1a_3x3", _) => Map::new(299, 149),
        ("Conv2d_2a_3x3", _) => Map::new(149, 147),
        ("Conv2d_2b_3x3", _) => Map::same(147),
        ("Conv2d_3b_1x1", _) => Map::same(73),
        ("Conv2d_4a_3x3", _) => Map::new(73, 71),
        ("Mixed_6a", "branch3x3" | "branch3x3dbl_3") => Map::new(35, 17),
        ("Mixed_5b" | "Mixed_5c" | "Mixed_5d" | "Mixed_6a", _) => Map::same(35),
        // A pooling of 5x5 with a stride of 3 comes before this layer.
        ("AuxLogits", "conv0") => Map::same(5),
        ("AuxLogits", "conv1") => Map::new(5, 1),
        ("Mixed_7a", "branch3x3_2" | "branch7x7x3_4") => Map::new(17, 8),
        ("Mixed_6b" | "Mixed_6c" | "Mixed_6d" | "Mixed_6e" | "Mixed_7a", _) => Map::same(17),
        ("Mixed_7b" | "Mixed_7c", _) => Map::same(8),
        _ => Map::POINT,
    }
}
