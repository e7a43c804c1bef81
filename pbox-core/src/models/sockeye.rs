//! Sockeye: 27,734,558 parameters in 37 tensors, under Sockeye's (MXNet's) names.
//!
//! P3 measures this model. The settings are those of P3's run script for Sockeye 1.5, IWSLT15 English to Vietnamese.
//! The model has an LSTM encoder and an LSTM decoder of two layers each. Hidden and embedding size are 512, the size of
//! the MLP attention is 512, and the source is reversed. The vocabularies are those of the data set (17,188 and 7,706
//! words) plus Sockeye's four symbols.
//!
//! ```text
//!   source words                                            target words
//!   17,192 x 512  source_embed                7,710 x 512  target_embed
//!        |                                                      |
//!   2 x 256       encoder_birnn (both ways)    2 x 512      decoder_rnn l0, l1 <- enc2decinit
//!        |                                                      |
//!   512           encoder_rnn l0 ---------->   att  ------->  hidden --> cls 7,710 x 512
//! ```
//!
//! Only in this model is the heaviest layer, with 32% of the model, the first layer of the forward pass. The gradient
//! of this layer is ready last, and its weights are needed first (P3, section 5.3). This module must not depend on how
//! its keys are used.

use super::builder::Builder;
use crate::layout::Key;

pub(super) const PAPER: &str = "Sockeye 1.5, two-layer LSTM encoder-decoder with MLP attention, IWSLT15 \
                                English-Vietnamese: Hieber et al., Sockeye, 2017; set up as in P3's artifact";

/// The number of special symbols: padding, unknown word, begin of a sentence, end of a sentence.
const SYMBOLS: u64 = 4;
const SOURCE_WORDS: u64 = 17_188;
const TARGET_WORDS: u64 = 7_706;
/// The size of both embeddings, of the hidden state and of the attention.
const HIDDEN: u64 = 512;
/// The factor of an LSTM cell: its three gates (input, forget, output) and its update are computed in one product.
const GATES: u64 = 4;

pub(super) fn keys() -> Vec<Key> {
    let mut net = Builder::default();
    encoder(&mut net, SYMBOLS + SOURCE_WORDS);
    decoder(&mut net, SYMBOLS + TARGET_WORDS);
    net.finish()
}

/// Adds the encoder. The first layer reads in both directions, each with half of the width. The layer above reads in
/// one direction.
fn encoder(net: &mut Builder, words: u64) {
    net.tensor("source_embed_weight", &[words, HIDDEN]);
    lstm(net, "encoder_birnn_forward_l0", HIDDEN, HIDDEN / 2);
    lstm(net, "encoder_birnn_reverse_l0", HIDDEN, HIDDEN / 2);
    lstm(net, "encoder_rnn_l0", HIDDEN, HIDDEN);
}

/// Adds the decoder, in the order in which a training pass first needs each key. The attention projects the source. The
/// encoder's last states start the decoder's two layers (hidden and cell state each). Then the decoder produces words.
fn decoder(net: &mut Builder, words: u64) {
    net.tensor("target_embed_weight", &[words, HIDDEN]);
    net.tensor("att_e2h_weight", &[HIDDEN, HIDDEN]);
    for state in 0..4 {
        linear(net, &format!("decoder_rnn_enc2decinit_{state}"), HIDDEN, HIDDEN);
    }
    // With input feeding, the hidden output of the last step is appended to the embedded word.
    lstm(net, "decoder_rnn_l0", HIDDEN + HIDDEN, HIDDEN);
    lstm(net, "decoder_rnn_l1", HIDDEN, HIDDEN);
    net.tensor("att_q2h_weight", &[HIDDEN, HIDDEN]);
    net.tensor("att_h2s_weight", &[1, HIDDEN]);
    // The input is the decoder's output, together with the attention's context.
    linear(net, "decoder_rnn_hidden", HIDDEN + HIDDEN, HIDDEN);
    linear(net, "decoder_rnn_cls", HIDDEN, words);
}

fn lstm(net: &mut Builder, name: &str, from: u64, to: u64) {
    linear(net, &format!("{name}_i2h"), from, GATES * to);
    linear(net, &format!("{name}_h2h"), to, GATES * to);
}

fn linear(net: &mut Builder, name: &str, from: u64, to: u64) {
    net.tensor(format!("{name}_weight"), &[to, from]);
    net.tensor(format!("{name}_bias"), &[to]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_in_the_middle() {
        let keys = keys();
        let shape = |name: &str| keys.iter().find(|key| key.name == name).unwrap().shape.clone();
        assert_eq!(shape("source_embed_weight"), [17_192, 512]);
        assert_eq!(shape("encoder_birnn_reverse_l0_h2h_weight"), [1024, 256]);
        assert_eq!(shape("decoder_rnn_l0_i2h_weight"), [2048, 1024]);
        assert_eq!(shape("decoder_rnn_l1_h2h_bias"), [2048]);
        assert_eq!(shape("decoder_rnn_hidden_weight"), [512, 1024]);
        assert_eq!(shape("decoder_rnn_cls_weight"), [7_710, 512]);
    }

    #[test]
    fn the_heaviest_layer_is_the_first() {
        let keys = keys();
        assert!(keys[1..].iter().all(|key| key.elements() < keys[0].elements()));
    }

    /// A public log of Sockeye has 79,638,799 parameters for the same layers. Its vocabularies have 49,410 and 42,767 words,
    /// and its dot attention has no parameters.
    #[test]
    fn other_vocabularies_give_the_total_that_is_known_for_them() {
        let mut net = Builder::default();
        encoder(&mut net, 49_410);
        decoder(&mut net, 42_767);
        let keys = net.finish();
        let counted = keys.iter().filter(|key| !key.name.starts_with("att_"));
        assert_eq!(counted.filter_map(Key::elements).sum::<u64>(), 79_638_799);
    }
}
