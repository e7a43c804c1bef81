//! The bodies of the fuzz targets: each takes any bytes, and panics where the code under test does
//! what it must not. libFuzzer runs them (`make fuzz`), and so does a plain test on the corpora.
//!
//! | target | bytes become |
//! | --- | --- |
//! | [`checkpoint`] | a checkpoint file |
//! | [`codecs`] | the payload of a compressed chunk |
//! | [`control`] | a body of the control port, of any kind |
//! | [`handshake`] | one end's message of the shared-memory handshake, and the memory it offers |
//! | [`immediates`] | posts of hostile workers to the cores of a hub |
//! | [`rings`] | what a hostile peer writes into the words it shares |
//! | [`safetensors`] | the header of a model file |
//! | [`slim`] | a push or an answer of Slim-DP |
//! | [`tcp_frames`] | what a hostile peer sends on a TCP link |
//! | [`topology_text`] | descriptions of machines, lists of cpus, sysfs trees |
//! | [`topology_xml`] | lstopo's XML, which hwloc reads |
//! | [`verbs_messages`] | a message of the RDMA handshake |

#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod codecs;
pub mod control;
pub mod handshake;
pub mod immediates;
mod planned;
pub mod raw_peer;
pub mod rings;
pub mod safetensors;
pub mod slim;
pub mod tcp_frames;
pub mod topology_text;
pub mod topology_xml;
pub mod verbs_messages;

/// The body of a target.
pub type Target = fn(&[u8]);

/// All targets by name.
pub const TARGETS: [(&str, Target); 12] = [
    ("checkpoint", checkpoint::run),
    ("codecs", codecs::run),
    ("control", control::run),
    ("handshake", handshake::run),
    ("immediates", immediates::run),
    ("rings", rings::run),
    ("safetensors", safetensors::run),
    ("slim", slim::run),
    ("tcp_frames", tcp_frames::run),
    ("topology_text", topology_text::run),
    ("topology_xml", topology_xml::run),
    ("verbs_messages", verbs_messages::run),
];
