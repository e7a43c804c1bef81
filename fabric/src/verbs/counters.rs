//! The counters of a NIC's port since its driver was loaded, and the port's speed. This module reads these
//! numbers from the kernel on request.

use std::collections::BTreeMap;
use std::path::Path;

use super::gid::SYSFS;

/// The counters to read, if a driver has them: moved bytes, and events that slow a fabric down or break it.
/// Some counters have one name in Mellanox's driver and another in soft-RoCE.
const READ: [&str; 22] = [
    "port_xmit_data",             // in words of 4 bytes
    "port_rcv_data",              // in words of 4 bytes, too
    "port_xmit_wait",             // ticks in which the switch gave no credit
    "port_xmit_discards",         // packets that the port dropped instead of sending
    "port_rcv_errors",            // packets that came with errors
    "symbol_error",               // errors on the cable
    "link_downed",                // how often the link was lost
    "out_of_sequence",            // packets that came in another order: some were lost
    "out_of_seq_request",         // the same, by soft-RoCE
    "packet_seq_err",             // the peer said that packets were lost
    "rcvd_seq_err",               // the same, by soft-RoCE
    "local_ack_timeout_err",      // the peer did not acknowledge in time
    "completer_retry_err",        // retries, by soft-RoCE
    "duplicate_request",          // the peer sent packets again that had arrived
    "out_of_buffer",              // no receive request was posted
    "rnr_nak_retry_err",          // the peer had no receive request
    "rcvd_rnr_err",               // the same, by soft-RoCE
    "np_cnp_sent",                // this end asked the peer to send less: congestion
    "np_ecn_marked_roce_packets", // packets that a congested switch has marked
    "rp_cnp_handled",             // the peer asked this end to send less
    "rp_cnp_ignored",             // this end ignored such a request
    "roce_adp_retrans",           // adaptive retransmissions
];

/// Returns the counters of a device's port by the kernel's names. Counters that the driver does not have are
/// missing.
pub fn counters(device: &str, port: u8) -> BTreeMap<&'static str, u64> {
    read(Path::new(SYSFS), device, port)
}

/// Returns the speed of a port's link in Mb/s, as the driver reports it. The speed that soft-RoCE reports is
/// nominal.
pub fn mbps(device: &str, port: u8) -> Option<u32> {
    rate(Path::new(SYSFS), device, port)
}

/// Reads the rate from a line like `2.5 Gb/sec (1X SDR)`.
fn rate(sysfs: &Path, device: &str, port: u8) -> Option<u32> {
    let path = sysfs.join(device).join("ports").join(port.to_string()).join("rate");
    let text = std::fs::read_to_string(path).ok()?;
    let (gbps, _) = text.split_once(" Gb/sec")?;
    Some((gbps.trim().parse::<f64>().ok()? * 1e3).round() as u32)
}

fn read(sysfs: &Path, device: &str, port: u8) -> BTreeMap<&'static str, u64> {
    let home = sysfs.join(device).join("ports").join(port.to_string());
    let number = |folder: &str, name: &str| -> Option<u64> {
        std::fs::read_to_string(home.join(folder).join(name)).ok()?.trim().parse().ok()
    };
    let counter = |name| Some((name, number("counters", name).or_else(|| number("hw_counters", name))?));
    READ.into_iter().filter_map(counter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_both_folders_are_read_and_others_are_absent() {
        let root = std::env::temp_dir().join(format!("phub-counters-{}", std::process::id()));
        let port = root.join("mlx5_0/ports/1");
        for (path, text) in [
            ("counters/port_xmit_data", "18446744073709551615\n"),
            ("counters/link_downed", "3\n"),
            ("hw_counters/link_downed", "9\n"),
            ("hw_counters/np_cnp_sent", "7\n"),
            ("hw_counters/lifespan", "10\n"),
            ("hw_counters/out_of_sequence", "N/A (no PMA)\n"),
            ("rate", "2.5 Gb/sec (1X SDR)\n"),
        ] {
            let path = port.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let seen: Vec<_> = read(&root, "mlx5_0", 1).into_iter().collect();
        assert_eq!(seen, [("link_downed", 3), ("np_cnp_sent", 7), ("port_xmit_data", u64::MAX)]);
        assert!(read(&root, "mlx5_0", 2).is_empty());
        assert_eq!((rate(&root, "mlx5_0", 1), rate(&root, "mlx5_0", 2)), (Some(2500), None));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
