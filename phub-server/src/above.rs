//! The settings of a hub below other hubs: where these are, and which machine this is.

use std::str::FromStr;

/// `--machine`: the number of this hub among those below the same hubs, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// From 0.
    pub number: u32,
    /// How many there are.
    pub of: u32,
}

impl FromStr for Machine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("{text:?}: expected a number from 0 and how many there are, like 1/4");
        let (number, of) = text.split_once('/').ok_or_else(expected)?;
        let parse = |part: &str| part.trim().parse::<u32>().map_err(|_| expected());
        let machine = Machine { number: parse(number)?, of: parse(of)? };
        if machine.number >= machine.of {
            return Err(format!("{text:?}: the machines go from 0 to below their number"));
        }
        Ok(machine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_a_number_below_another() {
        assert_eq!("1/4".parse(), Ok(Machine { number: 1, of: 4 }));
        for wrong in ["4/4", "1", "1/", "-1/2", "a/b", "0/0"] {
            assert!(wrong.parse::<Machine>().unwrap_err().contains(wrong), "{wrong}");
        }
    }
}
