//! The settings of `phub-peers`.

use std::ffi::OsString;

use clap::ValueEnum;
use phub_server::program::ModelSource;

use super::system::System;

/// Compare the speed of the hub with other systems on this machine.
///
/// Every system exchanges the same model between the same number of workers, and makes the same Nesterov step. For systems
/// that are not installed, the program names the packages to install, and measures the rest.
#[derive(Debug, clap::Parser)]
#[command(name = "phub-peers", version)]
pub struct Args {
    /// The model.
    #[command(flatten)]
    pub source: ModelSource,

    /// Number of the hub's workers, and of the other systems' ranks.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub workers: u32,

    /// Number of measured rounds in each run.
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rounds: u32,

    /// Number of runs of each system. The systems run in turn.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: u32,

    /// Systems with which to compare the hub. They must be installed. Default: all that are installed.
    #[arg(long, value_delimiter = ',', value_enum, value_name = "NAME,...")]
    pub peers: Vec<System>,

    /// Time limit of one run, after which it is killed.
    #[arg(long, default_value_t = 300, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub limit_s: u64,

    /// Print one JSON object for programs, instead of a table.
    #[arg(long)]
    pub json: bool,

    /// Run as the guard of this command; set by the program itself.
    #[arg(long, hide = true, num_args = 1.., allow_hyphen_values = true)]
    pub guard: Option<Vec<OsString>>,
}

impl Args {
    /// Returns the systems of `--peers`, each once. Returns all systems if the flag is not set.
    pub fn systems(&self) -> Vec<System> {
        let asked = |system: &System| self.peers.is_empty() || self.peers.contains(system);
        System::value_variants().iter().copied().filter(asked).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn systems_by_name() {
        let parse = |peers| Args::try_parse_from(["phub-peers", "--peers", peers]);
        let all = [System::OpenMpi, System::Gloo];
        assert_eq!(Args::try_parse_from(["phub-peers"]).unwrap().systems(), all);
        assert_eq!(parse("gloo,openmpi,gloo").unwrap().systems(), all);
        assert_eq!(parse("gloo").unwrap().systems(), [System::Gloo]);
        let error = parse("horovod").unwrap_err().to_string();
        assert!(error.contains("horovod") && error.contains("openmpi"), "{error}");
    }

    #[test]
    fn a_guarded_command_keeps_its_own_options() {
        let line =
            ["phub-peers", "--limit-s", "7", "--guard", "probe", "--json", "--workers", "2", "--limit-s"];
        let args = Args::try_parse_from(line).unwrap();
        assert_eq!((args.limit_s, args.json), (7, false));
        assert_eq!(args.guard.unwrap(), line[4..]);
    }
}
