//! Every built-in model has the published number of parameters and is a manifest; unknown names are refused.

use super::{MODELS, model};
use crate::layout::manifest;

/// Each model's name, parameters, tensors, first key and last key.
const KNOWN: [(&str, u64, usize, &str, &str); 7] = [
    ("resnet50", 25_557_032, 161, "conv1.weight", "fc.bias"),
    ("vgg16", 138_357_544, 32, "features.0.weight", "classifier.6.bias"),
    ("vgg19", 143_667_240, 38, "features.0.weight", "classifier.6.bias"),
    ("vgg19-22k", 229_052_817, 38, "features.0.weight", "classifier.6.bias"),
    ("inception3", 27_161_264, 292, "Conv2d_1a_3x3.conv.weight", "fc.bias"),
    ("googlenet", 6_998_552, 116, "conv1/7x7_s2.weight", "loss3/classifier.bias"),
    ("sockeye", 27_734_558, 37, "source_embed_weight", "decoder_rnn_cls_bias"),
];

#[test]
fn totals_are_as_published() {
    for (name, elements, tensors, first, last) in KNOWN {
        let model = model(name).unwrap();
        assert_eq!(model.name, name);
        assert_eq!(model.elements(), elements, "{name}");
        assert_eq!(model.bytes(), 4 * elements, "{name}");
        assert_eq!(model.keys.len(), tensors, "{name}");
        assert_eq!(model.keys.first().unwrap().name, first);
        assert_eq!(model.keys.last().unwrap().name, last);
    }
}

#[test]
fn every_listed_model_is_known_and_is_a_manifest() {
    assert_eq!(MODELS.len(), KNOWN.len());
    for name in MODELS {
        let model = model(name).unwrap();
        manifest::check(&model.keys).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!model.paper.is_empty());
        assert!(model.keys.iter().all(|key| key.lr_mult == 1.0 && key.wd_mult == 1.0), "{name}");
    }
}

#[test]
fn the_error_of_an_unknown_model_lists_the_known_names_and_the_nearest() {
    for (asked, nearest) in [
        ("ResNet-50", "resnet50"),
        ("resnet5", "resnet50"),
        ("inception_v3", "inception3"),
        ("vgg19_22k", "vgg19-22k"),
        ("VGG-19", "vgg19"),
    ] {
        let message = model(asked).unwrap_err().to_string();
        assert!(message.contains(&format!("did you mean {nearest}?")), "{message}");
        assert!(MODELS.iter().all(|name| message.contains(name)), "{message}");
    }
    for asked in ["", "bert", "\n\u{1b}[0m", &"x".repeat(1 << 20)] {
        let message = model(asked).unwrap_err().to_string();
        assert!(!message.contains("did you mean"), "{message}");
        assert!(message.len() < 500 && !message.contains('\n'), "{message}");
    }
}
