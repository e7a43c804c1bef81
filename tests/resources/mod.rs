//! What a hub uses of its machine, and what it does when there is too little.

mod beside;
mod churn;
mod control_group;
mod crowd;
mod no_memfd;
mod scarcity;
mod sleeping;
mod system_calls;
mod traffic;
