//! The resources of a machine that a hub uses, and its behaviour when there is too little.

mod beside;
mod churn;
mod control_group;
mod crowd;
mod no_memfd;
mod scarcity;
mod sleeping;
mod system_calls;
mod traffic;
