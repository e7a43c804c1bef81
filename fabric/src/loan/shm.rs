//! A loan on one machine: the hub writes into a file in memory that the reader has made.
//!
//! ```text
//!   reader                                           hub
//!   Lender: listens at a name of its token
//!   token ------- control port -------------------->
//!   accept      <------- bytes, proof of the token - Loan::take
//!   memfd, its pages allocated --------------------> seals, length and pages checked
//!                                                    Loan::write, until all bytes are there
//!               <----- control port: bytes written --
//!   Lent::seal: nobody can change the bytes now
//! ```
//!
//! The reader allocates the pages, so they count as the reader's memory. A hub that cannot take the loan sends the weights through
//! the control port. A process without the token gets no descriptor.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
    memfd_create,
};
use rustix::io::{Errno, pwrite, retry_on_intr};

use crate::memory::{Access, Mapping, Slab, WindowError, check_plain};
use crate::proof::{PROOF, name_of, proof, proves};
use crate::ranges::Ranges;
use crate::shm::ConnectError;
use crate::shm::connect::{Listener, dial};
use crate::shm::message::{discard, receive, send};

/// The time within which a process that has connected to a lender must show its proof.
const ASK_LIMIT: Duration = Duration::from_secs(1);
/// The length of the block in which the kernel counts a file's memory, in bytes.
const BLOCK: u64 = 512;
/// The seals of lent memory: its length is final.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A reader that has memory to lend.
#[derive(Debug)]
pub struct Lender {
    token: [u8; 16],
    listener: Listener,
}

/// Memory that a reader has lent.
#[derive(Debug)]
pub struct Lent {
    file: OwnedFd,
    bytes: usize,
}

/// Memory that a hub has borrowed.
#[derive(Debug)]
pub struct Loan {
    file: OwnedFd,
    bytes: u64,
    /// The number of bytes that are written.
    written: u64,
}

impl Lender {
    /// Creates a lender that listens for the hub with this token.
    ///
    /// # Errors
    /// Returns an error if this process cannot make a socket.
    pub fn new(token: [u8; 16]) -> Result<Self, ConnectError> {
        Ok(Lender { token, listener: Listener::bind(&address(token))? })
    }

    /// Waits until the hub asks for memory, and lends it at most `most` bytes. Returns `None` after [`stop`](Self::stop).
    ///
    /// # Errors
    /// Returns an error if the hub asks for more bytes, or if there is no memory.
    pub fn lend(&self, most: u64) -> Result<Option<Lent>, ConnectError> {
        loop {
            let Some(accepted) = self.listener.accept()? else { return Ok(None) };
            let socket = accepted.as_fd();
            let asked = receive(socket, ASK_LIMIT).ok().and_then(|(bytes, fds)| {
                discard(fds);
                proven(&bytes, self.token)
            });
            // Another process may have connected.
            let Some(bytes) = asked else { continue };
            if bytes > most {
                let why = format!("the hub asks for memory of {bytes} bytes; expected at most {most}");
                return Err(ConnectError::Nonsense(why));
            }
            let lent = Lent::new(bytes)?;
            let sent = send(socket, &self.token, &[lent.file.as_fd()]);
            sent.map_err(|error| ConnectError::Nonsense(format!("lending memory to the hub: {error}")))?;
            return Ok(Some(lent));
        }
    }

    /// Ends [`lend`](Self::lend) in the thread that waits in it.
    pub fn stop(&self) {
        self.listener.stop();
    }
}

impl Lent {
    /// Allocates memory.
    fn new(bytes: u64) -> Result<Self, ConnectError> {
        let bytes = usize::try_from(bytes).expect("a 64-bit machine");
        let memfd = |call| move |errno| WindowError::Memfd { call, bytes, errno };
        let file = match memfd_create("phub-loan", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING) {
            Err(errno @ (Errno::PERM | Errno::ACCESS | Errno::NOSYS)) => {
                return Err(ConnectError::Unshared(format!(
                    "this process may not make shared memory: {errno}"
                )));
            }
            file => file.map_err(memfd("memfd_create"))?,
        };
        let length = length(bytes as u64);
        ftruncate(&file, length).map_err(memfd("ftruncate"))?;
        // With huge pages, the loan, the hub's writes and the reader's mapping are together several times as fast. The
        // kernel makes huge pages only through a mapping.
        Mapping::shared("lent memory", file.as_fd(), length as usize, Access::ReadWrite)
            .map_err(WindowError::Map)?
            .collapse_by_node(&[Ranges::default()], Access::Read, |_| ());
        retry_on_intr(|| fallocate(&file, FallocateFlags::empty(), 0, length)).map_err(memfd("fallocate"))?;
        fcntl_add_seals(&file, SEALS).map_err(memfd("adding seals"))?;
        Ok(Lent { file, bytes })
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Seals the memory, so that nobody can change it, and returns it. The hub must have written all bytes.
    ///
    /// # Errors
    /// Returns an error if another process can still write the memory, or if it cannot be mapped.
    pub fn seal(self) -> Result<Slab, WindowError> {
        Slab::of_file("lent memory", self.file.as_fd(), self.bytes)
    }
}

impl Loan {
    /// Asks the reader with this token for memory of `bytes` bytes, within `limit`.
    ///
    /// # Errors
    /// Returns an error if no reader of this machine and this network namespace has the token, or if its memory is unfit.
    pub fn take(token: [u8; 16], bytes: u64, limit: Duration) -> Result<Self, ConnectError> {
        let address = address(token);
        let socket = dial(&address, limit)?;
        let talk = |doing| move |error| ConnectError::Socket { doing, address: address.clone(), error };
        send(socket.as_fd(), &ask(bytes, token), &[]).map_err(talk.clone()("asking for memory"))?;
        let (_, mut files) = receive(socket.as_fd(), limit).map_err(talk("waiting for memory"))?;
        let checked = match (files.pop(), files.is_empty()) {
            (Some(file), true) => check(&file, bytes).map(|()| file),
            (file, _) => {
                discard(file.into_iter().chain(files).collect());
                Err("expected one descriptor".to_owned())
            }
        };
        let file = checked.map_err(|why| ConnectError::Nonsense(format!("lent memory: {why}")))?;
        Ok(Loan { file, bytes, written: 0 })
    }

    /// Returns the number of bytes that are borrowed.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of bytes that are not written yet.
    pub fn room(&self) -> u64 {
        self.bytes - self.written
    }

    /// Writes the next bytes, for which there must be room.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses.
    pub fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        assert!(bytes.len() as u64 <= self.room(), "the caller checks the room");
        while !bytes.is_empty() {
            let count = retry_on_intr(|| pwrite(&self.file, bytes, self.written))?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.written += count as u64;
            bytes = &bytes[count..];
        }
        Ok(())
    }
}

/// Returns the address of the lender with this token. The address does not show the token.
fn address(token: [u8; 16]) -> String {
    format!("phub-loan-{:032x}", u128::from_be_bytes(name_of(token)))
}

/// Returns the length of a file for this number of bytes: whole f32.
fn length(bytes: u64) -> u64 {
    bytes.next_multiple_of(size_of::<f32>() as u64).max(size_of::<f32>() as u64)
}

/// Returns the message with which a hub asks for memory of `bytes` bytes.
fn ask(bytes: u64, token: [u8; 16]) -> Vec<u8> {
    let bytes = bytes.to_le_bytes();
    [&bytes[..], &proof(token, &bytes)].concat()
}

/// Returns the number of bytes for which a message asks, if its sender has the token.
fn proven(message: &[u8], token: [u8; 16]) -> Option<u64> {
    let (bytes, proof) = message.split_first_chunk::<8>()?;
    let proof: &[u8; PROOF] = proof.try_into().ok()?;
    proves(token, bytes, proof).then(|| u64::from_le_bytes(*bytes))
}

/// Checks that a file is memory of the right length, whose pages exist. So a write cannot block, and allocates nothing.
fn check(file: &OwnedFd, bytes: u64) -> Result<(), String> {
    let failed = |call| move |errno| format!("{call}: {}", io::Error::from(errno));
    let seals = fcntl_get_seals(file).map_err(failed("reading seals"))?;
    if !seals.contains(SEALS) {
        return Err(format!("its length may change (its seals: {:#x})", seals.bits()));
    }
    check_plain(file.as_fd()).map_err(|error| error.to_string())?;
    let about = fstat(file).map_err(failed("fstat"))?;
    let (seen, allocated, expected) = (about.st_size as u64, about.st_blocks as u64 * BLOCK, length(bytes));
    if seen != expected || allocated < expected {
        return Err(format!("expected {expected} bytes, got {seen}, of which {allocated} have memory"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use zerocopy::IntoBytes;

    use super::super::token;
    use super::*;
    use crate::conformance::Watchdog;

    const LONG: Duration = Duration::from_secs(30);

    /// Lends memory for `bytes` bytes to a hub, which writes `values`.
    fn lent(bytes: u64, values: &[&[u8]]) -> Slab {
        let token = token().unwrap();
        let lender = Lender::new(token).unwrap();
        thread::scope(|scope| {
            let lent = scope.spawn(|| lender.lend(bytes).unwrap().unwrap());
            let mut loan = Loan::take(token, bytes, LONG).unwrap();
            values.iter().for_each(|values| loan.write(values).unwrap());
            drop(loan);
            lent.join().unwrap().seal().unwrap()
        })
    }

    #[test]
    fn a_hub_writes_into_the_memory_of_a_reader() {
        let _watchdog = Watchdog::start();
        let slab = lent(10, &[&[1, 2, 3], &[4, 5, 6, 7, 8, 9, 10]]);
        assert_eq!(slab.as_slice().as_bytes(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 0]);
        let bytes = vec![7; (5 << 20) + 2];
        assert_eq!(lent(bytes.len() as u64, &[&bytes]).as_slice().as_bytes()[..bytes.len()], bytes);
        assert_eq!(lent(0, &[]).as_slice(), [0.0; 0]);
    }

    #[test]
    fn a_reader_may_change_the_memory_and_nobody_else() {
        let _watchdog = Watchdog::start();
        let token = token().unwrap();
        let lender = Lender::new(token).unwrap();
        thread::scope(|scope| {
            let lent = scope.spawn(|| lender.lend(4).unwrap().unwrap());
            let mut loan = Loan::take(token, 4, LONG).unwrap();
            loan.write(&1f32.to_le_bytes()).unwrap();
            let mut slab = lent.join().unwrap().seal().unwrap();
            loan.written = 0;
            assert_eq!(loan.write(&[0; 4]).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            slab.as_mut_slice()[0] += 1.0;
            assert_eq!(slab.as_slice(), [2.0]);
        });
    }

    #[test]
    fn who_lacks_the_token_gets_no_memory() {
        let _watchdog = Watchdog::start();
        let token = token().unwrap();
        let lender = Lender::new(token).unwrap();
        thread::scope(|scope| {
            let lent = scope.spawn(|| lender.lend(8).map(|lent| lent.map(|lent| lent.bytes())));
            let stranger = dial(lender.listener.address(), LONG).unwrap();
            send(stranger.as_fd(), &ask(8, [0; 16]), &[]).unwrap();
            assert!(receive(stranger.as_fd(), LONG).is_err(), "the lender hangs up");
            assert!(Loan::take([0; 16], 8, LONG).is_err(), "nobody listens there");
            lender.stop();
            assert_eq!(lent.join().unwrap().unwrap(), None);
        });
    }

    #[test]
    fn a_loan_has_a_limit() {
        let _watchdog = Watchdog::start();
        let token = token().unwrap();
        let lender = Lender::new(token).unwrap();
        thread::scope(|scope| {
            let lent = scope.spawn(|| lender.lend(8).unwrap_err().to_string());
            assert!(Loan::take(token, 9, LONG).is_err());
            let why = lent.join().unwrap();
            assert!(why.contains("9 bytes; expected at most 8"), "{why}");
        });
    }

    #[test]
    fn memory_that_is_unfit_is_refused() {
        let memory = |bytes: u64, allocated: u64, seals| {
            let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&file, bytes).unwrap();
            if allocated > 0 {
                fallocate(&file, FallocateFlags::empty(), 0, allocated).unwrap();
            }
            fcntl_add_seals(&file, seals).unwrap();
            check(&file, 1 << 20)
        };
        assert_eq!(memory(1 << 20, 1 << 20, SEALS), Ok(()));
        for (bytes, allocated, seals) in [
            (1 << 20, 1 << 19, SEALS),
            (1 << 19, 1 << 19, SEALS),
            (1 << 21, 1 << 21, SEALS),
            (1 << 20, 1 << 20, SealFlags::SHRINK),
        ] {
            assert!(memory(bytes, allocated, seals).is_err(), "{bytes} {allocated} {seals:?}");
        }
        assert!(check(&io::pipe().unwrap().0.into(), 4).is_err());
    }
}
