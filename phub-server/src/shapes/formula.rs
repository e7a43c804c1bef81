//! The formula of each shape: the bytes on its links, from the bytes of each hub's share.

use super::{Kind, Link, Load, Shape, Volume};

/// Speeds of the links of racks in Gb/s, each way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RackSpeeds {
    /// The speed of each worker.
    pub worker: f64,
    /// The speed of a hub, all its NICs together. The speed to its rack and the speed to the other racks are
    /// the same.
    pub hub: f64,
    /// The speed of a rack's link to the other racks.
    pub uplink: f64,
}

impl Shape {
    /// Returns the loads with a hub on each machine, which owns one of these shares. Each worker sends the parts of
    /// its gradient that the hubs of other machines own, and each hub answers all workers. Each of n machines with W
    /// workers carries 2 W (n-1)/n of the model, each way.
    pub fn flat(shares: &[Volume], workers: u32, gbps: Option<f64>) -> Self {
        let workers = u64::from(workers);
        Self::on_machines(Kind::Flat, shares, gbps, |own, others, beside| {
            let sends = workers * others.gradient + beside * workers * own.weights;
            let receives = beside * workers * own.gradient + workers * others.weights;
            (sends, receives)
        })
    }

    /// Returns the loads with a hub on each of n machines, if each hub sends one sum for its workers. A machine
    /// carries 2 (n-1)/n of the model, each way.
    pub fn mesh(shares: &[Volume], gbps: Option<f64>) -> Self {
        Self::on_machines(Kind::Mesh, shares, gbps, |own, others, beside| {
            let sends = others.sum + beside * own.weights;
            let receives = beside * own.sum + others.weights;
            (sends, receives)
        })
    }

    /// Returns the loads with dedicated upper hubs, which own these shares, above the hubs of the machines. Each machine
    /// sends and receives one model a round.
    pub fn above(shares: &[Volume], machines: u32, gbps: Option<f64>) -> Self {
        let all = Volume::over(shares);
        let machine =
            |number| Load { link: Link::Machine(number), sends: all.sum, receives: all.weights, gbps };
        let hub = |(number, share): (u32, &Volume)| {
            let (sends, receives) = (u64::from(machines) * share.weights, u64::from(machines) * share.sum);
            Load { link: Link::HubAbove(number), sends, receives, gbps }
        };
        let loads = (0..machines).map(machine).chain((0..).zip(shares).map(hub)).collect();
        Shape { kind: Kind::Above, loads }
    }

    /// Returns the loads of racks with one hub for all workers, in one of the racks (PHub's full paper,
    /// SoCC'18, section 3.4). There are R racks of W workers, a rack for each share. The hub owns all shares,
    /// of M bytes together. The time is the largest of M/worker, R W M/hub and W M/uplink, with
    /// the speeds of these links.
    pub fn flat_racks(shares: &[Volume], workers: u32, speeds: RackSpeeds) -> Self {
        let model = Volume::over(shares);
        let racks = shares.len() as u64;
        let uplink = Self::times(Link::Uplink, (racks - 1) * u64::from(workers), model, speeds.uplink);
        let loads = Self::in_a_rack(racks * u64::from(workers), model, speeds);
        Shape { kind: Kind::Flat, loads: loads.into_iter().chain([uplink]).collect() }
    }

    /// Returns the loads of R racks of W workers whose hubs form a mesh. Each rack has one hub, which owns one of
    /// these shares, of M bytes together. The time is the largest of M/worker, W M/hub and
    /// 2 (R-1)/R M/min(hub, uplink), with the speeds of these links.
    pub fn mesh_of_racks(shares: &[Volume], workers: u32, speeds: RackSpeeds) -> Self {
        let between = Self::mesh(shares, Some(speeds.hub.min(speeds.uplink))).bottleneck();
        let loads = Self::in_a_rack(workers.into(), Volume::over(shares), speeds);
        let uplink = Load { link: Link::Uplink, ..between };
        Shape { kind: Kind::Mesh, loads: loads.into_iter().chain([uplink]).collect() }
    }

    /// Returns the load of each worker's link, and the load of a hub that `workers` workers push to.
    fn in_a_rack(workers: u64, model: Volume, speeds: RackSpeeds) -> [Load; 2] {
        let (sends, receives) = (model.gradient, model.weights);
        let worker = Load { link: Link::Worker, sends, receives, gbps: Some(speeds.worker) };
        [worker, Self::times(Link::RackHub, workers, model, speeds.hub)]
    }

    /// Returns the load of a hub's link: the gradients that `workers` workers push, and the weights that
    /// answer them.
    fn times(link: Link, workers: u64, model: Volume, gbps: f64) -> Load {
        Load { link, sends: workers * model.weights, receives: workers * model.gradient, gbps: Some(gbps) }
    }

    /// Computes the load of each machine's link. `of` returns the bytes that a machine sends and receives.
    /// The arguments of `of`: the machine's own share, the shares of the other machines, and the number of
    /// the other machines.
    fn on_machines(
        kind: Kind,
        shares: &[Volume],
        gbps: Option<f64>,
        of: impl Fn(Volume, Volume, u64) -> (u64, u64),
    ) -> Self {
        let (all, beside) = (Volume::over(shares), shares.len() as u64 - 1);
        let load = |(number, &own): (u32, &Volume)| {
            let (sends, receives) = of(own, all.without(own), beside);
            Load { link: Link::Machine(number), sends, receives, gbps }
        };
        Shape { kind, loads: (0..).zip(shares).map(load).collect() }
    }
}
