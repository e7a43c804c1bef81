//! What the links allow a job on several machines, in the log of their hubs. Knows the speed of links where NICs tell it.

use pbox_core::{JobTerms, Wire};
use topology::Host;

use super::HubsAbove;
use crate::shapes::{Shapes, choose, fastest};

impl HubsAbove {
    /// Logs which shape the links of a job's machines favour, if their speed is known. `job` is that of the workers of this
    /// machine, in bare values. All machines are taken to be like this one.
    pub(in crate::registry) fn log_shape(&self, name: &str, job: (&JobTerms, &Wire)) {
        let Ok(host) = Host::from_sysfs("/sys") else { return };
        let apart = self.own.is_none().then_some(self.hubs.len() as u32);
        if let Some(advice) = advice(&host, job, self.machine.of, apart) {
            tracing::info!(job = name, "{advice}");
        }
    }
}

/// The choice for machines like `host`, if a NIC tells its speed. `apart`: so many hubs above are apart.
fn advice(host: &Host, job: (&JobTerms, &Wire), machines: u32, apart: Option<u32>) -> Option<String> {
    let (gbps, nic) = fastest(host.nics.iter())?;
    let shapes = Shapes::new(job, machines, apart, 1, Some(gbps)).ok()?;
    let choice = choose(&shapes.all);
    Some(format!("by links of {gbps} Gb/s, as {nic} has: use {}: {}", choice.best.kind, choice.why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pbox_core::{Optimizer, models};

    #[test]
    fn the_advice_needs_the_speed_of_a_nic() {
        let optimizer = Optimizer::Sgd { learning_rate: 0.1, weight_decay: 0.0 };
        let terms = JobTerms::new(4, models::model("resnet50").unwrap().keys, optimizer);
        let wire = Wire::of_terms(&terms).unwrap();
        let of = |host, apart| advice(&Host::from_synthetic(host).unwrap(), (&terms, &wire), 4, apart);
        let said = of("nics:1 nic_gbps:25", None).unwrap();
        assert!(said.starts_with("by links of 25 Gb/s, as nic0 has: use mesh: it is 4.00 times"), "{said}");
        let said = of("nics:1 nic_gbps:25", Some(4)).unwrap();
        assert!(said.contains("use above: it is 1.50 times as fast as mesh"), "{said}");
        assert_eq!(of("nics:1", None), None);
    }
}
