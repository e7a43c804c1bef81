//! NCCL's variables, read by NCCL's own grammar. The variables are meant for another program. If NCCL or a
//! queue pair would not accept a value, this program warns and uses its default. This program's own variables
//! and flags take precedence.

use super::nic_list::NicList;
use super::path_settings::{PATH_SETTINGS, PathFlags};

/// NCCL's settings of RDMA.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nccl {
    /// Whether `NCCL_IB_DISABLE` turns RDMA off.
    pub disabled: bool,
    /// The list of NICs in `NCCL_IB_HCA` and `NCCL_IB_GID_INDEX`. Without these variables, it selects every
    /// NIC.
    pub list: NicList,
    /// The settings that are ignored, with the reasons.
    pub warnings: Vec<String>,
}

impl Nccl {
    /// Reads the settings from this process's environment. If `nics` is true, this program's own list of NICs
    /// replaces NCCL's.
    pub fn of_environment(flags: &PathFlags, nics: bool) -> Self {
        Self::read(flags, nics, |name| std::env::var(name).ok())
    }

    fn read(flags: &PathFlags, nics: bool, environment: impl Fn(&str) -> Option<String>) -> Self {
        let said = |name: &str| environment(name).filter(|text| !text.trim().is_empty());
        let mut nccl = Nccl::default();
        let mut warn = |name: &str, seen: &str, why: &str| {
            nccl.warnings.push(format!("{name} is {seen:?}, which is ignored: {why}"));
        };
        if let Some(text) = said("NCCL_IB_DISABLE") {
            match number(&text) {
                Some(number) => nccl.disabled = number != 0,
                None => warn("NCCL_IB_DISABLE", &text, "expected 0 or 1"),
            }
        }
        if let Some(text) = said("NCCL_IB_HCA").filter(|_| !nics) {
            let (list, left_out) = NicList::of_nccl(&text);
            left_out.iter().for_each(|why| warn("NCCL_IB_HCA", &text, why));
            nccl.list = list;
        }
        if let Some(text) = said("NCCL_IB_GID_INDEX").filter(|_| !nics) {
            match number(&text).map(u8::try_from) {
                Some(Ok(index)) => nccl.list.set_gid_index(index),
                _ if is_own_choice(&text) => {}
                _ => warn(
                    "NCCL_IB_GID_INDEX",
                    &text,
                    "expected a number from 0 to 255; the best GID is chosen",
                ),
            }
        }
        let of_paths = PATH_SETTINGS.iter().filter_map(|setting| setting.warning(flags, &environment));
        nccl.warnings.extend(of_paths);
        nccl
    }
}

/// Whether the value of a variable is a negative number, which leaves the choice to NCCL.
pub(super) fn is_own_choice(text: &str) -> bool {
    number(text).is_some_and(|number| number < 0)
}

/// Parses a number as NCCL does: decimal, hexadecimal after 0x, octal after 0.
pub(super) fn number(text: &str) -> Option<i64> {
    let text = text.trim();
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let lower = digits.to_ascii_lowercase();
    let (digits, radix) = match lower.strip_prefix("0x") {
        Some(hexadecimal) => (hexadecimal, 16),
        None if lower.len() > 1 && lower.starts_with('0') => (&lower[1..], 8),
        None => (&*lower, 10),
    };
    let number = i64::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with(['+', '-']))?;
    Some(if negative { -number } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Nccl {
        let value =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, v)| v.to_string());
        Nccl::read(&PathFlags::default(), false, value)
    }

    #[test]
    fn numbers_are_read_as_nccl_reads_them() {
        let numbers = ["13", "0x2", "010", "-1", "0", " 7 "].map(number);
        assert_eq!(numbers, [13, 2, 8, -1, 0, 7].map(Some));
        assert_eq!(["", "seven", "0x", "--1", "+1", "1.5", "09"].map(number), [None; 7]);
    }

    #[test]
    fn what_nccl_takes_is_taken_without_a_word() {
        for (name, value) in [
            ("NCCL_IB_DISABLE", "0"),
            ("NCCL_IB_GID_INDEX", "-1"),
            ("NCCL_IB_GID_INDEX", "3"),
            ("NCCL_IB_PKEY", "0x2"),
            ("NCCL_IB_TC", "-1"),
            ("NCCL_IB_SL", "-1"),
            ("NCCL_IB_ADAPTIVE_ROUTING", "-2"),
            ("NCCL_IB_HCA", ""),
            ("NCCL_IB_HCA", "^mlx5_bond_0:1"),
            ("NCCL_IB_HCA", "^=mlx5_bond_0:1,mlx5_3"),
            ("NCCL_IB_HCA", "=mlx5_0:1,,mlx5_1:2"),
            ("NCCL_IB_HCA", "mlx5"),
        ] {
            assert_eq!(read(&[(name, value)]).warnings, [""; 0], "{name}={value}");
        }
        assert!(read(&[("NCCL_IB_DISABLE", "1")]).disabled);
        assert!(!read(&[("NCCL_IB_DISABLE", "0")]).disabled);
        let gid = read(&[("NCCL_IB_GID_INDEX", "3")]).list.choose("mlx5_0").unwrap().gid_index;
        assert_eq!(gid, Some(3));
    }

    #[test]
    fn what_cannot_be_is_a_warning_that_names_the_variable() {
        for (name, value, words) in [
            ("NCCL_IB_RETRY_CNT", "13", "from 0 to 7; the default 6 counts"),
            ("NCCL_IB_TIMEOUT", "50", "from 1 to 31; the default 17 counts"),
            ("NCCL_IB_TIMEOUT", "soon", "from 1 to 31"),
            ("NCCL_IB_PKEY", "65536", "from 0 to 65535"),
            ("NCCL_IB_GID_INDEX", "256", "from 0 to 255"),
            ("NCCL_IB_HCA", "mlx5_0:x", "mlx5_0:x"),
            ("NCCL_IB_HCA", "^", "names no device"),
            ("NCCL_IB_DISABLE", "yes", "0 or 1"),
        ] {
            let warnings = read(&[(name, value)]).warnings;
            assert_eq!(warnings.len(), 1, "{name}={value}: {warnings:?}");
            assert!(
                warnings[0].contains(name) && warnings[0].contains(words),
                "{name}={value}: {warnings:?}"
            );
        }
        assert_eq!(read(&[("NCCL_IB_HCA", "^")]).list, NicList::default());
    }

    #[test]
    fn our_own_list_and_numbers_go_before_nccls() {
        let mut flags = PathFlags::default();
        flags.set(PATH_SETTINGS[0], 20);
        let wrong = |name: &str| ["NCCL_IB_HCA", "NCCL_IB_TIMEOUT"].contains(&name).then(|| "^".to_owned());
        assert_eq!(Nccl::read(&flags, true, wrong).warnings, [""; 0]);
    }
}
