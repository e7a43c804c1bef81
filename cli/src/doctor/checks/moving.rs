//! Moves real bytes over each NIC and back, and checks them: no setting can show that this works.

use fabric::verbs::{
    ConnectError, LoopbackError, NicOptions, PathFlags, VerbsError, loopback, takes_dma_bufs,
};

use crate::doctor::check::Check;

/// Bytes in each direction: a fifth of a second on soft-RoCE in an emulated guest, and enough for a figure on a NIC.
const BYTES: usize = 8 << 20;

/// Moves the bytes over a NIC, by a link as deep as the job's deepest lane. The depth of queues that a device announces
/// is not guaranteed (decision 39).
pub(crate) fn over(nic: &NicOptions, chunks: u32, paths: &PathFlags) -> Check {
    let name = format!("bytes over {nic}");
    match loopback(nic, BYTES, chunks, paths) {
        Ok(moved) => {
            let gb_per_s = 2.0 * moved.bytes as f64 / moved.elapsed.as_secs_f64() / 1e9;
            let seen =
                format!("{} bytes to itself and back, each one checked: {gb_per_s:.3} GB/s", moved.bytes);
            Check::pass(name, seen)
        }
        Err(error) => Check::fail(name, error.to_string(), fix(&error, &nic.device)),
    }
}

/// Returns whether gradients could leave a GPU by this NIC. The check needs no GPU.
pub(crate) fn from_gpus(nic: &NicOptions) -> Check {
    let seen = match takes_dma_bufs(&nic.device) {
        Ok(()) => "its driver takes them; those of a GPU are not tried".to_owned(),
        Err(why) => format!("none: {why}"),
    };
    Check::note(format!("dma-bufs with {nic}"), seen)
}

fn fix(error: &LoopbackError, device: &str) -> String {
    match error {
        LoopbackError::Verbs(VerbsError::Register(_))
        | LoopbackError::Connect(ConnectError::Verbs(VerbsError::Register(_))) => {
            "ulimit -l unlimited, or the advice of the check memlock".into()
        }
        LoopbackError::Closed { .. } | LoopbackError::Silent { .. } => format!(
            "let its own packets come back (RoCE v2: iptables -I INPUT -p udp --dport 4791 -j ACCEPT); compare ibv_rc_pingpong -d {device}"
        ),
        LoopbackError::Connect(ConnectError::Verbs(VerbsError::Create(_))) => {
            format!("do what the error says; --nics ^{device} leaves the device out")
        }
        LoopbackError::Wrong { .. } => {
            format!(
                "do not train over it: {device} or its driver corrupts data; --nics ^{device} leaves it out"
            )
        }
        _ => format!("dmesg may have its driver's messages; --nics ^{device} leaves it out"),
    }
}
