//! The map of this end's NICs to a hub's NICs, as a person writes it: `mlx5_0=mlx5_2,mlx5_1=mlx5_3`.

use std::fmt;
use std::str::FromStr;

/// Pairs of NICs by name: this end's NIC, and then the hub's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RailMap {
    pairs: Vec<(String, String)>,
}

/// The error of an invalid map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{seen:?} in a map of rails: expected OWN-NIC=HUB-NIC, such as mlx5_0=mlx5_2, and commas between several"
)]
pub struct ParseRailMapError {
    seen: String,
}

impl RailMap {
    /// Reads the map from the variable `PHUB_RAILS` of this process. The map is empty if the variable is not
    /// set.
    ///
    /// # Errors
    /// Returns an error if the variable's text is not a map.
    pub fn of_environment() -> Result<Self, ParseRailMapError> {
        std::env::var("PHUB_RAILS").unwrap_or_default().parse()
    }

    /// Whether the map names no NIC.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Returns the NICs of this end that the map pairs with a hub's NIC.
    pub(super) fn with_hub_nic<'a>(&'a self, hub: &'a str) -> impl Iterator<Item = &'a str> + Clone {
        self.pairs.iter().filter(move |(_, of_hub)| of_hub == hub).map(|(own, _)| own.as_str())
    }
}

impl fmt::Display for RailMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<String> = self.pairs.iter().map(|(own, hub)| format!("{own}={hub}")).collect();
        f.write_str(&pairs.join(","))
    }
}

impl FromStr for RailMap {
    type Err = ParseRailMapError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let pair = |pair: &str| match pair.trim().split_once('=') {
            Some((own, hub)) if !own.is_empty() && !hub.is_empty() && !hub.contains('=') => {
                Ok((own.to_owned(), hub.to_owned()))
            }
            _ => Err(ParseRailMapError { seen: pair.to_owned() }),
        };
        let pairs = text.split(',').filter(|pair| !pair.trim().is_empty()).map(pair);
        Ok(RailMap { pairs: pairs.collect::<Result<_, _>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nic_may_have_several_partners() {
        let map: RailMap = "mlx5_0=mlx5_2, mlx5_1=mlx5_3,mlx5_4=mlx5_2".parse().unwrap();
        assert_eq!(map.with_hub_nic("mlx5_2").collect::<Vec<_>>(), ["mlx5_0", "mlx5_4"]);
        assert_eq!(map.with_hub_nic("mlx5_0").count(), 0);
        assert_eq!(map.to_string(), "mlx5_0=mlx5_2,mlx5_1=mlx5_3,mlx5_4=mlx5_2");
        assert_eq!("".parse(), Ok(RailMap::default()));
    }

    #[test]
    fn what_is_no_pair_is_named() {
        for text in ["mlx5_0", "mlx5_0=mlx5_1,=mlx5_2", "a=", "a=b=c"] {
            let error = text.parse::<RailMap>().unwrap_err().to_string();
            assert!(error.contains("expected OWN-NIC=HUB-NIC"), "{error}");
        }
    }
}
