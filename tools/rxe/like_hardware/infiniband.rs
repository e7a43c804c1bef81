//! Ports of InfiniBand, imitated on soft-RoCE.

use std::net::Ipv6Addr;

use crate::ffi::*;
use crate::functions::Argument as _;

/// A port of `LIKE_INFINIBAND`.
pub struct Infiniband {
    pub device: String,
    pub lid: u16,
    gid: Ipv6Addr,
    index: u8,
    real: Ipv6Addr,
}

pub fn infiniband() -> Vec<Infiniband> {
    let Some(file) = std::env::var_os("LIKE_INFINIBAND") else { return Vec::new() };
    let text = std::fs::read_to_string(file).expect("LIKE_INFINIBAND is a file");
    let port = |line: &str| -> Option<Infiniband> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[device, lid, gid, index, real] = &words[..] else { return None };
        let (lid, gid, index, real) =
            (lid.parse().ok()?, gid.parse().ok()?, index.parse().ok()?, real.parse().ok()?);
        Some(Infiniband { device: device.into(), lid, gid, index, real })
    };
    text.lines().map(|line| port(line).unwrap_or_else(|| panic!("LIKE_INFINIBAND has {line:?}"))).collect()
}

/// Returns the RoCE path that imitates this InfiniBand path. Returns a path that `LIKE_INFINIBAND` does not name
/// unchanged.
pub fn really(qp: *mut ibv_qp, said: &ibv_ah_attr, dgid: Ipv6Addr) -> ibv_ah_attr {
    let copy = || ibv_ah_attr {
        grh: ibv_global_route { dgid: ibv_gid { raw: said.grh.dgid.raw }, ..said.grh },
        ..*said
    };
    let ports = infiniband();
    let name = qp.device().unwrap();
    let own = ports.iter().find(|port| port.device.as_bytes() == name.as_bytes());
    let is_it =
        |port: &&Infiniband| if said.is_global != 0 { port.gid == dgid } else { port.lid == said.dlid };
    let (Some(own), Some(peer)) = (own, ports.iter().find(is_it)) else { return copy() };
    let mut real = copy();
    (real.is_global, real.dlid) = (1, 0);
    (real.grh.dgid.raw, real.grh.sgid_index, real.grh.hop_limit) = (peer.real.octets(), own.index, 64);
    real
}
