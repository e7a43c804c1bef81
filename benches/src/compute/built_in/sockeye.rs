//! The work of the layers of P3's translation model.
//!
//! A layer is a group of keys that are needed at the same time. Before the first word, the decoder needs the
//! weights of its recurrent layers, the attention's query and the hidden projection. The gradients of these
//! weights are complete only when the backward pass has reached the first word. This module must not depend
//! on a device.

use pbox_core::Key;

use super::network::{ACTIVATION, LayerWork, elements};

/// The number of words of a sentence, and of its translation. Sentences of the corpus (IWSLT15, English to
/// Vietnamese) have 20 to 30 words.
const SOURCE_WORDS: f64 = 20.0;
const TARGET_WORDS: f64 = 25.0;

/// The layers with the prefixes of their keys' names, in the order of the forward pass.
const LAYERS: [(&str, &[&str]); 9] = [
    ("source_embed", &["source_embed"]),
    ("encoder_birnn_forward_l0", &["encoder_birnn_forward_l0"]),
    ("encoder_birnn_reverse_l0", &["encoder_birnn_reverse_l0"]),
    ("encoder_rnn_l0", &["encoder_rnn_l0"]),
    ("target_embed", &["target_embed"]),
    ("att_e2h", &["att_e2h"]),
    ("decoder_rnn_enc2decinit", &["decoder_rnn_enc2decinit"]),
    ("decoder_step", &["decoder_rnn_l", "att_q2h", "att_h2s", "decoder_rnn_hidden"]),
    ("decoder_rnn_cls", &["decoder_rnn_cls"]),
];

/// The way in which a matrix is used in the forward pass of one sentence.
enum Use {
    /// This number of the matrix's rows is looked up.
    Rows(f64),
    /// The matrix is multiplied with this number of vectors at once.
    AtOnce(f64),
    /// The matrix is multiplied with one vector in each of this number of steps, and is read again in each
    /// step.
    Steps(f64),
}

fn use_of(key: &str) -> Use {
    match key {
        "source_embed_weight" => Use::Rows(SOURCE_WORDS),
        "target_embed_weight" => Use::Rows(TARGET_WORDS),
        "att_e2h_weight" => Use::AtOnce(SOURCE_WORDS),
        "att_h2s_weight" => Use::AtOnce(SOURCE_WORDS * TARGET_WORDS),
        "decoder_rnn_cls_weight" => Use::AtOnce(TARGET_WORDS),
        _ if key.starts_with("encoder_") => Use::Steps(SOURCE_WORDS),
        _ if key.starts_with("decoder_rnn_enc2decinit") => Use::AtOnce(1.0),
        _ => Use::Steps(TARGET_WORDS),
    }
}

pub(super) fn layers(keys: &[Key]) -> Vec<LayerWork> {
    LAYERS.iter().map(|(name, begin)| layer(name, keys, begin)).collect()
}

fn layer(name: &str, keys: &[Key], begin: &[&str]) -> LayerWork {
    let mut work = LayerWork {
        name: name.to_owned(),
        keys: Vec::new(),
        multiply_adds: 0.0,
        elements: 0.0,
        weights: 0.0,
        pointwise_elements: 0.0,
    };
    for key in keys.iter().filter(|key| begin.iter().any(|begin| key.name.starts_with(begin))) {
        work.keys.push(key.name.clone());
        let &[outputs, inputs] = &key.shape[..] else { continue };
        let (times, reads) = match use_of(&key.name) {
            Use::Rows(rows) => {
                work.elements += 2.0 * rows * inputs as f64;
                continue;
            }
            Use::AtOnce(times) => (times, 1.0),
            Use::Steps(steps) => (steps, steps),
        };
        work.multiply_adds += times * elements(key);
        work.elements += times * (inputs + outputs) as f64;
        work.weights += reads * elements(key);
        work.pointwise_elements += ACTIVATION * times * outputs as f64;
    }
    work
}
