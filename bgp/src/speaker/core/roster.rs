//! The peers that the core serves, and those whose session task has not ended yet.
//!
//! A peer is known by its key for as long as it is here, and sessions name it by nothing else. Its
//! name is a label that a new configuration may change (decision 0062).

use std::collections::BTreeMap;

use super::CorePeer;
use crate::rib::PeerId;
use crate::speaker::message::PeerKey;
use crate::types::PeerName;

/// Peers by key, and the names that they have now.
#[derive(Default)]
pub(super) struct Roster {
    peers: BTreeMap<PeerKey, CorePeer>,
    names: BTreeMap<PeerName, PeerKey>,
    /// The next peer's key.
    next_key: u64,
}

impl Roster {
    /// Adds a peer under a name that nobody here has. It has no handle in the table yet.
    pub(super) fn add(&mut self, name: &PeerName) -> &mut CorePeer {
        let key = PeerKey(self.next_key);
        self.next_key += 1;
        self.names.insert(name.clone(), key);
        let peer = CorePeer::new(key, name.clone());
        self.peers.entry(key).or_insert(peer)
    }

    pub(super) fn get(&self, key: PeerKey) -> Option<&CorePeer> {
        self.peers.get(&key)
    }

    pub(super) fn get_mut(&mut self, key: PeerKey) -> Option<&mut CorePeer> {
        self.peers.get_mut(&key)
    }

    /// The peer that has this name now.
    pub(super) fn named(&self, name: &PeerName) -> Option<&CorePeer> {
        self.peers.get(self.names.get(name)?)
    }

    /// The peer that has this name now.
    pub(super) fn named_mut(&mut self, name: &PeerName) -> Option<&mut CorePeer> {
        self.peers.get_mut(self.names.get(name)?)
    }

    /// The peer with this handle in the table.
    pub(super) fn with_id(&self, id: PeerId) -> Option<&CorePeer> {
        self.peers.values().find(|peer| peer.id == Some(id))
    }

    /// The peer with this handle in the table.
    pub(super) fn with_id_mut(&mut self, id: PeerId) -> Option<&mut CorePeer> {
        self.peers.values_mut().find(|peer| peer.id == Some(id))
    }

    /// Removes a peer whose session task has ended.
    pub(super) fn remove(&mut self, key: PeerKey) {
        if let Some(peer) = self.peers.remove(&key) {
            self.names.remove(&peer.name);
        }
    }

    /// Gives a peer another name. False when another peer has that one, or nobody the old one.
    pub(super) fn rename(&mut self, old: &PeerName, new: &PeerName) -> bool {
        if self.names.contains_key(new) {
            return false;
        }
        let Some(key) = self.names.remove(old) else {
            return false;
        };
        self.names.insert(new.clone(), key);
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.name = new.clone();
        }
        true
    }

    /// All peers, ordered by name.
    pub(super) fn by_name(&self) -> impl Iterator<Item = &CorePeer> {
        let keys = self.names.values();
        keys.filter_map(|key| self.peers.get(key))
    }

    /// All peers, in the order in which they came.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut CorePeer> {
        self.peers.values_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_keeps_its_key_under_another_name() {
        let mut roster = Roster::default();
        let (one, other, new) = ("one".into(), "other".into(), "new".into());
        roster.add(&one);
        roster.add(&other);
        let key = roster.named(&one).unwrap().key;
        assert!(!roster.rename(&one, &other), "the name is another peer's");
        assert!(!roster.rename(&new, &one), "nobody has the old name");
        assert!(roster.rename(&one, &new));
        assert!(roster.named(&one).is_none());
        assert_eq!(roster.named(&new).unwrap().key, key);
        assert_eq!(roster.get(key).unwrap().name, new);
        // The name is free again, for another peer.
        roster.add(&one);
        assert_ne!(roster.named(&one).unwrap().key, key);
        roster.remove(key);
        assert!(roster.named(&new).is_none() && roster.get(key).is_none());
        let left: Vec<_> = roster.by_name().map(|peer| peer.name.clone()).collect();
        assert_eq!(left, [one, other]);
    }
}
