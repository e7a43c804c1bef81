//! The settings that a hub starts with, in one line.

use std::fmt;

use fabric::any::Transport;

use super::{CoreSelection, HubSettings};

/// The settings in effect, from all sources. Secrets are left out.
impl fmt::Display for HubSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transports: Vec<&str> =
            Transport::ALL.into_iter().filter(|&each| self.offers(each)).map(|each| each.name()).collect();
        write!(f, "control {}, data {}", self.listen, self.data_path(self.listen.ip()))?;
        write!(f, ", transports {}", transports.join("+"))?;
        write!(f, ", {}", if self.insecure { "serves everybody" } else { "wants tokens" })?;
        write!(f, ", TLS {}", on(self.tls_cert.is_some()))?;
        write!(f, ", checksums {}, congestion control {}", on(self.checksum), self.tcp_congestion)?;
        match &self.cores {
            None => write!(f, ", cores by rule")?,
            Some(CoreSelection::Half) => write!(f, ", half of the cores")?,
            Some(CoreSelection::Count(count)) => write!(f, ", cores {count}")?,
            Some(CoreSelection::Cpus(cpus)) => {
                let cpus: Vec<String> = cpus.iter().map(|cpu| cpu.0.to_string()).collect();
                write!(f, ", cpus {}", cpus.join("+"))?;
            }
        }
        match &self.checkpoints {
            None => write!(f, ", checkpoints off")?,
            Some(directory) => {
                write!(f, ", checkpoints in {}", directory.display())?;
                match self.checkpoint_every {
                    None => write!(f, " at the end of a job")?,
                    Some(rounds) => write!(f, " every {rounds} rounds")?,
                }
                write!(f, " ({} are kept", self.checkpoint_keep)?;
                self.checkpoint_jobs.map_or(Ok(()), |jobs| write!(f, ", of at most {jobs} jobs"))?;
                write!(f, ")")?;
            }
        }
        write!(f, ", a worker is dead after {} s without a heartbeat", self.heartbeat_limit_s)?;
        write!(f, ", late after {} s if other workers wait for its pushes", self.late_warning_s)?;
        self.late_limit_s.map_or(Ok(()), |limit| write!(f, " and treated as lost after {limit} s"))?;
        write!(f, ", at most {} jobs", self.jobs_limit)?;
        self.jobs_per_address.map_or(Ok(()), |jobs| write!(f, " and {jobs} of an address"))?;
        self.memory_per_address.map_or(Ok(()), |mb| write!(f, ", {mb} MB of an address"))?;
        self.memory_per_job.map_or(Ok(()), |mb| write!(f, ", {mb} MB of a job"))?;
        self.above.as_ref().map_or(Ok(()), |above| write!(f, ", below {above}"))?;
        self.trace.as_ref().map_or(Ok(()), |file| write!(f, ", timeline in {}", file.display()))?;
        if let Some(file) = &self.record {
            write!(f, ", record of at most {} MB in {}", self.record_mb, file.display())?;
        }
        self.unused_limit_s.map_or(Ok(()), |limit| write!(f, ", ends after {limit} s without a job"))
    }
}

fn on(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_whether_checkpoints_are_kept() {
        let of = |arguments: &[&str]| {
            HubSettings::of_arguments(arguments.iter().map(Into::into)).unwrap().to_string()
        };
        let line = of(&[]);
        assert!(
            line.starts_with("control 127.0.0.1:7077, data 127.0.0.1:7078, transports shm+verbs+tcp"),
            "{line}"
        );
        assert!(line.contains("checkpoints off") && !line.contains('\n'), "{line}");
        let line = of(&[
            "--checkpoints",
            "/x",
            "--checkpoint-every",
            "100",
            "--transports",
            "tcp",
            "--cores",
            "0,2",
        ]);
        assert!(line.contains("checkpoints in /x every 100 rounds (3 are kept)"), "{line}");
        assert!(line.contains("transports tcp,") && line.contains("cpus 0+2"), "{line}");
    }
}
