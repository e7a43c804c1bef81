//! The environment variables whose names begin with PHUB_. For an unknown name, finds the nearest known name. Hubs,
//! workers and the doctor report unknown names.

use std::sync::Once;

use fabric::verbs::PATH_SETTINGS;

const OURS: &str = "PHUB_";
/// The names of a hub's settings. A test of the hub compares this list with the hub's flags, which this crate does not
/// know.
const OF_HUBS: [&str; 36] = [
    "PHUB_ABOVE",
    "PHUB_ABOVE_LIMIT_S",
    "PHUB_CHECKPOINTS",
    "PHUB_CHECKPOINT_EVERY",
    "PHUB_CHECKPOINT_JOBS",
    "PHUB_CHECKPOINT_KEEP",
    "PHUB_CHECKPOINT_MODE",
    "PHUB_CHECKSUM",
    "PHUB_CONFIG",
    "PHUB_CORES",
    "PHUB_DATA_LISTEN",
    "PHUB_HEARTBEAT_LIMIT_S",
    "PHUB_IDLE",
    "PHUB_INSECURE",
    "PHUB_INTERFACE",
    "PHUB_JOBS_LIMIT",
    "PHUB_JOBS_PER_ADDRESS",
    "PHUB_LATE_LIMIT_S",
    "PHUB_LATE_WARNING_S",
    "PHUB_LISTEN",
    "PHUB_LOG_FORMAT",
    "PHUB_MACHINE",
    "PHUB_MEMORY_PER_ADDRESS",
    "PHUB_MEMORY_PER_JOB",
    "PHUB_NICS",
    "PHUB_PEERS",
    "PHUB_RAILS",
    "PHUB_RECORD",
    "PHUB_RECORD_MB",
    "PHUB_TCP_CONGESTION",
    "PHUB_TLS_CERT",
    "PHUB_TLS_CLIENT_CA",
    "PHUB_TLS_KEY",
    "PHUB_TRACE",
    "PHUB_TRANSPORTS",
    "PHUB_UNUSED_LIMIT_S",
];
/// The names of the settings of workers, of tools, and of all programs.
const OTHERS: [&str; 18] = [
    "PHUB_TOKEN",
    "PHUB_TOKEN_FILE",
    "PHUB_TLS_FINGERPRINT",
    "PHUB_TLS_CA",
    "PHUB_HUB",
    "PHUB_HUB_LOG",
    "PHUB_HUB_WAIT",
    "PHUB_RANK",
    "PHUB_WORLD_SIZE",
    "PHUB_LOCAL_RANK",
    "PHUB_LOCAL_WORLD_SIZE",
    "PHUB_JOB",
    "PHUB_PORT",
    "PHUB_LEVELS",
    "PHUB_MESH",
    "PHUB_LINKS",
    "PHUB_SERVER",
    "PHUB_PYTHON",
];
/// The variables of this project's own tests.
const OF_TESTS: [&str; 6] =
    ["PHUB_TEST_", "PHUB_RXE_", "PHUB_SIM_", "PHUB_CHAOS_", "PHUB_FUZZ_", "PHUB_FIGURES_"];
/// The largest edit distance at which an unknown name may be a mistyped known name.
const NEAR: usize = 3;

/// Returns the faults in the names of this process's environment variables, one sentence for each.
pub fn environment_warnings() -> Vec<String> {
    warnings_of(
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
    )
}

/// Logs the faults in the names of environment variables. Logs them once per process, even if the process has several hubs
/// and workers.
pub fn warn_of_environment() {
    static SAID: Once = Once::new();
    SAID.call_once(|| environment_warnings().iter().for_each(|warning| tracing::warn!("{warning}")));
}

fn warnings_of(variables: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let known: Vec<&str> = known_variables().collect();
    let mut warnings: Vec<String> =
        variables.filter_map(|(name, value)| warning(&name, &value, &known)).collect();
    warnings.sort();
    warnings
}

/// Returns the names of all environment variables that this program reads.
pub fn known_variables() -> impl Iterator<Item = &'static str> {
    let of_paths = PATH_SETTINGS.iter().flat_map(|setting| setting.variables).copied();
    OF_HUBS.into_iter().chain(OTHERS).chain(of_paths)
}

fn warning(name: &str, value: &str, known: &[&str]) -> Option<String> {
    if !name.starts_with(OURS) || OF_TESTS.iter().any(|tests| name.starts_with(tests)) {
        return None;
    }
    if is_of_a_service(name, value) {
        return Some(format!(
            "Kubernetes sets {name} for a Service with a name that begins with \"phub\"; {name} is not a setting \
             of phub: rename the Service, or set enableServiceLinks: false in the pod's specification"
        ));
    }
    if known.contains(&name) {
        return None;
    }
    let near = known.iter().min_by_key(|known| distance(name, known));
    let meant = near.filter(|near| distance(name, near) <= NEAR).map(|near| format!("; was {near} meant?"));
    Some(format!("{name} is not a setting, and changes nothing{}", meant.unwrap_or_default()))
}

/// Whether Kubernetes made a variable for a Service, such as PHUB_PORT=tcp://10.0.0.1:7077 or PHUB_SERVICE_HOST.
fn is_of_a_service(name: &str, value: &str) -> bool {
    let of_links = ["_SERVICE_HOST", "_SERVICE_PORT", "_TCP", "_TCP_ADDR", "_TCP_PORT", "_TCP_PROTO"];
    value.starts_with("tcp://")
        || value.starts_with("udp://")
        || name.contains("_SERVICE_PORT_")
        || of_links.iter().any(|end| name.ends_with(end))
}

/// Returns the edit distance of two names: the number of letters to insert, delete or replace.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.bytes().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], at + 1);
        for (place, of_other) in other.bytes().enumerate() {
            let replaced = corner + usize::from(letter != of_other);
            corner = row[place + 1];
            row[place + 1] = replaced.min(corner + 1).min(row[place] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    fn of(variables: &[(&str, &str)]) -> Vec<String> {
        warnings_of(variables.iter().map(|(name, value)| (name.to_string(), value.to_string())))
    }

    #[test]
    fn a_name_that_is_none_is_told_with_the_one_that_was_meant() {
        let seen = of(&[
            ("PHUB_CHECKPOINT", "/x"),
            ("PHUB_LISTN", "x"),
            ("PHUB_FAVOURITE_COLOUR", "red"),
            ("HOME", "/"),
        ]);
        let expected = [
            "PHUB_CHECKPOINT is not a setting, and changes nothing; was PHUB_CHECKPOINTS meant?",
            "PHUB_FAVOURITE_COLOUR is not a setting, and changes nothing",
            "PHUB_LISTN is not a setting, and changes nothing; was PHUB_LISTEN meant?",
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn settings_and_the_names_of_workers_are_known() {
        let names =
            ["PHUB_LISTEN", "PHUB_NICS", "PHUB_RDMA_TIMEOUT", "PHUB_HUB_WAIT", "PHUB_TOKEN", "PHUB_TEST_X"];
        assert_eq!(of(&names.map(|name| (name, "1"))), [""; 0]);
    }

    /// Checks that the list of names, which is kept by hand, has the names in the sources of hubs and workers.
    #[test]
    fn every_name_in_the_sources_is_known() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let known: Vec<&str> = known_variables().collect();
        let mut dirs: Vec<PathBuf> = [
            "authority/src",
            "fabric/src",
            "membership/src",
            "worker-shim/src",
            "worker-shim/python/package",
            "cli/src",
        ]
        .map(|dir| root.join(dir))
        .to_vec();
        let mut seen = 0;
        while let Some(dir) = dirs.pop() {
            for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    dirs.push(path);
                    continue;
                }
                if path.ends_with("environment.rs") {
                    continue; // its tests have unknown names
                }
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                let is_of_a_name =
                    |letter: char| letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_';
                for (at, _) in text.match_indices(OURS) {
                    let end = text[at..].find(|letter| !is_of_a_name(letter)).unwrap_or(text.len() - at);
                    let name = &text[at..at + end];
                    let is_whole = !text[..at].ends_with(is_of_a_name) && !name.ends_with('_');
                    if is_whole && !OF_TESTS.iter().any(|tests| name.starts_with(tests)) {
                        assert!(known.contains(&name), "{name} in {}", path.display());
                        seen += 1;
                    }
                }
            }
        }
        assert!(seen > 50, "{seen}");
    }

    #[test]
    fn what_kubernetes_makes_of_a_service_is_explained() {
        for (name, value) in [
            ("PHUB_PORT", "tcp://10.0.0.1:7077"),
            ("PHUB_SERVICE_HOST", "10.0.0.1"),
            ("PHUB_PORT_7077_TCP_ADDR", "10.0.0.1"),
            ("PHUB_SERVICE_PORT_CONTROL", "7077"),
        ] {
            let seen = of(&[(name, value)]);
            assert!(seen.len() == 1 && seen[0].contains("Service"), "{name}: {seen:?}");
        }
        assert_eq!(of(&[("PHUB_PORT", "7391")]), [""; 0]);
    }
}
