//! A group: the ports of one process or one hub, the NICs that they use, and the thread that watches connections
//! and NICs.
//!
//! A NIC is lost if it does not open, or if its device has failed. The ports that used the NIC continue
//! without it, and other ports are not affected. When the owner of the group calls `mend`, a lost NIC is
//! opened again for links that are made later.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::address::{Address, Gid, Mtu};
use super::device::link_layer;
use super::error::VerbsError;
use super::events::NicWatch;
use super::gid::SYSFS;
use super::handles::context::Context;
use super::handles::error::DeviceError;
use super::nic::{Nic, NicOptions};
use super::path_settings::{PathFlags, PathSettings};
use super::port::rails::{MAX_RAILS, PortState, Rail, Rails};
use super::rail_map::RailMap;
use crate::watch::Watch;

/// The least time between two tries to open a NIC. A reset of a NIC takes seconds, and each try may make the
/// driver query the NIC.
const REOPEN_PAUSE: Duration = Duration::from_secs(10);

/// The settings of a group, except for its NICs.
#[derive(Clone, Debug, Default)]
pub struct GroupOptions {
    /// The map of the group's NICs to a hub's NICs. NICs that it does not name are paired by rule.
    pub rails: RailMap,
    /// The completion vector of the first port. Each further port has the next vector. A worker gives its
    /// number on its machine, so that the interrupts of several workers go to different processors.
    pub first_vector: u32,
    /// The path settings that flags give.
    pub paths: PathFlags,
}

/// The ports of one end, with the NICs and settings that the handshake needs.
#[derive(Debug)]
pub struct Group {
    pub(super) ports: Vec<Arc<PortState>>,
    /// The NICs of each port, open or not.
    wanted: Vec<Vec<NicOptions>>,
    pub(super) watch: Watch,
    pub(crate) options: GroupOptions,
    settings: PathSettings,
    /// The number of links to hubs that this group has on each NIC, in the order of the ports' rails.
    loads: Mutex<Vec<u32>>,
    nics: Mutex<Nics>,
}

#[derive(Debug, Default)]
struct Nics {
    /// Each NIC that some port needs, once.
    wanted: Vec<Wanted>,
    watches: Vec<Arc<NicWatch>>,
}

/// A NIC that some ports need.
#[derive(Debug)]
struct Wanted {
    options: NicOptions,
    /// The NIC, or the reason why the last try to open it failed.
    nic: Result<Arc<Nic>, VerbsError>,
    /// The time of the last try.
    tried: Instant,
    /// The address that the NIC had when it was last open.
    address: Option<Address>,
}

impl Wanted {
    fn open(&self) -> Option<&Arc<Nic>> {
        self.nic.as_ref().ok().filter(|nic| !nic.context.is_lost())
    }

    fn lost(&self) -> Option<VerbsError> {
        match &self.nic {
            Ok(nic) if nic.context.is_lost() => {
                Some(VerbsError::Device(DeviceError::Fatal { device: self.options.device.clone() }))
            }
            Ok(_) => None,
            Err(error) => Some(error.clone()),
        }
    }
}

impl Group {
    /// Creates a group with one port for each entry of `ports`, on the NICs of that entry. At least one NIC
    /// must open.
    pub(super) fn new(ports: &[&[NicOptions]], options: GroupOptions) -> Result<Arc<Self>, VerbsError> {
        assert!(!ports.is_empty(), "a group has at least one port");
        let settings = PathSettings::new(&options.paths)?;
        let port = |(nics, vector): (&&[NicOptions], u32)| {
            assert!((1..=MAX_RAILS).contains(&nics.len()), "a port has 1 to {MAX_RAILS} NICs");
            Ok(PortState::new(Rails::new(vector)?))
        };
        let states = ports.iter().zip(options.first_vector..).map(port);
        let states = states.collect::<Result<Vec<_>, VerbsError>>()?;
        let watch = Watch::start().map_err(VerbsError::system("starting the watch over connections"))?;
        let group = Group {
            ports: states,
            wanted: ports.iter().map(|nics| nics.to_vec()).collect(),
            watch,
            options,
            settings,
            loads: Mutex::default(),
            nics: Mutex::default(),
        };
        let mut nics = group.nics_in_use();
        for options in group.wanted.iter().flatten() {
            if nics.wanted.iter().any(|known| known.options == *options) {
                continue;
            }
            let nic = group.open(options, &mut nics);
            // A wrong setting applies to all NICs, so it is an error of the whole group.
            if let Err(error @ VerbsError::Setting(_)) = nic {
                return Err(error);
            }
            let address = nic.as_ref().ok().map(|nic| nic.address().clone());
            nics.wanted.push(Wanted { options: options.clone(), nic, tried: Instant::now(), address });
        }
        let none_is_open = nics.wanted.iter().all(|nic| nic.nic.is_err());
        if let (true, Some(error)) = (none_is_open, nics.wanted.first().and_then(Wanted::lost)) {
            return Err(error);
        }
        drop(nics);
        Ok(Arc::new(group))
    }

    pub(super) fn loads(&self) -> MutexGuard<'_, Vec<u32>> {
        self.loads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn nics_in_use(&self) -> MutexGuard<'_, Nics> {
        self.nics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a NIC, and gives it to the ports that need it. NICs of one device share the device's context.
    fn open(&self, options: &NicOptions, nics: &mut Nics) -> Result<Arc<Nic>, VerbsError> {
        let open = |options: &NicOptions| nics.wanted.iter().find(|nic| nic.options == *options)?.open();
        let contexts = nics.wanted.iter().filter_map(Wanted::open).map(|nic| &nic.context);
        let shared = contexts.into_iter().find(|context| context.device == options.device).cloned();
        let context = shared.clone().map_or_else(|| Context::open(&options.device), Ok)?;
        let nic = Arc::new(Nic::open(&context, options, self.settings)?);
        // A NIC with a link-local address is refused if there is a better NIC. `Fitness` has done this for the
        // NICs that are open at the start, so here the rule is only for NICs that open later.
        let is_new = nics.wanted.iter().any(|nic| nic.options == *options && nic.address.is_none());
        let has_better = || nics.wanted.iter().filter_map(Wanted::open).any(|nic| !nic.is_link_local());
        if is_new && options.gid_index.is_none() && nic.is_link_local() && has_better() {
            return Err(VerbsError::Device(DeviceError::LinkLocal { device: options.device.clone() }));
        }
        let watch = match shared {
            None => Some(NicWatch::start(&self.watch, &context, nic.settings.patience(), &self.ports)?),
            Some(_) => None,
        };
        for (port, wanted) in self.ports.iter().zip(&self.wanted).filter(|(_, nics)| nics.contains(options)) {
            let now = |other: &NicOptions| if other == options { Some(&nic) } else { open(other) };
            // A port also keeps other NICs of the group that it already uses, because it may have links on
            // them.
            let is_own = |nic: &Arc<Nic>| {
                let is_it = |own: &NicOptions| {
                    own.device == nic.context.device && own.port.is_none_or(|port| port == nic.port)
                };
                wanted.iter().any(is_it)
            };
            let lent = port.own.open().into_iter().map(|rail| Arc::clone(&rail.nic));
            let lent = lent.filter(|nic| !is_own(nic) && !nic.context.is_lost());
            let now: Vec<Arc<Nic>> = wanted.iter().filter_map(now).cloned().chain(lent).collect();
            port.use_nics(&now)?;
        }
        nics.watches.retain(|watch| !watch.is_over());
        nics.watches.extend(watch);
        Ok(nic)
    }

    /// Tries to open the lost NICs, each at most once in 10 s. NICs that open are used for links that are
    /// made from now on. Returns each NIC that was tried, with its port and GID, or with the reason why it is
    /// still lost. If no NIC is lost, the call only takes a lock.
    pub fn mend(&self) -> Vec<(NicOptions, Result<String, VerbsError>)> {
        let mut nics = self.nics_in_use();
        let mut tried = Vec::new();
        for index in 0..nics.wanted.len() {
            let Wanted { options, tried: last, .. } = &nics.wanted[index];
            if nics.wanted[index].open().is_some() || last.elapsed() < REOPEN_PAUSE {
                continue;
            }
            let options = options.clone();
            let nic = self.open(&options, &mut nics);
            tried.push((options, nic.as_ref().map(|nic| nic.reason().to_owned()).map_err(Clone::clone)));
            let wanted = &mut nics.wanted[index];
            wanted.address = nic.as_ref().ok().map(|nic| nic.address().clone()).or(wanted.address.take());
            (wanted.nic, wanted.tried) = (nic, Instant::now());
        }
        tried
    }

    /// Returns the lost NICs, with the reasons.
    pub fn lost(&self) -> Vec<(NicOptions, VerbsError)> {
        let nics = self.nics_in_use();
        nics.wanted.iter().filter_map(|nic| Some((nic.options.clone(), nic.lost()?))).collect()
    }

    /// Returns the NICs that are open and have a port that is up.
    pub fn up(&self) -> Vec<Arc<Nic>> {
        let nics = self.nics_in_use();
        nics.wanted.iter().filter_map(Wanted::open).filter(|nic| nic.has_link()).cloned().collect()
    }

    /// Returns the [name](Nic::name) of a port's own NIC, even if the NIC is lost. If that NIC was never
    /// open, returns the device's name.
    pub fn name(&self, port: usize) -> String {
        let nics = self.nics_in_use();
        let own = &self.wanted[port][0];
        let known = nics.wanted.iter().find(|nic| nic.options == *own).and_then(|nic| nic.nic.as_ref().ok());
        known.map_or_else(|| own.device.clone(), |nic| nic.name())
    }

    /// Returns the NICs of all ports, open or not, each once.
    pub(crate) fn all_nics(&self) -> Vec<NicOptions> {
        let nics = self.nics_in_use();
        nics.wanted.iter().map(|nic| nic.options.clone()).collect()
    }

    /// Returns the open NICs of a port. A hub's port has one NIC, and a worker's port has several.
    pub fn nics(&self, port: usize) -> Vec<Arc<Nic>> {
        self.rails(port).into_iter().map(|rail| Arc::clone(&rail.nic)).collect()
    }

    /// Returns the rails of a port on which links can be made: open NICs with their completion queues.
    pub(super) fn rails(&self, port: usize) -> Vec<Arc<Rail>> {
        let open = self.ports[port].own.open();
        open.into_iter().filter(|rail| !rail.nic.context.is_lost()).collect()
    }

    /// Returns the rail of a hub's port for links to a peer with these NICs, or the reason why its NIC is
    /// lost. Only NICs whose address `may_serve` allows are considered. The best NICs are up and in a subnet
    /// of the peer. Next come NICs that are up, and then any open NIC. Of equally good NICs, the port's own
    /// comes first, and then another NIC of the group.
    pub(super) fn rail(
        &self,
        port: usize,
        peer: &[Address],
        may_serve: impl Fn(&Address) -> bool,
    ) -> Result<Arc<Rail>, VerbsError> {
        let nics = self.nics_in_use();
        let own = nics.wanted.iter().find(|nic| nic.options == self.wanted[port][0]);
        let serves = |nic: &&Arc<Nic>| may_serve(&nic.address);
        let open: Vec<&Arc<Nic>> = nics.wanted.iter().filter_map(Wanted::open).filter(serves).collect();
        let up = |nic: &&Arc<Nic>| nic.has_link();
        let near =
            |nic: &&Arc<Nic>| up(nic) && peer.iter().any(|peer| nic.address.shared_subnet(peer).is_some());
        // NICs are considered in this order: the port's own, and then the rest. Each port begins the rest at
        // a different NIC.
        let turn = port % open.len().max(1);
        let in_turn = || {
            own.and_then(Wanted::open)
                .into_iter()
                .filter(serves)
                .chain(open.iter().copied().cycle().skip(turn).take(open.len()))
        };
        let best = in_turn().find(near).or_else(|| in_turn().find(up)).or_else(|| in_turn().next());
        let Some(best) = best.cloned() else {
            let device = self.wanted[port][0].device.clone();
            let fatal = VerbsError::Device(DeviceError::Fatal { device });
            return Err(own.and_then(Wanted::lost).unwrap_or(fatal));
        };
        let state = &self.ports[port];
        let rails = state.own.open();
        if let Some(rail) = rails.iter().find(|rail| Arc::ptr_eq(&rail.nic, &best)) {
            return Ok(Arc::clone(rail));
        }
        let all: Vec<Arc<Nic>> =
            rails.iter().map(|rail| Arc::clone(&rail.nic)).chain([Arc::clone(&best)]).collect();
        state.use_nics(&all)?;
        let rail = state.own.open().into_iter().find(|rail| Arc::ptr_eq(&rail.nic, &best));
        Ok(rail.expect("the port was just given it"))
    }

    /// Returns the address of each port's NIC in a hub, for a joiner that pairs its NICs with all NICs of the hub. If a
    /// NIC is lost, returns the NIC's last address. If a NIC was never open, returns a placeholder.
    pub(super) fn addresses(&self) -> Vec<Address> {
        let nics = self.nics_in_use();
        let address = |wanted: &Vec<NicOptions>| {
            let known = nics.wanted.iter().find(|nic| nic.options == wanted[0]);
            known.and_then(|nic| nic.address.clone()).unwrap_or_else(|| never_open(&wanted[0]))
        };
        self.wanted.iter().map(address).collect()
    }
}

/// Returns a placeholder for the address of a NIC that was never open.
fn never_open(options: &NicOptions) -> Address {
    Address {
        device: options.device.clone(),
        link_layer: link_layer(Path::new(SYSFS), &options.device, options.port.unwrap_or(1)),
        gid: Gid::default(),
        prefix: None,
        lid: 0,
        mtu: Mtu::SMALLEST,
    }
}
