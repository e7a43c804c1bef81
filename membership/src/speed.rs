//! How fast bytes come from a hub: by a short transfer over its control port, for machines whose NICs tell no speed.
//!
//! ```text
//!   first bytes | the connection speeds up, and a shaper lets its burst through | counted | the end, or LONGEST
//!               |<------------------------ SETTLES ----------------------------->|
//! ```

use std::io::Read;
use std::time::{Duration, Instant};

use authority::{Credential, Right};

use crate::control::Control;
use crate::error::MemberError;

/// The longest measurement, with its connection.
pub const MEASURED_IN: Duration = Duration::from_millis(200);
/// It ends so long after its first bytes.
const LONGEST: Duration = Duration::from_millis(100);
/// Bytes count that come later than this. A transfer that is over by then counts as a whole.
const SETTLES: Duration = Duration::from_millis(25);
/// A shorter one says nothing.
const SHORTEST: Duration = Duration::from_millis(1);

/// How fast bytes come from the hub at this address, in Gb/s. Takes at most `limit`.
///
/// # Errors
/// When the hub cannot be reached or refuses, and when too little comes.
pub fn measure(address: &str, limit: Duration, credential: Option<&Credential>) -> Result<f64, MemberError> {
    const WHAT: &str = "measure the link";
    let control = Control::new(address, "", limit, credential)?;
    let response = control.get("speed", Right::Join).map_err(|failure| failure.error)?;
    if !response.status().is_success() {
        let refused = control.read_reply::<serde_json::Value>(WHAT, response);
        return Err(match refused {
            Err(failure) => failure.error,
            Ok(_) => unreachable!("its status is none of success"),
        });
    }
    let nonsense = |saw| MemberError::Nonsense { hub: address.to_owned(), what: WHAT, saw };
    rate(response.into_body().into_reader()).map_err(nonsense)
}

/// In Gb/s. Reads until the end, an error or the time is over.
fn rate(mut bytes: impl Read) -> Result<f64, String> {
    let mut room = vec![0; 1 << 16];
    // Those that came with the head, while nobody looked at a clock.
    let first = bytes.read(&mut room).map_err(|error| format!("no bytes: {error}"))?;
    let begun = Instant::now();
    let (mut all, mut last, mut settled) = (0, begun, None);
    while last - begun < LONGEST {
        match bytes.read(&mut room) {
            Ok(count) if count > 0 => all += count as u64,
            _ => break,
        }
        last = Instant::now();
        if settled.is_none() && last - begun >= SETTLES {
            settled = Some((last, all));
        }
    }
    let (since, before) = settled.filter(|&(since, _)| last - since >= SETTLES).unwrap_or((begun, 0));
    let (counted, time) = (all - before, last - since);
    if time < SHORTEST {
        return Err(format!("{} bytes within {time:?}, which is too little", first as u64 + all));
    }
    Ok(counted as f64 * 8.0 / time.as_secs_f64() / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shaper: a burst at once, and then so many bytes each millisecond.
    struct Shaped {
        burst: usize,
        each_ms: usize,
        begun: Instant,
        taken: usize,
    }

    impl Read for Shaped {
        fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
            loop {
                let allowed = self.burst + self.each_ms * self.begun.elapsed().as_millis() as usize;
                let count = room.len().min(allowed - self.taken);
                if count > 0 {
                    self.taken += count;
                    return Ok(count);
                }
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_burst_does_not_count() {
        // 0.2 Gb/s: 2.5 MB in 100 ms, and as much at once.
        let shaped = Shaped { burst: 2_500_000, each_ms: 25_000, begun: Instant::now(), taken: 0 };
        let gbps = rate(shaped).unwrap();
        assert!((0.15..0.25).contains(&gbps), "{gbps}");
    }

    #[test]
    fn what_ends_at_once_says_nothing() {
        let why = rate(&[0; 100][..]).unwrap_err();
        assert!(why.contains("100 bytes within") && why.contains("too little"), "{why}");
    }
}
