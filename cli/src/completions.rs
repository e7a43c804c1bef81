//! `phub-server completions`: what a shell needs to complete the program's commands and options.

use clap::{Command, Parser};
use clap_complete::{Shell, generate};

use crate::out::line;

/// Settings of `phub-server completions`.
///
/// For bash, now and in each new shell: `phub-server completions bash >> ~/.bash_completion`. For fish:
/// `phub-server completions fish > ~/.config/fish/completions/phub-server.fish`. For zsh: a file `_phub-server` in a folder of
/// its `fpath`.
#[derive(Clone, Debug, Parser)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

impl CompletionsArgs {
    /// Prints the shell's script.
    ///
    /// # Errors
    /// When stdout takes nothing.
    pub fn run(&self, mut program: Command) -> anyhow::Result<()> {
        let mut script = Vec::new();
        generate(self.shell, &mut program, "phub-server", &mut script);
        line(String::from_utf8(script)?.trim_end())
    }
}
