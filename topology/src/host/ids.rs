//! A type for the numbers of each kind of part of the machine, so that a cpu number is never used as a node number.
//!
//! This module must not depend on what the parts are made of.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $word:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// Returns the number as an index.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($word, " {}"), self.0)
            }
        }
    };
}

id!(
    /// A socket (processor package), by the number the operating system gives it. Numbers may have gaps.
    SocketId,
    "socket"
);
id!(
    /// A NUMA node, by the number the operating system gives it. Numbers may have gaps.
    NodeId,
    "node"
);
id!(
    /// A processing unit (hardware thread), by the number that affinity masks use. Numbers may have gaps.
    CpuId,
    "cpu"
);
id!(
    /// A physical core, numbered over the host in socket order without gaps. It has one or more [`CpuId`]s.
    CoreId,
    "core"
);
id!(
    /// A NIC, as its index in [`Host::nics`](crate::Host::nics).
    NicId,
    "nic"
);
