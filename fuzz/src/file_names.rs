//! The names of files in a checkpoint directory: files of jobs, generations and parts, and any other files.
//!
//! If a name is that of a checkpoint, it names a valid job. Each job and round has exactly one name.

use pbox_core::control::check_job_name;
use phub_server::checkpoint::named;

/// Reads the bytes as a name, and then as a job followed by the rest of a name.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    check(&text);
    check(&format!("{text}.safetensors"));
    check(&format!("job@{text}.safetensors"));
    check(&format!("job@7.hub{text}.safetensors"));
    check(&format!("{text}@7.safetensors"));
}

fn check(name: &str) {
    let Some((job, round)) = named(name) else { return };
    assert!(check_job_name(&job).is_ok(), "{name}: {job:?}");
    assert!(!name.contains(['/', '\0']), "{name}");
    let rest =
        name.strip_prefix(&job).and_then(|rest| rest.strip_suffix(".safetensors")).expect("both are in it");
    match round {
        None => assert!(rest.is_empty(), "{name}"),
        Some(round) => {
            let rest = rest.strip_prefix(&format!("@{}", round.0)).expect("no other spelling of a round");
            let is_part = rest.strip_prefix(".hub").is_some_and(|part| part.contains("of"));
            assert!(rest.is_empty() || is_part, "{name}");
        }
    }
}
