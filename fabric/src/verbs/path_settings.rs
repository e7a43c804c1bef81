//! How the packets of queue pairs travel: what a fabric may want otherwise. Read from the environment once, when NICs are
//! opened; under NCCL's names too, as many fabrics have these set already.

use std::fmt;
use std::time::Duration;

use super::address::Mtu;

/// One of them, with its two names. The first that is set counts.
struct Setting {
    names: [&'static str; 2],
    least: u16,
    most: u16,
    default: u16,
}

/// The local time-out of a packet is 4.096 us x 2 to this power: 0.54 s, times the retries and one. Longer than what can be
/// queued before it takes: on soft-RoCE between two emulated machines 2 MB, or 80 ms. With 14 (67 ms) NICs there sent a fifth
/// of all packets twice; and once in four runs a hub saw a write arrive twice, which it has not since. Why is not shown: the
/// retries of soft-RoCE (Linux 6.1) are suspected. 0 would be for ever.
const TIMEOUT: Setting =
    Setting { names: ["PHUB_RDMA_TIMEOUT", "NCCL_IB_TIMEOUT"], least: 1, most: 31, default: 17 };
/// Some 4 s until the peer is taken for gone: for so long a port may be down. Not 7, the most that the field holds: soft-RoCE
/// takes that for ever, and a link whose path is gone would never fail.
const RETRIES: Setting =
    Setting { names: ["PHUB_RDMA_RETRIES", "NCCL_IB_RETRY_CNT"], least: 0, most: 7, default: 6 };
/// Of the GRH: the DSCP is its upper six bits.
const TRAFFIC_CLASS: Setting =
    Setting { names: ["PHUB_RDMA_TC", "NCCL_IB_TC"], least: 0, most: 255, default: 0 };
const SERVICE_LEVEL: Setting =
    Setting { names: ["PHUB_RDMA_SL", "NCCL_IB_SL"], least: 0, most: 15, default: 0 };
/// An index in the port's table of partition keys.
const PKEY: Setting =
    Setting { names: ["PHUB_RDMA_PKEY", "NCCL_IB_PKEY"], least: 0, most: u16::MAX, default: 0 };

/// The most bytes of a packet, where a way through the fabric takes fewer than both ports.
const MTU: Setting = Setting { names: ["PHUB_RDMA_MTU"; 2], least: 256, most: 4096, default: 4096 };
/// 1 has a post's bytes written first, and its immediate by a second write of nothing: a fabric with adaptive routing spreads
/// the packets of plain writes over its ways, and keeps those of a write with immediate in order.
const ADAPTIVE_ROUTING: Setting = Setting {
    names: ["PHUB_RDMA_ADAPTIVE_ROUTING", "NCCL_IB_ADAPTIVE_ROUTING"],
    least: 0,
    most: 1,
    default: 0,
};

/// A variable that is out of its range, or no number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name} is {seen:?}; expected a number from {least} to {most}{why}; change it, or unset it for {default}"
)]
pub struct SettingError {
    name: &'static str,
    seen: String,
    least: u16,
    most: u16,
    default: u16,
    why: String,
}

impl Setting {
    fn read(&self, environment: impl Fn(&str) -> Option<String>) -> Result<u16, SettingError> {
        let found = self.names.iter().find_map(|&name| Some((name, environment(name)?)));
        let Some((name, seen)) = found else { return Ok(self.default) };
        let Setting { least, most, default, .. } = *self;
        let number = seen.trim().parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or(SettingError { name, seen, least, most, default, why: String::new() })
    }
}

/// What a queue pair is told of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathSettings {
    pub timeout: u8,
    pub retries: u8,
    pub traffic_class: u8,
    pub service_level: u8,
    pub pkey_index: u16,
    /// A port whose packets are larger has these.
    pub mtu: Mtu,
    /// The immediate of a post comes by a write of its own.
    pub writes_apart: bool,
}

impl PathSettings {
    /// As this process's environment says.
    pub fn of_environment() -> Result<Self, SettingError> {
        Self::read(|name| std::env::var(name).ok())
    }

    fn read(environment: impl Fn(&str) -> Option<String>) -> Result<Self, SettingError> {
        let byte = |setting: &Setting| setting.read(&environment).map(|number| number as u8);
        Ok(PathSettings {
            timeout: byte(&TIMEOUT)?,
            retries: byte(&RETRIES)?,
            traffic_class: byte(&TRAFFIC_CLASS)?,
            service_level: byte(&SERVICE_LEVEL)?,
            pkey_index: PKEY.read(&environment)?,
            mtu: Mtu::within(MTU.read(&environment)?),
            writes_apart: ADAPTIVE_ROUTING.read(&environment)? == 1,
        })
    }

    /// Whether a port's table has the partition key.
    pub fn check_pkey(&self, keys: u16, port: &str) -> Result<(), SettingError> {
        let most = keys.max(1) - 1; // a driver that says 0 has the default key
        if self.pkey_index <= most {
            return Ok(());
        }
        let [name, _] = PKEY.names;
        let why = format!(", as the table of {port} has {keys} keys (NCCL_IB_PKEY counts, too)");
        Err(SettingError { name, seen: self.pkey_index.to_string(), least: 0, most, default: 0, why })
    }

    /// How long a packet is sent again before the link fails.
    pub fn patience(&self) -> Duration {
        Duration::from_nanos(4096 << self.timeout) * u32::from(self.retries + 1)
    }
}

impl fmt::Display for PathSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PathSettings { timeout, retries, traffic_class, service_level, pkey_index, writes_apart, .. } =
            self;
        write!(
            f,
            "timeout {timeout} and {retries} retries ({:.1} s), traffic class {traffic_class}, service level {service_level}, \
             pkey index {pkey_index}, adaptive routing {}",
            self.patience().as_secs_f64(),
            u8::from(*writes_apart)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<PathSettings, String> {
        let value =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, v)| v.to_string());
        PathSettings::read(value).map_err(|error| error.to_string())
    }

    #[test]
    fn nccls_names_count_where_our_own_are_not_set() {
        let none = read(&[]).unwrap();
        assert_eq!(none.mtu.bytes(), 4096);
        let mtu = |bytes| read(&[("PHUB_RDMA_MTU", bytes)]).unwrap().mtu.bytes();
        assert_eq!([mtu("256"), mtu("1500"), mtu("2048")], [256, 1024, 2048]);
        assert_eq!((none.timeout, none.retries, none.traffic_class), (17, 6, 0));
        let nccl = [
            ("NCCL_IB_TIMEOUT", "22"),
            ("NCCL_IB_TC", "106"),
            ("NCCL_IB_SL", "3"),
            ("NCCL_IB_PKEY", "1"),
            ("NCCL_IB_ADAPTIVE_ROUTING", "1"),
        ];
        let seen = read(&nccl).unwrap();
        assert_eq!((seen.timeout, seen.retries, seen.writes_apart), (22, 6, true));
        assert_eq!((seen.traffic_class, seen.service_level, seen.pkey_index), (106, 3, 1));
        let both = read(&[("NCCL_IB_TIMEOUT", "22"), ("PHUB_RDMA_TIMEOUT", "19")]).unwrap();
        assert_eq!(both.timeout, 19);
        let said = "timeout 17 and 6 retries (3.8 s), traffic class 0, service level 0, pkey index 0, adaptive routing 0";
        assert_eq!(none.to_string(), said);
    }

    #[test]
    fn what_is_out_of_range_is_named_with_what_was_expected() {
        for (name, value, range) in [
            ("PHUB_RDMA_TIMEOUT", "0", "from 1 to 31"),
            ("NCCL_IB_TIMEOUT", "32", "from 1 to 31"),
            ("PHUB_RDMA_RETRIES", "8", "from 0 to 7"),
            ("NCCL_IB_RETRY_CNT", "seven", "from 0 to 7"),
            ("NCCL_IB_TC", "256", "from 0 to 255"),
            ("PHUB_RDMA_SL", "16", "from 0 to 15"),
            ("PHUB_RDMA_MTU", "9000", "from 256 to 4096"),
            ("NCCL_IB_PKEY", "-1", "from 0 to 65535"),
            ("NCCL_IB_ADAPTIVE_ROUTING", "2", "from 0 to 1"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.contains(name) && error.contains(value) && error.contains(range), "{error}");
        }
        let settings = read(&[("PHUB_RDMA_PKEY", "4")]).unwrap();
        assert_eq!(settings.check_pkey(5, "mlx5_0 port 1"), Ok(()));
        let error = settings.check_pkey(4, "mlx5_0 port 1").unwrap_err().to_string();
        assert!(error.contains("from 0 to 3, as the table of mlx5_0 port 1 has 4 keys"), "{error}");
    }
}
