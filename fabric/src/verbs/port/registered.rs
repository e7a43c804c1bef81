//! A connection's two windows on one NIC, in a protection domain of their own.
//!
//! Made by a handshake's thread, then held by the links that use it.

use std::sync::Arc;

use crate::memory::{RecvWindow, SendWindow};
use crate::verbs::error::VerbsError;
use crate::verbs::handles::domain::Domain;
use crate::verbs::handles::region::Region;
use crate::verbs::nic::Nic;

/// A connection's windows on one NIC: registered in a domain of its own.
pub(in crate::verbs) struct Registered {
    pub nic: Arc<Nic>,
    pub domain: Arc<Domain>,
    pub send: Arc<Region>,
    pub receive: Arc<Region>,
}

impl Registered {
    pub fn new(nic: &Arc<Nic>, ours: &Arc<SendWindow>, theirs: &RecvWindow) -> Result<Self, VerbsError> {
        let domain = Domain::new(&nic.context)?;
        let send = Region::send(&domain, ours)?;
        let receive = Region::receive(&domain, theirs)?;
        Ok(Registered { nic: Arc::clone(nic), domain, send, receive })
    }
}
