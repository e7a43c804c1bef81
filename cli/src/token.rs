//! `phub-server token`: makes secrets, and tokens from them.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use authority::{ALL_JOBS, Credential, Right, Secret};
use clap::Parser;
use pbox_core::control::check_job_name;

use crate::out::line;

/// Settings of `phub-server token`.
///
/// A hub and its workers share one secret. Give it to all of them by PHUB_TOKEN, or by a file that PHUB_TOKEN_FILE or
/// --token-file names. Without these settings each user of a machine has a secret in ~/.config/phub/secret. So on one
/// machine, and where machines share home directories, there is nothing to do.
///
/// A token is made from the secret and allows one thing, for people and programs that should not have the secret:
///
///   curl -H "Authorization: Bearer $(phub-server token)" localhost:7077/v1/hub
///
///   PHUB_TOKEN=$(phub-server token --right join --job resnet) python train.py
///
/// A secret can be changed without a restart. Write the new secret as the first line of the hub's file, keep the old
/// secret as the second line, and send the hub SIGHUP. Give the workers the new secret. Finally, remove the old line
/// and send SIGHUP again. Running jobs continue.
#[derive(Clone, Debug, Parser)]
pub struct TokenArgs {
    /// Print a new random secret, not a token. The secret is stored nowhere: save it yourself.
    #[arg(long, conflicts_with_all = ["right", "job", "expires", "token_file"])]
    new: bool,

    /// Right of the token. With read, a client sees the hub and the state of jobs. With join, it also takes part in jobs.
    /// With operate, it also stops jobs and drains the hub.
    #[arg(long, default_value = "read", value_name = "read|join|operate")]
    right: Right,

    /// Name of the only job for which the token is valid. Default: all jobs.
    #[arg(long, value_name = "NAME")]
    job: Option<String>,

    /// How long the token is valid: 30d, 12h, 45m or 90s, by the hub's clock. Default: as long as the hub has this secret.
    #[arg(long, value_name = "TIME", value_parser = time)]
    expires: Option<Duration>,

    /// File with the secret. Default: PHUB_TOKEN, the file PHUB_TOKEN_FILE, or ~/.config/phub/secret.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl TokenArgs {
    /// Prints the token that was requested.
    ///
    /// # Errors
    /// Returns an error if there is no secret, or if no job can have this name.
    pub fn run(&self) -> anyhow::Result<()> {
        if self.new {
            return line(Secret::random()?.reveal());
        }
        if let Some(job) = &self.job {
            check_job_name(job)?;
        }
        let credential = match &self.token_file {
            Some(path) => Credential::read(path)?,
            None => Credential::find()?,
        };
        let secret = credential.secrets()?.first();
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let expires = self.expires.map(|time| (now + time).as_secs());
        line(secret.token_until(self.right, self.job.as_deref().unwrap_or(ALL_JOBS), expires))
    }
}

fn time(text: &str) -> Result<Duration, String> {
    let wrong = || {
        format!("{text:?}: expected a number of days, hours, minutes or seconds, like 30d, 12h, 45m or 90s")
    };
    let units = [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];
    let (number, unit) = units
        .iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)))
        .ok_or_else(wrong)?;
    let number: u32 = number.parse().map_err(|_| wrong())?;
    if number == 0 { Err(wrong()) } else { Ok(Duration::from_secs(u64::from(number) * unit)) }
}
