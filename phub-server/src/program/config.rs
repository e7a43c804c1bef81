//! Configuration files: TOML with the flags of a command as keys, without their dashes.
//!
//! The environment overrides a file, and the command line overrides both. Only commands with `--config` have
//! a file.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, Command};
use toml::{Table, Value};

/// The flag that names a configuration file.
const CONFIG: &str = "--config";
/// The length limit of a configuration file, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// A configuration file, with only the settings that neither the command line nor the environment has.
#[derive(Debug)]
pub(super) struct Config {
    /// The file.
    pub path: PathBuf,
    /// Each flag of the file, and the same flag as one argument with its value: `--cores=4`, or `--checksum` alone.
    pub flags: Vec<(String, OsString)>,
}

/// Reads the configuration file that the flag `--config` or its environment variable names.
///
/// # Errors
/// Returns the fault, in words, if the file cannot be read, or if a line is not a key and a value.
pub(super) fn read(command: &Command, arguments: &[OsString]) -> Result<Option<Config>, String> {
    let Some(named) = command.get_arguments().find(|arg| flag(arg).as_deref() == Some(CONFIG)) else {
        return Ok(None);
    };
    let variable = || std::env::var_os(named.get_env()?).filter(|value| !value.is_empty());
    let Some(path) = value_of(CONFIG, arguments).or_else(variable).map(PathBuf::from) else {
        return Ok(None);
    };
    let table: Table = toml::from_str(&text(&path)?)
        .map_err(|error| format!("{} is no TOML: {}", path.display(), error.to_string().trim_end()))?;
    let mut flags = Vec::with_capacity(table.len());
    for (key, value) in &table {
        let flag = format!("--{key}");
        let wrong = |what: &str| format!("{}: {key} {what}", path.display());
        if !key.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-') {
            return Err(wrong(
                "is not a flag: expected a flag of this command without its dashes, like late-limit-s",
            ));
        }
        if flag == CONFIG {
            return Err(wrong("cannot be in a configuration file: give it on the command line"));
        }
        let arg = command.get_arguments().find(|arg| self::flag(arg).as_ref() == Some(&flag));
        let is_switch = arg.is_some_and(|arg| matches!(arg.get_action(), ArgAction::SetTrue));
        let is_given = is_given(&flag, arguments) || arg.is_some_and(is_in_environment);
        let argument = match (value, is_switch) {
            (Value::Boolean(true), true) => Some(flag.clone()),
            (Value::Boolean(false), true) => None,
            (_, true) => return Err(wrong("is on or off: expected true or false")),
            _ => Some(format!(
                "{flag}={}",
                words(value).ok_or_else(|| wrong("is not a value: expected a string, a number or a list"))?
            )),
        };
        flags.extend(argument.filter(|_| !is_given).map(|argument| (flag, argument.into())));
    }
    Ok(Some(Config { path, flags }))
}

/// Whether a command line has a flag.
pub(super) fn is_given(flag: &str, arguments: &[OsString]) -> bool {
    arguments.iter().any(|given| rest(flag, given).is_some())
}

/// Returns the flag of an argument, such as `--cores`, if it has one.
pub(super) fn flag(arg: &Arg) -> Option<String> {
    arg.get_long().map(|long| format!("--{long}"))
}

fn is_in_environment(arg: &Arg) -> bool {
    arg.get_env().and_then(std::env::var_os).is_some_and(|value| !value.is_empty())
}

/// Returns the part of an argument after a flag: no value, or the value after `=`. Returns `None` for another
/// flag.
fn rest<'a>(flag: &str, given: &'a OsStr) -> Option<Option<&'a OsStr>> {
    match given.as_bytes().strip_prefix(flag.as_bytes())? {
        [] => Some(None),
        [b'=', value @ ..] => Some(Some(OsStr::from_bytes(value))),
        _ => None,
    }
}

fn value_of(flag: &str, arguments: &[OsString]) -> Option<OsString> {
    let at = arguments.iter().position(|given| rest(flag, given).is_some())?;
    match rest(flag, &arguments[at])? {
        Some(value) => Some(value.into()),
        None => arguments.get(at + 1).cloned(),
    }
}

fn text(path: &Path) -> Result<String, String> {
    let read = authority::read_file(path, MAX_BYTES);
    let text = read.and_then(|bytes| String::from_utf8(bytes).map_err(std::io::Error::other));
    text.map_err(|error| {
        format!("cannot read {}: {error}; --config wants a TOML file that this user may read", path.display())
    })
}

/// Returns a value as a command line has it. The items of a list have commas between them.
fn words(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(is_on) => Some(is_on.to_string()),
        Value::Array(items) if !items.iter().any(Value::is_array) => {
            Some(items.iter().map(words).collect::<Option<Vec<_>>>()?.join(","))
        }
        Value::Array(_) | Value::Datetime(_) | Value::Table(_) => None,
    }
}
