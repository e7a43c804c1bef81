//! `phub-server man` and `phub-server completions`: pages for `man`, and scripts with which a shell completes commands and
//! options.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Command, Parser};
use clap_complete::{Shell, generate};

use crate::out::line;

/// Settings of `phub-server man`.
///
/// `man -l DIRECTORY/phub-server-serve.1` shows a page. `phub-server man ~/.local/share/man/man1` puts the pages where
/// `man` finds them.
#[derive(Clone, Debug, Parser)]
pub struct ManArgs {
    /// Directory for the pages. It is created if it does not exist.
    directory: PathBuf,
}

impl ManArgs {
    /// Writes a page for the program, and one for each command.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be made or written.
    pub fn run(&self, program: Command) -> anyhow::Result<()> {
        let at = self.directory.display();
        let failed = || format!("writing pages to {at}: give a directory that this user may write");
        std::fs::create_dir_all(&self.directory).with_context(failed)?;
        clap_mangen::generate_to(program, &self.directory).with_context(failed)?;
        line(format_args!("phub-server: pages are in {at}; `man -l {at}/phub-server.1` shows the first"))
    }
}

/// Settings of `phub-server completions`.
///
/// For bash, in each new shell: `phub-server completions bash >> ~/.bash_completion`. For fish:
/// `phub-server completions fish > ~/.config/fish/completions/phub-server.fish`. For zsh: a file `_phub-server` in a folder of
/// its `fpath`.
#[derive(Clone, Debug, Parser)]
pub struct CompletionsArgs {
    /// The shell for which the script is.
    #[arg(value_enum)]
    shell: Shell,
}

impl CompletionsArgs {
    /// Prints the shell's script.
    ///
    /// # Errors
    /// Returns an error if writing to stdout fails.
    pub fn run(&self, mut program: Command) -> anyhow::Result<()> {
        let mut script = Vec::new();
        generate(self.shell, &mut program, "phub-server", &mut script);
        let script = String::from_utf8(script)?;
        // If the program's name has a hyphen, the library's script for bash defines a table by one name and
        // looks it up by another.
        let script = script.replace("phub__subcmd__server__subcmd__", "phub__server__subcmd__");
        line(script.trim_end())
    }
}
