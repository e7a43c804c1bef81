//! Newtype numbers of the machine's parts, so that a cpu is never taken for a node.
//!
//! Must not know what the parts are made of.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $word:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// The number as an index.
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
    /// A socket (processor package), by the number the operating system gives it: may have gaps.
    SocketId,
    "socket"
);
id!(
    /// A NUMA node, by the number the operating system gives it: may have gaps.
    NodeId,
    "node"
);
id!(
    /// A processing unit (hardware thread), by the number that affinity masks use: may have gaps.
    CpuId,
    "cpu"
);
id!(
    /// A physical core, numbered densely over the host in socket order; holds one or more [`CpuId`]s.
    CoreId,
    "core"
);
id!(
    /// A NIC, as its index in [`Host::nics`](crate::Host::nics).
    NicId,
    "nic"
);
