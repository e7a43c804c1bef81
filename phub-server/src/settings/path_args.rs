//! Flags for the settings of RDMA paths, made from the table in `fabric::verbs`.

use clap::error::Error;
use clap::{Arg, ArgMatches, Command, FromArgMatches, value_parser};
use fabric::verbs::{PATH_SETTINGS, PathFlags, PathSetting};

/// The settings of RDMA paths that flags have set. The other settings come from the environment when NICs are
/// opened.
#[derive(Clone, Debug, Default)]
pub struct PathArgs(pub PathFlags);

fn arg(setting: &PathSetting) -> Arg {
    let PathSetting { flag, variables, least, most, default, help } = *setting;
    Arg::new(flag)
        .long(&flag[2..])
        .value_name("N")
        .value_parser(value_parser!(u16).range(i64::from(least)..=i64::from(most)))
        .help(format!("{help}. From {least} to {most} [default: {default}] [env: {}]", variables.join(", ")))
        .help_heading("How RDMA packets travel")
}

impl clap::Args for PathArgs {
    fn augment_args(command: Command) -> Command {
        command.args(PATH_SETTINGS.map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for PathArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut flags = PathFlags::default();
        for setting in PATH_SETTINGS {
            matches.get_one(setting.flag).into_iter().for_each(|&value| flags.set(setting, value));
        }
        Ok(PathArgs(flags))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::HubSettings;

    #[test]
    fn what_flags_say_comes_to_the_paths() {
        let settings =
            HubSettings::try_parse_from(["phub-server", "--rdma-tc", "106", "--rdma-sl", "3"]).unwrap();
        assert_eq!(settings.paths.0.traffic_class(), Ok(106));
    }
}
