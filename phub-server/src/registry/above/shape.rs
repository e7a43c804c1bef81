//! What the links allow a job on several machines, in the log of their hubs. Where no NIC tells its speed, it is measured.

use std::time::Instant;

use authority::Credential;
use membership::MEASURED_IN;
use pbox_core::{JobTerms, Wire};
use topology::Host;

use super::HubsAbove;
use crate::shapes::{Shapes, choose, fastest};

/// A speed in Gb/s, and how it is known.
type Known = (f64, String);

impl HubsAbove {
    /// Logs which shape the links of a job's machines favour. `job` is that of the workers of this machine, in bare values. All
    /// machines are taken to be like this one. Takes a moment where the speed is measured.
    pub(in crate::registry) fn log_shape(
        &self,
        name: &str,
        job: (&JobTerms, &Wire),
        credential: Option<&Credential>,
    ) {
        let told = Host::from_sysfs("/sys").ok().and_then(|host| told(&host));
        let apart = self.own.is_none().then_some(self.hubs.len() as u32);
        match told.map_or_else(|| self.measured(credential), Ok) {
            Ok(known) => {
                if let Some(advice) = advice(known, job, self.machine.of, apart) {
                    tracing::info!(job = name, "{advice}");
                }
            }
            Err(why) => {
                tracing::info!(job = name, why, "the speed of links is unknown, so no shape is advised")
            }
        }
    }

    /// How fast bytes come from one of the other hubs above, of all machines from another one if there are as many.
    fn measured(&self, credential: Option<&Credential>) -> Result<Known, String> {
        let (begun, count) = (Instant::now(), self.hubs.len());
        let next = |step| (self.machine.number as usize + step) % count;
        let others = (1..=count).map(next).filter(|&hub| self.own != Some(hub));
        let mut why = "no NIC tells it, and no other hub is above".to_owned();
        for hub in others.map(|hub| &self.hubs[hub]) {
            let left = MEASURED_IN.saturating_sub(begun.elapsed());
            if left.is_zero() {
                break;
            }
            match membership::measure(hub, left, credential) {
                Ok(gbps) => return Ok((gbps, format!("measured from the hub at {hub}"))),
                Err(error) => why = format!("no NIC tells it, and it was not measured: {error}"),
            }
        }
        Err(why)
    }
}

/// The speed of this machine's fastest NIC, if it tells it.
fn told(host: &Host) -> Option<Known> {
    fastest(host.nics.iter()).map(|(gbps, nic)| (gbps, format!("as {nic} has")))
}

/// The choice for machines with such links. `apart`: so many hubs above are apart.
fn advice(
    (gbps, known): Known,
    job: (&JobTerms, &Wire),
    machines: u32,
    apart: Option<u32>,
) -> Option<String> {
    let shapes = Shapes::new(job, machines, apart, 1, Some(gbps)).ok()?;
    let choice = choose(&shapes.all);
    let gbps = (gbps * 1e3).round() / 1e3;
    Some(format!("by links of {gbps} Gb/s, {known}: use {}: {}", choice.best.kind, choice.why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pbox_core::{Optimizer, models};

    #[test]
    fn the_advice_says_how_the_speed_is_known() {
        let optimizer = Optimizer::Sgd { learning_rate: 0.1, weight_decay: 0.0 };
        let terms = JobTerms::new(4, models::model("resnet50").unwrap().keys, optimizer);
        let wire = Wire::of_terms(&terms).unwrap();
        let nic = |host| told(&Host::from_synthetic(host).unwrap());
        let of = |known, apart| advice(known, (&terms, &wire), 4, apart).unwrap();
        let said = of(nic("nics:1 nic_gbps:25").unwrap(), None);
        assert!(said.starts_with("by links of 25 Gb/s, as nic0 has: use mesh: it is 4.00 times"), "{said}");
        let said = of(nic("nics:1 nic_gbps:25").unwrap(), Some(4));
        assert!(said.contains("use above: it is 1.50 times as fast as mesh"), "{said}");
        assert_eq!(nic("nics:1"), None);
        let said = of((0.94123456, "measured from the hub at a:1".into()), None);
        assert!(said.starts_with("by links of 0.941 Gb/s, measured from the hub at a:1: use mesh"), "{said}");
    }
}
