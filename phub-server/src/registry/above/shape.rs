//! The advice on the shape of a job over several machines: each hub logs which shape fits the links best.

use pbox_core::{JobTerms, Wire};
use topology::Host;

use super::HubsAbove;
use crate::shapes::{Shapes, choose, fastest};

/// A speed in Gb/s, and the NIC that has it.
type Known = (f64, String);

impl HubsAbove {
    /// Logs which shape fits the links of a job's machines best, if a NIC reports its speed. `job` is the job of this machine's
    /// workers, without compression. All machines are assumed to be like this one.
    pub(crate) fn log_shape(&self, name: &str, job: (&JobTerms, &Wire)) {
        let apart = self.own.is_none().then_some(self.hubs.len() as u32);
        let told = Host::from_sysfs("/sys").ok().and_then(|host| told(&host));
        if let Some(advice) = told.and_then(|known| advice(known, job, self.machine.of, apart)) {
            tracing::info!(job = name, "{advice}");
        }
    }
}

/// Returns the speed and the name of this machine's fastest NIC, if a speed is known.
fn told(host: &Host) -> Option<Known> {
    fastest(host.nics.iter()).map(|(gbps, nic)| (gbps, nic.to_owned()))
}

/// Recommends a shape for this link speed. `apart`: the number of dedicated hubs above, if any.
fn advice((gbps, nic): Known, job: (&JobTerms, &Wire), machines: u32, apart: Option<u32>) -> Option<String> {
    let shapes = Shapes::new(job, machines, apart, 1, Some(gbps)).ok()?;
    let choice = choose(&shapes.all);
    let gbps = (gbps * 1e3).round() / 1e3;
    Some(format!("for links of {gbps} Gb/s, like that of {nic}, use {}: {}", choice.best.kind, choice.why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pbox_core::{Optimizer, models};

    #[test]
    fn the_advice_says_which_nic_has_the_speed() {
        let optimizer = Optimizer::Sgd { learning_rate: 0.1, weight_decay: 0.0 };
        let terms = JobTerms::new(4, models::model("resnet50").unwrap().keys, optimizer);
        let wire = Wire::of_terms(&terms).unwrap();
        let nic = |host| told(&Host::from_synthetic(host).unwrap());
        let of = |known, apart| advice(known, (&terms, &wire), 4, apart).unwrap();
        let said = of(nic("nics:1 nic_gbps:25").unwrap(), None);
        assert!(
            said.starts_with("for links of 25 Gb/s, like that of nic0, use mesh: it is 4.00 times"),
            "{said}"
        );
        let said = of(nic("nics:1 nic_gbps:25").unwrap(), Some(4));
        assert!(said.contains("use above: it is 1.50 times as fast as mesh"), "{said}");
        assert_eq!(nic("nics:1"), None);
        let said = of((0.94123456, "eth0".into()), None);
        assert!(said.starts_with("for links of 0.941 Gb/s, like that of eth0, use mesh"), "{said}");
    }
}
