//! A peer in another process, which executes commands from its standard input, and replies on its standard
//! output.
//!
//! ```text
//!   test  -- "post 0 17\n" -->  child: serve(Local)
//!         <-- "@Accepted\n" --
//! ```
//!
//! A reply is the text after an `@`, because the child is the test binary, and the test harness also prints
//! lines. The child belongs to the test, so its output is trusted.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::{Peer, Seen};
use crate::Posted;

/// Writes a line for the test. The test reads it by [`Remote::read_reply`].
pub(super) fn say(output: &mut impl Write, text: &str) -> std::io::Result<()> {
    writeln!(output, "@{text}")?;
    output.flush()
}

/// Executes the commands of a [`Remote`] until the remote closes the pipe. It is the child's main loop.
pub(super) fn serve(peer: &mut dyn Peer, input: impl Read, mut output: impl Write) -> std::io::Result<()> {
    let mut reply = |text: String| say(&mut output, &text);
    reply("ready".into())?;
    for line in BufReader::new(input).lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let number = |word: &str| word.parse::<u32>().expect("a test's own number");
        let link = |word| number(word) as usize;
        match words[..] {
            ["post", at, value] => reply(format!("{:?}", peer.post(link(at), number(value))))?,
            ["flush"] => {
                peer.flush();
                reply("done".into())?;
            }
            ["poll"] => {
                let seen = peer.poll();
                let seen = seen.iter().map(|seen| format!("{} {} {},", seen.link, seen.value, seen.whole));
                reply(seen.collect())?;
            }
            ["echo", count] => {
                peer.echo(number(count) as usize);
                reply("done".into())?;
            }
            ["detach", at] => {
                peer.detach(link(at));
                reply("done".into())?;
            }
            _ => panic!("unknown command {line:?}"),
        }
    }
    Ok(())
}

/// The test's handle of a peer process. Dropping the handle kills the process and reaps it.
#[derive(Debug)]
pub struct Remote {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Remote {
    /// Starts a [`peer_process`](super::peer_process). Does not wait for it, because the process may have to
    /// connect first.
    pub fn start(mut command: Command) -> std::io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let to = child.stdin.take().expect("piped");
        let from = BufReader::new(child.stdout.take().expect("piped"));
        Ok(Remote { child, to, from })
    }

    fn ask(&mut self, command: std::fmt::Arguments) -> String {
        writeln!(self.to, "{command}").expect("the peer process lives");
        self.read_reply()
    }

    /// Returns the next line from the process.
    pub(super) fn read_reply(&mut self) -> String {
        loop {
            let mut line = String::new();
            let bytes = self.from.read_line(&mut line).expect("the peer process writes text");
            assert!(bytes > 0, "the peer process ended: {:?}", self.child.wait());
            if let Some((_, reply)) = line.trim_end().split_once('@') {
                return reply.to_owned();
            }
        }
    }
}

impl Peer for Remote {
    fn post(&mut self, link: usize, value: u32) -> Posted {
        match self.ask(format_args!("post {link} {value}")).as_str() {
            "Accepted" => Posted::Accepted,
            "Full" => Posted::Full,
            "Closed" => Posted::Closed,
            other => panic!("the peer process says {other:?}"),
        }
    }

    fn flush(&mut self) {
        self.ask(format_args!("flush"));
    }

    fn poll(&mut self) -> Vec<Seen> {
        let reply = self.ask(format_args!("poll"));
        let seen = reply.split_terminator(',').map(|seen| match seen.split(' ').collect::<Vec<_>>()[..] {
            [link, value, whole] => Seen {
                link: link.parse().expect("a link"),
                value: value.parse().expect("a value"),
                whole: whole == "true",
            },
            _ => panic!("the peer process saw {seen:?}"),
        });
        seen.collect()
    }

    fn echo(&mut self, count: usize) {
        self.ask(format_args!("echo {count}"));
    }

    fn detach(&mut self, link: usize) {
        self.ask(format_args!("detach {link}"));
    }

    fn die(self: Box<Self>) {} // dropping kills the process
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = self.child.kill(); // SIGKILL
        let _ = self.child.wait();
    }
}
