//! The table as it was written, and what has to change so that it is the plan's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use caracal_model::{InsertEach, SharedMap};

use super::address::{ServiceAddress, ServiceTarget};
use super::entry::ServiceEntry;
use super::listing::Listed;
use super::order::keep_indices;
use super::parts::{
    Keeping, Part, is_of_clients, is_shared, keeping, parts, pick_chain, pick_of, ports, ranges,
    spared,
};
use super::planner::{ServicePlanner, Surroundings};
use crate::nft::{Element, SetName};
use crate::transport::Transport;

/// Parts to add and to take away.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) add: BTreeSet<Part>,
    pub(super) delete: BTreeSet<Part>,
    /// Elements that were listed and are of no form that we write.
    pub(super) foreign: Vec<(SetName, String)>,
    /// Chains of clients that were listed and nobody needs.
    pub(super) strays: BTreeSet<String>,
    /// Their maps.
    pub(super) stray_maps: BTreeSet<String>,
    /// Maps of clients in which only these endpoints may stand.
    pub(super) clients: BTreeMap<String, BTreeSet<ServiceTarget>>,
    /// Addresses whose flows may go to these endpoints only.
    pub(super) flows: BTreeMap<ServiceAddress, BTreeSet<ServiceTarget>>,
}

impl Change {
    fn has_strays(&self) -> bool {
        !self.strays.is_empty() || !self.stray_maps.is_empty()
    }

    /// True when chains and maps come, go or are written again.
    fn changes_chains(&self) -> bool {
        let mut parts = self.add.iter().chain(&self.delete);
        self.has_strays() || parts.any(|part| !matches!(part, Part::Element(..)))
    }

    /// True when the table has to be sealed anew. `follows`: chains that pick are none of the seal.
    pub(super) fn breaks_seal(&self, follows: bool) -> bool {
        let mut parts = self.add.iter().chain(&self.delete);
        match follows {
            true => self.has_strays() || parts.any(|part| matches!(part, Part::Keeping(_))),
            false => self.changes_chains(),
        }
    }

    /// Changed elements.
    pub(super) fn len(&self) -> usize {
        self.add.len() + self.delete.len() + self.foreign.len()
    }
}

/// The table as it was written.
#[derive(Clone, Debug, Default)]
pub(super) struct Written {
    entries: SharedMap<ServiceAddress, Arc<ServiceEntry>>,
    /// Parts that belong to several entries, with their number.
    shared: BTreeMap<Part, usize>,
    /// Chains that pick an endpoint, with the number of entries that lead there. One that nobody
    /// needs goes with the next change of chains: a Service whose endpoints come and go changes
    /// elements alone.
    picks: BTreeMap<Part, usize>,
    surroundings: Surroundings,
}

impl Written {
    /// The entries in force.
    pub(super) const fn entries(&self) -> &SharedMap<ServiceAddress, Arc<ServiceEntry>> {
        &self.entries
    }

    /// Takes in the plan for these addresses; what the kernel has to be told.
    pub(super) fn follow(
        &mut self,
        plan: &ServicePlanner,
        addresses: impl IntoIterator<Item = ServiceAddress>,
    ) -> Change {
        let mut change = Change::default();
        let idle = self.idle_picks();
        for address in addresses {
            let before = self.entries.get(&address).cloned();
            let wanted = plan.entry(&address);
            let now = wanted.map(|wanted| with_kept_indices(before.as_deref(), wanted));
            if before == now {
                continue;
            }
            if let Some(flows) = flows(&address, before.as_deref(), now.as_deref()) {
                change.flows.insert(address, flows);
            }
            let of = |entry: &Option<Arc<ServiceEntry>>| {
                entry
                    .as_ref()
                    .map_or_else(BTreeSet::new, |entry| parts(&address, entry))
            };
            let (old, new) = (of(&before), of(&now));
            for part in new.difference(&old) {
                self.count(part, 1, &mut change);
            }
            for part in old.difference(&new) {
                self.count(part, -1, &mut change);
            }
            if let (Some(before), Some(now)) = (&before, &now) {
                let keepings = new.iter().filter_map(keeping);
                keepings.for_each(|keeping| {
                    look_at_clients(keeping, before, now, None, &mut change.clients);
                });
            }
            match now {
                Some(now) => _ = self.entries.insert(address, now),
                None => _ = self.entries.remove(&address),
            }
        }
        let surroundings = &plan.surroundings;
        if self.surroundings != *surroundings {
            let (old, new) = (surrounding(&self.surroundings), surrounding(surroundings));
            change.add.extend(new.difference(&old).cloned());
            change.delete.extend(old.difference(&new).cloned());
            self.surroundings = surroundings.clone();
        }
        if change.changes_chains() {
            for part in idle {
                if self.picks.get(&part) == Some(&0) {
                    self.picks.remove(&part);
                    change.delete.insert(part);
                }
            }
        }
        change
    }

    fn idle_picks(&self) -> Vec<Part> {
        let idle = self.picks.iter().filter(|(_, users)| **users == 0);
        idle.map(|(part, _)| part.clone()).collect()
    }

    fn count(&mut self, part: &Part, by: isize, change: &mut Change) {
        if let Part::Pick(..) = part {
            let users = self.picks.entry(part.clone()).or_insert_with(|| {
                change.add.insert(part.clone());
                0
            });
            *users = users.saturating_add_signed(by);
            return;
        }
        let ends = if is_shared(part) {
            let count = self.shared.entry(part.clone()).or_default();
            let was = *count;
            *count = count.saturating_add_signed(by);
            let is = *count;
            if is == 0 {
                self.shared.remove(part);
            }
            (was == 0) != (is == 0)
        } else {
            true
        };
        if !ends {
            return;
        }
        // Of two changes within one pass that undo each other nothing is left.
        let (to, from) = match by > 0 {
            true => (&mut change.add, &mut change.delete),
            false => (&mut change.delete, &mut change.add),
        };
        if !from.remove(part) {
            to.insert(part.clone());
        }
    }

    /// A table that holds what was listed, and what has to change so that it is the plan's. The
    /// indices of endpoints stay where they can.
    pub(super) fn adopt(plan: &ServicePlanner, listed: &mut Listed<'_>) -> (Self, Change) {
        let (mut written, mut whole) = (Self::default(), Change::default());
        for (address, entry) in plan.all() {
            let (cluster, here) = listed.order(address);
            let known = ServiceEntry {
                cluster,
                here,
                ..ServiceEntry::clone(entry)
            };
            // It is only asked for its order.
            let entry = with_kept_indices(Some(&known), entry);
            if let Some(flows) = &entry.flows {
                whole.flows.insert(*address, flows.clone());
            }
            for part in &parts(address, &entry) {
                written.count(part, 1, &mut whole);
                if let Some(keeping) = keeping(part) {
                    let listed = Some(&*listed);
                    look_at_clients(keeping, &known, &entry, listed, &mut whole.clients);
                }
            }
            written.entries.insert(*address, entry);
        }
        written.surroundings = plan.surroundings.clone();
        whole.add.extend(surrounding(&plan.surroundings));
        let mut change = Change {
            clients: whole.clients,
            flows: whole.flows,
            ..Change::default()
        };
        let mut elements = std::mem::take(&mut listed.elements);
        let is_there = |part: &Part, elements: &mut BTreeSet<(SetName, Element)>| match part {
            Part::Element(..) if elements.is_empty() => false,
            Part::Element(set, element) => elements.remove(&(Arc::clone(set), element.clone())),
            Part::Pick(endpoints, count) => listed.chains.contains(&pick_chain(*endpoints, *count)),
            Part::Keeping(keeping) => listed.keeps(keeping),
        };
        change.add = whole.add;
        change.add.retain(|part| !is_there(part, &mut elements));
        let unwanted = elements.into_iter();
        let unwanted = unwanted.map(|(set, element)| Part::Element(set, element));
        change.delete.extend(unwanted);
        change.foreign.append(&mut listed.foreign);
        written.leave(listed, &mut change);
        (written, change)
    }

    /// Has taken away what was listed of service ports that there are no more, and chains that pick
    /// among a number of endpoints that no Service has.
    fn leave(&self, listed: &Listed<'_>, change: &mut Change) {
        let (mut chains, mut maps) = (BTreeSet::new(), BTreeSet::new());
        for keeping in self.shared.keys().filter_map(keeping) {
            chains.extend(keeping.chains().into_iter().map(|(name, _)| name));
            maps.extend(keeping.maps());
            maps.extend(keeping.picks().map(|(map, _)| map));
        }
        let strays = listed.chains.difference(&chains);
        let strays = strays.filter(|name| is_of_clients(name));
        change.strays = strays.cloned().insert_each();
        let strays = listed.maps_of_clients().filter(|map| !maps.contains(*map));
        change.stray_maps = strays.map(str::to_owned).insert_each();
        let picks = listed.chains.iter().filter_map(|name| pick_of(name));
        let picks = picks.map(|(endpoints, count)| Part::Pick(endpoints, count));
        let unwanted = picks.filter(|part| !self.picks.contains_key(part));
        change.delete.extend(unwanted);
    }
}

/// The parts that no Service makes.
fn surrounding(surroundings: &Surroundings) -> BTreeSet<Part> {
    let Surroundings {
        pods,
        ranges: unused,
        spared: left_alone,
        kept,
        guarded,
        ..
    } = surroundings;
    ranges("pods", pods)
        .chain(ranges("ranges", unused))
        .chain(spared(left_alone))
        .chain(ports("kept-ports", kept))
        .chain(ports("guarded-ports", guarded))
        .insert_each()
}

/// Has the clients looked at whose endpoint may have gone: where one has, and where the listing has
/// such a client.
fn look_at_clients(
    keeping: &Keeping,
    before: &ServiceEntry,
    now: &ServiceEntry,
    listed: Option<&Listed<'_>>,
    clients: &mut BTreeMap<String, BTreeSet<ServiceTarget>>,
) {
    let [cluster, here] = keeping.maps();
    for (map, before, now) in [
        (cluster, &before.cluster, &now.cluster),
        (here, &before.here, &now.here),
    ] {
        let allowed: BTreeSet<ServiceTarget> = now.iter().copied().insert_each();
        let has_stray = |listed: &Listed<'_>| listed.has_stray_client(&map, &allowed);
        if before.iter().any(|target| !allowed.contains(target)) || listed.is_some_and(has_stray) {
            clients.insert(map, allowed);
        }
    }
}

/// The endpoints to which flows through an address go on; `None` = none has to end. Without a
/// Service nothing is said of the endpoints of TCP: they may well be there.
fn flows(
    address: &ServiceAddress,
    before: Option<&ServiceEntry>,
    now: Option<&ServiceEntry>,
) -> Option<BTreeSet<ServiceTarget>> {
    let flows = now.and_then(|entry| entry.flows.clone());
    if address.protocol == Transport::Udp {
        return Some(flows.unwrap_or_default());
    }
    let flows = flows?;
    let before = before?.flows.as_ref()?;
    (!before.is_subset(&flows)).then_some(flows)
}

fn with_kept_indices(
    before: Option<&ServiceEntry>,
    wanted: &Arc<ServiceEntry>,
) -> Arc<ServiceEntry> {
    let Some(before) = before else {
        return Arc::clone(wanted);
    };
    let cluster = keep_indices(&before.cluster, &wanted.cluster);
    let here = keep_indices(&before.here, &wanted.here);
    match cluster == wanted.cluster && here == wanted.here {
        true => Arc::clone(wanted),
        false => Arc::new(ServiceEntry {
            cluster,
            here,
            ..ServiceEntry::clone(wanted)
        }),
    }
}
