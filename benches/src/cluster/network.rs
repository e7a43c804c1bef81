//! The rates of flows that share links. This module only computes, and does not depend on layers or workers.
//!
//! A flow uses several links at once, each with a share of the flow's rate. For example, a batch from four hubs uses
//! each hub's link with a quarter of the batch's rate, and the worker's link with the whole rate. Rates are max-min
//! fair, as those of TCP should be. All rates rise equally until a link is full, and then the flows on that link keep
//! their rates.

/// The index of one direction of a machine's link.
pub(super) type LinkId = usize;

/// Bytes that are being sent over some links.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    /// The number of bytes that are left to send.
    pub bytes: f64,
    /// The links that the flow uses, each with its share of the flow's rate.
    pub shares: Vec<(LinkId, f64)>,
    /// The rate in bytes per second. [`share_out`] sets it.
    pub rate: f64,
}

/// Sets the rates of flows, in bytes per second. There are `links` links with the same capacity.
pub(super) fn share_out(flows: &mut [Flow], links: usize, capacity: f64) {
    let mut free = vec![capacity; links];
    let mut rising: Vec<usize> = (0..flows.len()).collect();
    flows.iter_mut().for_each(|flow| flow.rate = 0.0);
    while !rising.is_empty() {
        let mut load = vec![0.0; links];
        for &(link, share) in rising.iter().flat_map(|&flow| &flows[flow].shares) {
            load[link] += share;
        }
        let room = |link: usize| if load[link] > 0.0 { free[link] / load[link] } else { f64::INFINITY };
        let rise = (0..links).map(room).fold(f64::INFINITY, f64::min);
        let full: Vec<bool> = (0..links).map(|link| room(link) <= rise * (1.0 + 1e-9)).collect();
        for &flow in &rising {
            flows[flow].rate += rise;
            flows[flow].shares.iter().for_each(|&(link, share)| free[link] -= rise * share);
        }
        // A flow without a link is removed, because its rate would rise for ever.
        rising.retain(|&flow| {
            !flows[flow].shares.is_empty() && !flows[flow].shares.iter().any(|&(link, _)| full[link])
        });
        free.iter_mut().for_each(|free| *free = free.max(0.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(shares: &[&[(LinkId, f64)]]) -> Vec<f64> {
        let flow = |shares: &&[(LinkId, f64)]| Flow { bytes: 1.0, shares: shares.to_vec(), rate: 0.0 };
        let mut flows: Vec<Flow> = shares.iter().map(flow).collect();
        share_out(&mut flows, 4, 12.0);
        flows.iter().map(|flow| flow.rate).collect()
    }

    #[test]
    fn a_flow_alone_fills_its_narrowest_link() {
        assert_eq!(rates(&[&[(0, 1.0), (1, 0.5)]]), [12.0]);
        assert_eq!(rates(&[&[(0, 0.25), (1, 0.5)]]), [24.0]);
    }

    #[test]
    fn flows_share_a_link_and_leave_what_they_cannot_use() {
        assert_eq!(rates(&[&[(0, 1.0)], &[(0, 1.0)], &[(1, 1.0)]]), [6.0, 6.0, 12.0]);
        // The second flow shares link 1 with two other flows, which limits its rate. The first flow gets the rest of
        // link 0.
        assert_eq!(
            rates(&[&[(0, 1.0)], &[(0, 1.0), (1, 1.0)], &[(1, 1.0)], &[(1, 1.0)]]),
            [8.0, 4.0, 4.0, 4.0]
        );
    }
}
