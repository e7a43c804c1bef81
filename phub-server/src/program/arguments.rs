//! Command lines, the environment and a configuration file. Only this file makes settings of programs from
//! these three sources.
//!
//! A variable that is empty is not set. An error names the variable or file that a value came from.

use std::ffi::{OsStr, OsString};

use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::{ArgMatches, Command, CommandFactory, FromArgMatches};

use super::config::{self, Config, flag, is_given};

/// Arguments that cannot be parsed.
#[derive(Debug)]
pub struct Unusable {
    error: clap::Error,
    /// A sentence for each setting that the error names and that comes from the environment or a file. The
    /// sentence names the origin of the value.
    notes: Vec<String>,
}

impl Unusable {
    /// Returns the reason, in one sentence or two.
    pub fn in_words(&self) -> String {
        let text = self.error.render().to_string();
        // The text after an empty line is advice for people at a terminal.
        let why = text.split("\n\n").next().unwrap_or_default();
        let why = why.trim_start_matches("error: ").trim_end().to_owned();
        self.notes.iter().fold(why, |why, note| format!("{why}\n  {note}"))
    }

    /// Prints the error, and ends the process, as clap does.
    pub fn exit(self) -> ! {
        let _ = self.error.print();
        self.notes.iter().for_each(|note| super::exit::say(format_args!("\n{note}")));
        std::process::exit(self.error.exit_code())
    }
}

/// Parses the arguments of a program; the first is its name.
///
/// Returns an error if the arguments, the environment or the configuration file are not valid. `--help` and
/// `--version` also return an error, with the text to print.
pub fn parse<T: CommandFactory + FromArgMatches>(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<T, Unusable> {
    let mut command = without_empty(T::command());
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let unusable = |error: clap::Error, command: &Command| {
        let is_wrong = !matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
        let notes = if is_wrong { notes(&error, command, &arguments) } else { Vec::new() };
        Unusable { error, notes }
    };
    let parsed = |command: &mut Command| -> Result<T, clap::Error> {
        let file = config::read(chosen(command, &arguments), &arguments);
        let file = file.map_err(|why| command.error(ErrorKind::Io, why))?;
        let of_file = file.into_iter().flat_map(|file| file.flags).map(|(_, argument)| argument);
        let all: Vec<OsString> = arguments.iter().cloned().chain(of_file).collect();
        let mut matches: ArgMatches = command.try_get_matches_from_mut(all)?;
        T::from_arg_matches_mut(&mut matches).map_err(|error| error.format(command))
    };
    parsed(&mut command).map_err(|error| unusable(error, &command))
}

/// Returns a sentence for each flag that a text names and whose value comes from the environment or a configuration
/// file.
pub fn variables_in(text: &str, command: &Command, arguments: &[OsString]) -> Vec<String> {
    let of_environment = of_environment(command, arguments).into_iter().map(|(flag, variable, value)| {
        (format!("{flag} comes from the environment: {variable} is {value:?}"), flag)
    });
    // If the file cannot be read, an earlier error has reported it.
    let file = config::read(command, arguments).ok().flatten();
    let of_file = file.into_iter().flat_map(|Config { path, flags }| {
        let from = move |(flag, _)| (format!("{flag} comes from {}", path.display()), flag);
        flags.into_iter().map(from)
    });
    of_environment.chain(of_file).filter_map(|(note, flag)| names(text, &flag).then_some(note)).collect()
}

fn notes(error: &clap::Error, command: &Command, arguments: &[OsString]) -> Vec<String> {
    let command = chosen(command, arguments);
    let text = error.render().to_string();
    let mut notes = variables_in(text.split("\n\n").next().unwrap_or_default(), command, arguments);
    if error.kind() == ErrorKind::MissingRequiredArgument && notes.is_empty() {
        let set: Vec<String> =
            of_environment(command, arguments).into_iter().map(|(_, name, _)| name).collect();
        notes.extend((!set.is_empty()).then(|| format!("set in the environment: {}", set.join(", "))));
    }
    notes
}

/// Returns the subcommand that the arguments choose, or the command itself.
fn chosen<'a>(command: &'a Command, arguments: &[OsString]) -> &'a Command {
    let name = arguments.iter().skip(1).find_map(|argument| command.find_subcommand(argument));
    name.unwrap_or(command)
}

/// Returns the flags whose values come from the environment, each with its variable and value.
fn of_environment(command: &Command, arguments: &[OsString]) -> Vec<(String, String, String)> {
    let of_arg = |arg: &clap::Arg| {
        let (flag, variable) = (flag(arg)?, arg.get_env()?.to_str()?.to_owned());
        let value = std::env::var_os(&variable).filter(|value| !value.is_empty())?;
        (!is_given(&flag, arguments)).then(|| (flag, variable, value.to_string_lossy().into_owned()))
    };
    command.get_arguments().filter_map(of_arg).collect()
}

/// Whether a text has this flag, and not only a longer flag with the same beginning.
fn names(text: &str, flag: &str) -> bool {
    text.match_indices(flag).any(|(at, _)| {
        let next = text[at + flag.len()..].chars().next();
        !next.is_some_and(|next| next.is_ascii_alphanumeric() || next == '-')
    })
}

/// Returns the command, with empty variables treated as not set.
fn without_empty(command: Command) -> Command {
    let is_empty = |name: &OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    let command = command.mut_args(|arg| match arg.get_env().is_some_and(is_empty) {
        true => arg.env(Resettable::<clap::builder::OsStr>::Reset),
        false => arg,
    });
    let subcommands: Vec<String> = command.get_subcommands().map(|each| each.get_name().to_owned()).collect();
    subcommands.into_iter().fold(command, |command, name| command.mut_subcommand(name, without_empty))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_not_a_longer_one() {
        assert!(names("choose another with --listen (port 0)", "--listen"));
        assert!(names("'--listen <IP:PORT>'", "--listen"));
        assert!(!names("--checkpoint-every needs it", "--checkpoint"));
        assert!(!names("--checkpoints", "--checkpoint"));
    }
}
