//! A trial that sends bytes from each NIC to the same NIC, and checks them. Settings cannot show that a NIC moves
//! bytes; only a trial can.

use fabric::verbs::{
    ConnectError, LoopbackError, NicOptions, PathFlags, VerbsError, loopback, takes_dma_bufs,
};

use crate::doctor::check::Check;

/// The number of bytes in each direction. These bytes take a fifth of a second on soft-RoCE in an emulated
/// virtual machine, and are enough to measure the rate of a real NIC.
const BYTES: usize = 8 << 20;

/// Sends the bytes over a NIC to itself. The link gets queues for the job's fullest lane (a core with its
/// NIC): a device does not guarantee the queue sizes that it announces (decision 39).
pub(crate) fn over(nic: &NicOptions, chunks: u32, paths: &PathFlags) -> Check {
    let name = format!("bytes over {nic}");
    match loopback(nic, BYTES, chunks, paths) {
        Ok(moved) => {
            let gb_per_s = 2.0 * moved.bytes as f64 / moved.elapsed.as_secs_f64() / 1e9;
            let seen =
                format!("{} bytes to itself and back, each byte checked: {gb_per_s:.3} GB/s", moved.bytes);
            Check::pass(name, seen)
        }
        Err(error) => Check::fail(name, error.to_string(), fix(&error, &nic.device)),
    }
}

/// Checks whether this NIC could read gradients in a GPU. The check needs no GPU.
pub(crate) fn from_gpus(nic: &NicOptions) -> Check {
    let seen = match takes_dma_bufs(&nic.device) {
        Ok(()) => "its driver accepts dma-bufs; dma-bufs of a GPU were not tried".to_owned(),
        Err(why) => format!("none: {why}"),
    };
    Check::note(format!("dma-bufs with {nic}"), seen)
}

fn fix(error: &LoopbackError, device: &str) -> String {
    match error {
        LoopbackError::Verbs(VerbsError::Register(_))
        | LoopbackError::Connect(ConnectError::Verbs(VerbsError::Register(_))) => {
            "ulimit -l unlimited, or see the advice of the check memlock".into()
        }
        LoopbackError::Closed { .. } | LoopbackError::Silent { .. } => format!(
            "let packets from this machine to itself pass (RoCE v2: iptables -I INPUT -p udp --dport 4791 -j ACCEPT); compare ibv_rc_pingpong -d {device}"
        ),
        LoopbackError::Connect(ConnectError::Verbs(VerbsError::Create(_))) => {
            format!("do what the error says; --nics ^{device} leaves the device out")
        }
        LoopbackError::Wrong { .. } => {
            format!(
                "do not train over {device}: the device or its driver corrupts data; --nics ^{device} leaves the device out"
            )
        }
        _ => format!(
            "dmesg may have messages of the driver of {device}; --nics ^{device} leaves the device out"
        ),
    }
}
