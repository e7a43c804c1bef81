//! The bodies of the fuzz targets. Each takes any bytes, and panics if the code under test breaks a rule. The
//! targets run in libFuzzer (`make fuzz`), and on the corpora in a plain test.
//!
//! | target | the bytes become |
//! | --- | --- |
//! | [`checkpoint`] | a checkpoint file |
//! | [`codecs`] | the payload of a compressed chunk |
//! | [`control`] | a body of the control port, of any kind |
//! | [`deltas`] | differences from the values of a file |
//! | [`file_names`] | the names of files in a checkpoint directory |
//! | [`frame_rule`] | spans and immediates of a hostile peer's frames |
//! | [`handshake`](shm::handshake) | a peer's message in the shared-memory handshake, and the memory it offers |
//! | [`immediates`] | posts of hostile workers to the cores of a hub |
//! | [`rings`](shm::rings) | a hostile peer's writes into shared words |
//! | [`safetensors`] | the header of a model file |
//! | [`slim`] | a push or an answer of Slim-DP |
//! | [`tcp_frames`] | a hostile peer's stream on a TCP link |
//! | [`tokens`] | secrets, tokens of rights to jobs |
//! | [`topology_text`](machine::text) | descriptions of machines, lists of cpus, sysfs trees |
//! | [`topology_xml`](machine::xml) | an XML file of lstopo, which hwloc reads |
//! | [`verbs_messages`] | a message of the RDMA handshake |

#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod codecs;
pub mod control;
pub mod deltas;
pub mod file_names;
pub mod frame_rule;
pub mod immediates;
pub mod machine;
pub mod safetensors;
pub mod shm;
pub mod slim;
pub mod tcp_frames;
pub mod tokens;
pub mod verbs_messages;

/// The body of a target.
pub type Target = fn(&[u8]);

/// All targets by name.
pub const TARGETS: [(&str, Target); 16] = [
    ("checkpoint", checkpoint::run),
    ("codecs", codecs::run),
    ("control", control::run),
    ("deltas", deltas::run),
    ("file_names", file_names::run),
    ("frame_rule", frame_rule::run),
    ("handshake", shm::handshake::run),
    ("immediates", immediates::run),
    ("rings", shm::rings::run),
    ("safetensors", safetensors::run),
    ("slim", slim::run),
    ("tcp_frames", tcp_frames::run),
    ("tokens", tokens::run),
    ("topology_text", machine::text::run),
    ("topology_xml", machine::xml::run),
    ("verbs_messages", verbs_messages::run),
];
