//! The shapes that a job on several machines can have, what crosses each link in a round, and how long a round takes at least.
//! Pure: formulas over bytes and speeds, for `topology`, for the log of a hub and for tests.
//!
//! ```text
//!   flat     every worker sends its own gradient to the owner of each chunk, and gets the answer from it
//!   mesh     every machine sends one sum to the owner of each chunk; the owners are the machines' hubs
//!   above    every machine sends one sum to the owner of each chunk; the owners are hubs apart
//! ```
//!
//! A link carries both ways at once, and all links at the same time. So a round takes as long as its busiest link, in one
//! direction (PHub, section 3.4). Work on shared memory is not counted: a hub may be slower than its links.
//!
//! `docs/levels.md` has measured rates. They are 0.98 to 1.00 of these; a test below has the rows.

use std::fmt;

use pbox_core::{ChunkId, Wire};

/// What a transport sends before each chunk; TCP's frames have 16 bytes.
const FRAME_BYTES: u64 = 16;

/// The share of a link that is left for frames by Ethernet, IP and TCP with time stamps, where packets are jumbo: 9000 bytes.
const GOODPUT: f64 = (9000.0 - 52.0) / (9000.0 + 14.0);

/// Two shapes of which one is faster by less than this are as fast as each other.
const ALIKE: f64 = 1.02;

/// What crosses a link of some chunks, once, in bytes with the headers of their frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// From one worker, its gradient.
    pub gradient: u64,
    /// From one hub below, the sum of its workers' gradients, with counts.
    pub sum: u64,
    /// To one worker or hub below, the weights.
    pub weights: u64,
}

impl Volume {
    /// The volume of these chunks. `below` is the wire between workers and their hub, `above` that between hubs.
    pub fn of_chunks(below: &Wire, above: &Wire, chunks: impl IntoIterator<Item = ChunkId>) -> Self {
        let mut all = Volume::default();
        for chunk in chunks {
            all.gradient += FRAME_BYTES + below.gradient_span(chunk).bytes as u64;
            all.sum += FRAME_BYTES + above.gradient_span(chunk).bytes as u64;
            all.weights += FRAME_BYTES + above.weights_span(chunk).bytes as u64;
        }
        all
    }

    fn over(parts: &[Volume]) -> Self {
        let sum = |of: fn(&Volume) -> u64| parts.iter().map(of).sum();
        Volume {
            gradient: sum(|part| part.gradient),
            sum: sum(|part| part.sum),
            weights: sum(|part| part.weights),
        }
    }

    fn without(self, part: Volume) -> Self {
        Volume {
            gradient: self.gradient - part.gradient,
            sum: self.sum - part.sum,
            weights: self.weights - part.weights,
        }
    }
}

/// A link that a round crosses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// That of a machine with workers and, unless its hubs are apart, a hub.
    Machine(u32),
    /// That of a hub apart.
    HubAbove(u32),
    /// That of a worker in a rack.
    Worker,
    /// That of a rack's hub to the workers.
    RackHub,
    /// That of a rack to the other racks.
    Uplink,
}

impl fmt::Display for Link {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Link::Machine(number) => write!(out, "machine {number}"),
            Link::HubAbove(number) => write!(out, "hub above {number}"),
            Link::Worker => out.write_str("each worker"),
            Link::RackHub => out.write_str("the hub of a rack"),
            Link::Uplink => out.write_str("the uplink of a rack"),
        }
    }
}

/// What a link carries in a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Which link.
    pub link: Link,
    /// Bytes out of it.
    pub sends: u64,
    /// Bytes into it.
    pub receives: u64,
    /// Its speed in Gb/s, each way, if it is known.
    pub gbps: Option<f64>,
}

impl Load {
    /// Bytes in its busier direction.
    pub fn bytes(&self) -> u64 {
        self.sends.max(self.receives)
    }

    /// The least time of a round in seconds, if the speed is known.
    pub fn round_s(&self) -> Option<f64> {
        self.gbps.map(|gbps| self.bytes() as f64 * 8.0 / (gbps * 1e9 * GOODPUT))
    }

    /// What links are compared by: time, or bytes where no speed is known.
    fn cost(&self) -> f64 {
        self.round_s().unwrap_or(self.bytes() as f64)
    }
}

/// A way to lay out a job over machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All workers push to all hubs.
    Flat,
    /// Workers push to the hub of their machine or rack; these hubs own a share each.
    Mesh,
    /// Workers push to the hub of their machine, and it pushes to hubs apart.
    Above,
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Kind::Flat => "flat",
            Kind::Mesh => "mesh",
            Kind::Above => "above",
        })
    }
}

/// A shape, and what its links carry.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Which shape.
    pub kind: Kind,
    /// At least one.
    pub loads: Vec<Load>,
}

/// Speeds of the links of racks in Gb/s, each way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RackSpeeds {
    /// Of each worker.
    pub worker: f64,
    /// Of a hub, all its NICs together: so much for its rack, and as much for other racks.
    pub hub: f64,
    /// Of a rack to the others.
    pub uplink: f64,
}

impl Shape {
    /// A hub on each machine with one of these shares. Each of a machine's `workers` sends its gradient of the other shares, and
    /// its hub answers the workers of the other machines: 2 W (n-1)/n of the model, each way.
    pub fn flat(shares: &[Volume], workers: u32, gbps: Option<f64>) -> Self {
        let workers = u64::from(workers);
        Self::on_machines(Kind::Flat, shares, gbps, |own, others, beside| {
            let sends = workers * others.gradient + beside * workers * own.weights;
            let receives = beside * workers * own.gradient + workers * others.weights;
            (sends, receives)
        })
    }

    /// The same hubs, each of which sends one sum for its workers: 2 (n-1)/n of the model, each way.
    pub fn mesh(shares: &[Volume], gbps: Option<f64>) -> Self {
        Self::on_machines(Kind::Mesh, shares, gbps, |own, others, beside| {
            let sends = others.sum + beside * own.weights;
            let receives = beside * own.sum + others.weights;
            (sends, receives)
        })
    }

    /// Hubs apart with these shares, above the hubs of so many machines: a model each way for a machine.
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

    /// Racks whose workers all push to one hub, in one of the racks (PHub, section 3.4): the time is the largest of
    /// M/worker, R W M/hub and (R-1) W M/uplink.
    pub fn flat_racks(racks: u32, workers: u32, model: Volume, speeds: RackSpeeds) -> Self {
        let times = |link, times: u32, gbps| {
            let (sends, receives) = (u64::from(times) * model.weights, u64::from(times) * model.gradient);
            Load { link, sends, receives, gbps: Some(gbps) }
        };
        let loads = vec![
            Load {
                link: Link::Worker,
                sends: model.gradient,
                receives: model.weights,
                gbps: Some(speeds.worker),
            },
            times(Link::RackHub, racks * workers, speeds.hub),
            times(Link::Uplink, (racks - 1) * workers, speeds.uplink),
        ];
        Shape { kind: Kind::Flat, loads }
    }

    /// Racks with a hub each, which form a mesh; each has one of these shares. The time is the largest of M/worker, W M/hub and
    /// 2 (R-1)/R M/min(hub, uplink).
    pub fn mesh_of_racks(shares: &[Volume], workers: u32, speeds: RackSpeeds) -> Self {
        let one = Self::flat_racks(1, workers, Volume::over(shares), speeds);
        let between = Self::mesh(shares, Some(speeds.hub.min(speeds.uplink))).bottleneck();
        let of_rack = one.loads.into_iter().filter(|load| load.link != Link::Uplink);
        Shape { kind: Kind::Mesh, loads: of_rack.chain([Load { link: Link::Uplink, ..between }]).collect() }
    }

    /// `of`: what a machine sends and receives, with its own share, the others' shares, and the number of the others.
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

    /// The link that a round waits for; of equal ones the first.
    pub fn bottleneck(&self) -> Load {
        let slower = |slowest: Load, load: Load| if load.cost() > slowest.cost() { load } else { slowest };
        self.loads.iter().copied().reduce(slower).expect("a shape has a link")
    }

    /// The least time of a round in seconds, if the speeds are known.
    pub fn round_s(&self) -> Option<f64> {
        self.bottleneck().round_s()
    }

    fn cost(&self) -> f64 {
        self.bottleneck().cost()
    }
}

/// The shape to use.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice<'a> {
    /// The shape.
    pub best: &'a Shape,
    /// Why, in one sentence.
    pub why: String,
}

/// Chooses among these shapes, of which there is at least one: the fastest, or the first that is slower by less than 2%. So the
/// simplest comes first. Where speeds are not known, all links have the same.
pub fn choose(shapes: &[Shape]) -> Choice<'_> {
    let by_cost = |a: &&Shape, b: &&Shape| a.cost().total_cmp(&b.cost());
    let least = shapes.iter().min_by(by_cost).expect("a shape to choose").cost();
    let best = shapes.iter().find(|shape| shape.cost() <= ALIKE * least).expect("the fastest is one");
    let rival = shapes.iter().filter(|shape| shape.kind != best.kind).min_by(by_cost);
    let waits = |shape: &Shape| {
        let load = shape.bottleneck();
        format!("{:.1} MB on the link of {}", load.bytes() as f64 / 1e6, load.link)
    };
    let why = match rival {
        _ if least == 0.0 => "nothing crosses a link".to_owned(),
        None => "no other shape is possible".to_owned(),
        Some(rival) if rival.cost() < ALIKE * best.cost() => {
            format!("it is the simplest, and {} is not faster by 2%", rival.kind)
        }
        Some(rival) => format!(
            "it is {:.2} times as fast as {}: a round waits for {}, and with {} for {}",
            rival.cost() / best.cost(),
            rival.kind,
            waits(best),
            rival.kind,
            waits(rival)
        ),
    };
    Choice { best, why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pbox_core::models::model;
    use pbox_core::{Above, JobTerms, Layout, Optimizer, SPLIT_ABOVE, Schedule};
    use std::sync::Arc;

    const MB: u64 = 1_000_000;

    /// So many even shares of a model of so many bytes, without headers and counts.
    fn even(machines: u64, bytes: u64) -> Vec<Volume> {
        let part = bytes / machines;
        vec![Volume { gradient: part, sum: part, weights: part }; machines as usize]
    }

    /// The shares of a published model, by the placement of the hubs.
    fn shares(name: &str, machines: u32, workers: u32) -> (u64, Vec<Volume>) {
        let optimizer = Optimizer::Sgd { learning_rate: 0.1, weight_decay: 0.0 };
        let terms = JobTerms::new(workers, model(name).unwrap().keys, optimizer);
        let below = Wire::of_terms(&terms).unwrap();
        let above = Wire::of_terms(&terms.above(machines, machines).unwrap()).unwrap();
        let layout: &Arc<Layout> = below.layout();
        let hubs = Above {
            schedule: Schedule::default(),
            split_above: SPLIT_ABOVE,
            cores: vec![2; machines as usize],
            above: None,
        };
        let of_hub = |hub: pbox_core::Placement| {
            Volume::of_chunks(&below, &above, hub.chunks_by_core().into_iter().flatten())
        };
        let shares = hubs.placements(layout).unwrap().into_iter().map(of_hub).collect();
        (layout.model_bytes(), shares)
    }

    /// The rows of `docs/levels.md`, on links of 1 Gb/s: rounds a second over the formula's.
    #[test]
    fn measured_rates_are_98_to_100_percent_of_the_formulas() {
        for (machines, workers, name, kind, measured) in [
            (2, 4, "resnet50", Kind::Mesh, 1.204),
            (2, 4, "resnet50", Kind::Flat, 0.303),
            (4, 2, "resnet50", Kind::Mesh, 0.798),
            (4, 1, "resnet50", Kind::Mesh, 0.799),
            (4, 1, "vgg19", Kind::Mesh, 0.143),
        ] {
            let (_, shares) = shares(name, machines, workers);
            let shape = match kind {
                Kind::Flat => Shape::flat(&shares, workers, Some(1.0)),
                _ => Shape::mesh(&shares, Some(1.0)),
            };
            let ratio = measured * shape.round_s().unwrap();
            assert!((0.98..=1.0).contains(&ratio), "{machines} x {workers}, {name}, {kind}: {ratio:.4}");
        }
    }

    /// Counted at the interfaces, a machine of two sends and receives 1.003 to 1.004 of the model, with all headers.
    #[test]
    fn a_machine_of_a_mesh_carries_what_was_counted_whatever_its_workers() {
        for workers in [1, 2, 4, 8] {
            let (model, shares) = shares("googlenet", 2, workers);
            for load in Shape::mesh(&shares, None).loads {
                for bytes in [load.sends, load.receives] {
                    // Without the headers of packets, of which an interface counts one for 64 KiB.
                    let models = bytes as f64 / model as f64;
                    assert!(
                        (1.001..1.003).contains(&models),
                        "{workers} workers, {}: {models:.4}",
                        load.link
                    );
                }
            }
        }
    }

    #[test]
    fn a_mesh_carries_2_n_minus_1_over_n_models_and_flat_w_times_that() {
        for (machines, model, expected) in
            [(1, 100 * MB, 0), (2, 100 * MB, 100 * MB), (4, 100 * MB, 150 * MB)]
        {
            let shares = even(machines, model);
            for load in Shape::mesh(&shares, None).loads {
                assert_eq!([load.sends, load.receives], [expected; 2], "{machines} machines");
            }
            for load in Shape::flat(&shares, 8, None).loads {
                assert_eq!([load.sends, load.receives], [8 * expected; 2], "{machines} machines");
            }
        }
    }

    #[test]
    fn what_one_sends_another_receives() {
        let (_, shares) = shares("resnet50", 3, 5);
        for shape in
            [Shape::flat(&shares, 5, None), Shape::mesh(&shares, None), Shape::above(&shares, 7, None)]
        {
            let total = |of: fn(&Load) -> u64| shape.loads.iter().map(of).sum::<u64>();
            assert_eq!(total(|load| load.sends), total(|load| load.receives), "{}", shape.kind);
        }
    }

    #[test]
    fn hubs_apart_carry_the_sums_of_all_machines() {
        let shape = Shape::above(&even(2, 100 * MB), 6, Some(10.0));
        let links: Vec<Link> = shape.loads.iter().map(|load| load.link).collect();
        assert_eq!(links[5..], [Link::Machine(5), Link::HubAbove(0), Link::HubAbove(1)]);
        assert_eq!(shape.loads[0].bytes(), 100 * MB);
        assert_eq!((shape.bottleneck().link, shape.bottleneck().bytes()), (Link::HubAbove(0), 300 * MB));
    }

    /// Four racks of eight workers, 100 MB. By hand, with 10 Gb/s a worker, 100 a hub, 40 an uplink, without headers:
    /// flat max(0.08, 3.2/12.5, 2.4/5) = 0.48 s; with a hub a rack max(0.08, 0.8/12.5, 0.15/5) = 0.08 s.
    #[test]
    fn racks_take_what_the_papers_formula_says() {
        let speeds = RackSpeeds { worker: 10.0, hub: 100.0, uplink: 40.0 };
        let shares = even(4, 100 * MB);
        let [flat, mesh] = both(&shares, speeds);
        assert_eq!((flat.bottleneck().link, mesh.bottleneck().link), (Link::Uplink, Link::Worker));
        let is = |shape: &Shape, seconds: f64| (shape.round_s().unwrap() * GOODPUT - seconds).abs() < 1e-9;
        assert!(is(&flat, 0.48) && is(&mesh, 0.08), "{flat:?} {mesh:?}");
        // A hub of 10 Gb/s: 3.2/1.25 = 2.56 s, and 0.8/1.25 = 0.64 s.
        let [flat, mesh] = both(&shares, RackSpeeds { hub: 10.0, ..speeds });
        assert_eq!((flat.bottleneck().link, mesh.bottleneck().link), (Link::RackHub, Link::RackHub));
        assert!(is(&flat, 2.56) && is(&mesh, 0.64), "{flat:?} {mesh:?}");
        // An uplink of 1 Gb/s: 2.4/0.125 = 19.2 s, and 0.15/0.125 = 1.2 s. So does a hub of 1 Gb/s limit the other racks.
        let [flat, mesh] = both(&shares, RackSpeeds { uplink: 1.0, ..speeds });
        assert_eq!((flat.bottleneck().link, mesh.bottleneck().link), (Link::Uplink, Link::Uplink));
        assert!(is(&flat, 19.2) && is(&mesh, 1.2), "{flat:?} {mesh:?}");
        // One rack is one hub either way.
        let [flat, mesh] = both(&even(1, 100 * MB), speeds);
        assert_eq!(flat.round_s(), mesh.round_s());
        assert_eq!(choose(&[flat, mesh]).best.kind, Kind::Flat);
    }

    fn both(shares: &[Volume], speeds: RackSpeeds) -> [Shape; 2] {
        let racks = shares.len() as u32;
        [Shape::flat_racks(racks, 8, Volume::over(shares), speeds), Shape::mesh_of_racks(shares, 8, speeds)]
    }

    #[test]
    fn the_choice_is_the_fastest_and_of_equals_the_simplest() {
        let shapes = |machines, workers, gbps| {
            let (_, shares) = shares("resnet50", machines, workers);
            [Shape::flat(&shares, workers, gbps), Shape::mesh(&shares, gbps)]
        };
        for gbps in [None, Some(1.0), Some(100.0)] {
            let two = shapes(2, 4, gbps);
            let choice = choose(&two);
            assert_eq!(choice.best.kind, Kind::Mesh);
            assert!(
                choice.why.contains("4.00 times as fast as flat: a round waits for 102.4 MB"),
                "{}",
                choice.why
            );
        }
        for (machines, workers, why) in [(4, 1, "mesh is not faster"), (1, 8, "nothing crosses a link")] {
            let two = shapes(machines, workers, None);
            let choice = choose(&two);
            assert_eq!(choice.best.kind, Kind::Flat);
            assert!(choice.why.contains(why), "{}", choice.why);
        }
        assert_eq!(choose(&shapes(2, 4, None)[1..]).why, "no other shape is possible");
    }
}
