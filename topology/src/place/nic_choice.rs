//! The choice of the NICs that a placement uses, and the weight of each.
//!
//! This module must not depend on cores.

use super::{NicChoice, PlaceError};
use crate::host::{Host, Nic, NicId, NodeId, SocketId};

/// The largest ratio of the speeds of two NICs in use. If a NIC is slower than the fastest NIC by a larger
/// ratio, it is left out, unless the request names it.
const SPEED_SPREAD_LIMIT: u64 = 8;

/// A NIC in use.
#[derive(Clone, Debug)]
pub struct UsedNic {
    pub id: NicId,
    pub name: String,
    pub node: Option<NodeId>,
    pub socket: Option<SocketId>,
    /// The speed in bits per second; never 0. If the speed is unknown, the lowest known speed of the NICs, or 1.
    pub weight: u64,
    pub has_rdma: bool,
}

/// Returns the NICs in use, in the host's order.
pub fn choose(
    host: &Host,
    choice: &NicChoice,
    reasons: &mut Vec<String>,
) -> Result<Vec<UsedNic>, PlaceError> {
    let find = |name: &String| host.nic_named(name).ok_or_else(|| unknown(host, name));
    let except = choice.except.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    let only = match &choice.only {
        Some(names) => Some(names.iter().map(find).collect::<Result<Vec<_>, _>>()?),
        None => None,
    };
    let all = (0..host.nics.len() as u32).map(NicId);
    let mut candidates: Vec<(NicId, &Nic)> =
        all.filter(|id| !except.contains(id)).filter_map(|id| Some((id, host.nic(id)?))).collect();
    match only {
        Some(ids) => candidates.retain(|(id, _)| ids.contains(id)),
        None => drop_unfit_nics(&mut candidates, reasons),
    }
    if candidates.is_empty() {
        reasons.push(match (host.nics.is_empty(), choice.only.is_some() || !choice.except.is_empty()) {
            (true, _) => "The host has no NIC: only cores are balanced.".into(),
            (false, true) => "No NIC was chosen: only cores are balanced.".into(),
            (false, false) => "No NIC is fit for use: only cores are balanced.".into(),
        });
    }
    let stand_in = candidates.iter().filter_map(|(_, nic)| nic.bits_per_s()).min();
    let unknown: Vec<&str> =
        candidates.iter().filter(|(_, nic)| nic.speed.is_none()).map(|(_, nic)| nic.name.as_str()).collect();
    if let (Some(slowest), false) = (stand_in, unknown.is_empty()) {
        let slowest = crate::amount::bits_per_s(slowest);
        let names = unknown.join(", ");
        reasons
            .push(format!("The speed of {names} is unknown: counted as {slowest}, the slowest known speed."));
    } else if unknown.len() > 1 {
        reasons.push("No NIC's speed is known: all NICs count as equally fast.".into());
    }
    let used = |(id, nic): (NicId, &Nic)| UsedNic {
        id,
        name: nic.name.clone(),
        node: nic.node,
        socket: nic.socket,
        weight: nic.bits_per_s().or(stand_in).unwrap_or(1).max(1),
        has_rdma: nic.kind.has_verbs(),
    };
    Ok(candidates.into_iter().map(used).collect())
}

fn drop_unfit_nics(candidates: &mut Vec<(NicId, &Nic)>, reasons: &mut Vec<String>) {
    candidates.retain(|(_, nic)| {
        let usable = nic.link_up != Some(false);
        if !usable {
            reasons.push(format!("{} has no link: left out. Name it to use it anyway.", nic.name));
        }
        usable
    });
    if let Some(rdma) =
        candidates.iter().find(|(_, nic)| nic.kind.has_verbs()).map(|(_, nic)| nic.name.clone())
    {
        candidates.retain(|(_, nic)| {
            if !nic.kind.has_verbs() {
                reasons.push(format!(
                    "{} has no RDMA, but {rdma} has: left out, because it cannot carry RDMA traffic. Name it to use it \
                     anyway.",
                    nic.name
                ));
            }
            nic.kind.has_verbs()
        });
    }
    let fastest = candidates.iter().max_by_key(|(_, nic)| nic.bits_per_s()).map(|(_, nic)| *nic);
    let Some((fastest, limit)) = fastest.and_then(|nic| Some((nic, nic.bits_per_s()? / SPEED_SPREAD_LIMIT)))
    else {
        return;
    };
    candidates.retain(|(_, nic)| {
        let Some(speed) = nic.bits_per_s().filter(|&speed| speed < limit) else { return true };
        let speed = crate::amount::bits_per_s(speed);
        reasons.push(format!(
            "{} ({speed}) is less than an eighth as fast as {}: left out, because it would slow the other NICs \
             down. Name it to use it anyway.",
            nic.name, fastest.name
        ));
        false
    });
}

fn unknown(host: &Host, name: &str) -> PlaceError {
    let names: Vec<&str> = host.nics.iter().map(|nic| nic.name.as_str()).collect();
    let known = if names.is_empty() { "no NIC".to_owned() } else { names.join(", ") };
    PlaceError::UnknownNic { name: name.to_owned(), known }
}
