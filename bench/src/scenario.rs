//! The work: who announces what to whom, in which phases.

use std::net::Ipv4Addr;

use anyhow::{Result, bail};

use crate::generator::{Expectation, Role};
use crate::lab::CLIENTS;
use crate::speakers::Speaker;
use caracal_hot_paths::routes::{
    AttributeSets, DUT, DUT_AS, NEIGHBOURS, SENDER_AS, Universe, external,
};
use caracal_hot_paths::wire::{self, Attrs};

/// AS of the first external receiver.
const RECEIVER_AS: u32 = 65101;
/// Limit of prefixes times sessions for GoBGP; larger cases are left out.
const GOBGP: usize = 100_000;
/// Blocks that a client announces at first.
const BLOCKS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One sender, one receiver.
    Load,
    /// The same through the import filter of a route server.
    Filter,
    /// A reflector and its clients.
    Reflect,
    /// Ten senders with the same prefixes, ten receivers.
    Choose,
    /// Load, then withdraw and announce, five times.
    Flap,
    /// Load, withdraw, and see what memory is left.
    Forget,
    /// Sessions that say nothing.
    Idle,
    /// A reflector at rest and one change at a time.
    Latency,
}

/// A scenario with its tables.
pub struct Scenario {
    /// Name in reports, such as `A-1M`.
    pub name: String,
    pub kind: Kind,
    /// Sessions of the generator.
    pub roles: Vec<Role>,
    /// All prefixes that are ever announced.
    pub universe: Universe,
    /// Hold time in seconds.
    pub hold: u16,
    /// For each prefix the attribute set it is announced with.
    sets: AttributeSets,
    /// For each prefix the mark of the path that is to be seen; 0 = none.
    wanted: Vec<u8>,
}

/// Parses a number such as `100k`, `1M` or `300`.
fn number(text: &str) -> Result<usize> {
    let (digits, unit) = match text.strip_suffix('k') {
        Some(digits) => (digits, 1000),
        None => match text.strip_suffix('M') {
            Some(digits) => (digits, 1_000_000),
            None => (text, 1),
        },
    };
    Ok(digits.parse::<usize>()? * unit)
}

fn nth(base: Ipv4Addr, n: usize) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(base) + n as u32)
}

impl Scenario {
    /// From its name: `A-1M`, `B-300`, `C`, `D`, `E-300`, `F-1M`, `L-300`, `M-1M`; sizes may be
    /// chosen.
    pub fn new(name: &str) -> Result<Self> {
        let (letter, size) = name.split_once('-').unwrap_or((name, ""));
        let size = |default: usize| {
            if size.is_empty() {
                Ok(default)
            } else {
                number(size)
            }
        };
        let client = |n: usize| Role {
            address: nth(CLIENTS, n + 1),
            asn: DUT_AS,
            receives: true,
            capabilities: &[],
        };
        let neighbour = |n: usize, asn: u32, receives: bool| Role {
            address: nth(NEIGHBOURS, n + 1),
            asn: asn + n as u32,
            receives,
            capabilities: &[],
        };
        let one_each = || {
            vec![
                neighbour(0, SENDER_AS, false),
                neighbour(1, RECEIVER_AS, true),
            ]
        };
        let (kind, roles, universe) = match letter {
            "A" => (Kind::Load, one_each(), Universe::internet(size(1_000_000)?)),
            "F" => (
                Kind::Filter,
                one_each(),
                Universe::internet(size(1_000_000)?),
            ),
            "M" => (
                Kind::Forget,
                one_each(),
                Universe::internet(size(1_000_000)?),
            ),
            "D" => (Kind::Flap, one_each(), Universe::internet(size(100_000)?)),
            "B" | "L" => {
                let clients = size(300)?;
                let blocks = Universe::blocks(clients * (BLOCKS + 1));
                let kind = if letter == "B" {
                    Kind::Reflect
                } else {
                    Kind::Latency
                };
                (kind, (0..clients).map(client).collect(), blocks)
            }
            "C" => {
                let senders = (0..10).map(|n| neighbour(n, SENDER_AS, false));
                let receivers = (10..20).map(|n| neighbour(n, RECEIVER_AS, true));
                let universe = Universe::internet(size(50_000)?);
                (Kind::Choose, senders.chain(receivers).collect(), universe)
            }
            "E" => {
                let clients = (0..size(300)?).map(client).collect();
                (Kind::Idle, clients, Universe::blocks(0))
            }
            _ => {
                bail!("there is no scenario {name}; expected A-N, B-N, C, D, E-N, F-N, L-N or M-N")
            }
        };
        let sets = AttributeSets::of(&universe);
        Ok(Self {
            name: name.to_owned(),
            kind,
            hold: if kind == Kind::Idle { 60 } else { 240 },
            wanted: vec![0; universe.nets.len()],
            sets,
            roles,
            universe,
        })
    }

    /// Most runs of a speaker when nobody asks for it by name: GoBGP needs minutes for what takes
    /// others seconds, of the idle minutes only those are repeated that the aim is about, and the
    /// minimal relay takes part where an aim names it (it does not reflect).
    pub fn bearable(&self, speaker: Speaker) -> usize {
        let small = self.roles.len() * self.universe.nets.len() <= GOBGP;
        match (self.kind, speaker) {
            (Kind::Choose | Kind::Flap, Speaker::Minimal) => usize::MAX,
            (_, Speaker::Minimal) => 0,
            (Kind::Idle | Kind::Filter, Speaker::Caracal | Speaker::Bird2) => usize::MAX,
            // Their languages are others.
            (Kind::Filter, _) => 0,
            (Kind::Idle, _) => 1,
            (_, Speaker::Gobgp) => usize::from(small && self.kind != Kind::Latency),
            _ => usize::MAX,
        }
    }

    /// Starts anew, with nothing announced.
    pub fn reset(&mut self) {
        self.wanted.fill(0);
    }

    /// Every external sender announces everything; returns what to send.
    pub fn announce(&mut self) -> Vec<(usize, Vec<u8>)> {
        let senders: Vec<(usize, Role)> = self.senders();
        let announced = senders.iter().map(|(index, role)| {
            let octets = self
                .sets
                .announcements(&self.universe, role.asn, role.address);
            (*index, octets)
        });
        let out = announced.collect();
        // The shortest path wins, then the lowest BGP Identifier, which is the sender's address.
        let best: Vec<u8> = (0..self.sets.count)
            .map(|set| {
                let length = |role: &Role| external(role.asn, set, role.address).as_path.len();
                let best = senders
                    .iter()
                    .min_by_key(|(index, role)| (length(role), *index));
                best.map_or(0, |(index, _)| *index as u8 + 1)
            })
            .collect();
        for (wanted, set) in self.wanted.iter_mut().zip(&self.sets.of) {
            *wanted = best[*set as usize];
        }
        out
    }

    /// Every external sender withdraws everything.
    pub fn withdraw(&mut self) -> Vec<(usize, Vec<u8>)> {
        let mut octets = Vec::new();
        for nets in self.universe.nets.chunks(800) {
            wire::update(nets, None, &[], &mut octets);
        }
        self.wanted.fill(0);
        let senders = self.senders().into_iter();
        senders.map(|(index, _)| (index, octets.clone())).collect()
    }

    fn senders(&self) -> Vec<(usize, Role)> {
        let all = self.roles.iter().copied().enumerate();
        all.filter(|(_, role)| !role.receives).collect()
    }

    fn client_attrs(&self, client: usize) -> Attrs {
        Attrs {
            next_hop: Some(self.roles[client].address),
            local_pref: Some(100),
            ..Attrs::default()
        }
    }

    /// Each client announces its first blocks.
    pub fn clients_announce(&mut self) -> Vec<(usize, Vec<u8>)> {
        let mut out = Vec::new();
        for client in 0..self.roles.len() {
            let first = client * (BLOCKS + 1);
            let mut octets = Vec::new();
            let nets = &self.universe.nets[first..first + BLOCKS];
            wire::update(&[], Some(&self.client_attrs(client)), nets, &mut octets);
            self.wanted[first..first + BLOCKS].fill(1);
            out.push((client, octets));
        }
        out
    }

    /// Each client withdraws a block and announces another one.
    pub fn clients_move(&mut self) -> Vec<(usize, Vec<u8>)> {
        (0..self.roles.len())
            .map(|c| self.client_moves(c))
            .collect()
    }

    /// A client withdraws a block and announces the one that it does not have.
    pub fn client_moves(&mut self, client: usize) -> (usize, Vec<u8>) {
        let (first, last) = (client * (BLOCKS + 1), client * (BLOCKS + 1) + BLOCKS);
        let (old, new) = if self.wanted[first] == 1 {
            (first, last)
        } else {
            (last, first)
        };
        let nets = &self.universe.nets;
        let mut octets = Vec::new();
        wire::update(&nets[old..=old], None, &[], &mut octets);
        let attrs = self.client_attrs(client);
        wire::update(&[], Some(&attrs), &nets[new..=new], &mut octets);
        self.wanted[old] = 0;
        self.wanted[new] = 1;
        (client, octets)
    }

    fn reflects(&self) -> bool {
        matches!(self.kind, Kind::Reflect | Kind::Latency)
    }

    /// Every other client goes away; returns which.
    pub fn clients_leave(&mut self) -> Vec<usize> {
        let leaving: Vec<usize> = (0..self.roles.len()).step_by(2).collect();
        for client in &leaving {
            let first = client * (BLOCKS + 1);
            self.wanted[first..=first + BLOCKS].fill(0);
        }
        leaving
    }
}

impl Expectation for Scenario {
    fn tag(&self, list: &[u8]) -> u8 {
        match self.kind {
            Kind::Choose => {
                let sender = wire::second_as(list).and_then(|asn| asn.checked_sub(SENDER_AS));
                sender.map_or(u8::MAX, |n| n as u8 + 1)
            }
            Kind::Load
            | Kind::Filter
            | Kind::Reflect
            | Kind::Flap
            | Kind::Forget
            | Kind::Idle
            | Kind::Latency => 1,
        }
    }

    fn own(&self, receiver: usize, index: u32) -> bool {
        self.reflects() && index as usize / (BLOCKS + 1) == receiver
    }

    fn wanted(&self, receiver: usize, index: u32) -> u8 {
        if self.own(receiver, index) {
            0
        } else {
            self.wanted[index as usize]
        }
    }

    fn attrs(&self, index: u32) -> Attrs {
        if self.reflects() {
            let client = index as usize / (BLOCKS + 1);
            return Attrs {
                originator: Some(self.roles[client].address),
                clusters: vec![u32::from(DUT)],
                ..self.client_attrs(client)
            };
        }
        let sender = usize::from(self.wanted[index as usize].max(1)) - 1;
        let role = self.roles[sender];
        let mut attrs = external(role.asn, self.sets.of[index as usize], role.address);
        attrs.as_path.insert(0, DUT_AS);
        attrs.next_hop = Some(DUT);
        attrs
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_say_the_size() {
        assert_eq!(Scenario::new("A-2k").unwrap().universe.nets.len(), 2000);
        assert_eq!(Scenario::new("B-7").unwrap().roles.len(), 7);
        assert_eq!(Scenario::new("C-100").unwrap().roles.len(), 20);
        assert_eq!(Scenario::new("L-7").unwrap().kind, Kind::Latency);
        assert_eq!(Scenario::new("F-2k").unwrap().kind, Kind::Filter);
        assert!(Scenario::new("G").is_err());
        assert!(Scenario::new("A-many").is_err());
    }

    #[test]
    fn nobody_waits_for_gobgp_unasked() {
        let bearable = |name: &str, speaker| Scenario::new(name).unwrap().bearable(speaker);
        assert_eq!(bearable("B-100", Speaker::Gobgp), 1);
        for scenario in ["A-1M", "B-1000", "C", "D", "L-100"] {
            assert_eq!(bearable(scenario, Speaker::Gobgp), 0, "{scenario}");
            assert_eq!(bearable(scenario, Speaker::Frr), usize::MAX);
        }
        assert_eq!(bearable("E-300", Speaker::Bird2), usize::MAX);
        assert_eq!(bearable("E-300", Speaker::Frr), 1);
        assert_eq!(bearable("F-1M", Speaker::Bird2), usize::MAX);
        assert_eq!(bearable("F-1M", Speaker::Frr), 0);
    }

    #[test]
    fn a_client_never_gets_its_own_blocks_and_gets_all_others() {
        let mut scenario = Scenario::new("B-3").unwrap();
        assert_eq!(scenario.clients_announce().len(), 3);
        let seen = |scenario: &Scenario, client| {
            (0..15).filter(|i| scenario.wanted(client, *i) != 0).count()
        };
        assert_eq!(seen(&scenario, 1), 8);
        scenario.clients_move();
        assert_eq!(seen(&scenario, 1), 8);
        assert_eq!(scenario.wanted(0, 5), 0);
        // And back.
        scenario.client_moves(1);
        assert_eq!((scenario.wanted(0, 5), scenario.wanted(0, 9)), (1, 0));
        assert_eq!(scenario.clients_leave(), [0, 2]);
        assert_eq!(seen(&scenario, 1), 0);
    }

    #[test]
    fn the_shortest_path_is_wanted() {
        let mut scenario = Scenario::new("C-100").unwrap();
        let sent = scenario.announce();
        assert_eq!(sent.len(), 10);
        for index in 0..100 {
            let wanted = scenario.attrs(index).as_path.len();
            let set = scenario.sets.of[index as usize];
            let shortest = (0..10)
                .map(|n| external(SENDER_AS + n, set, DUT).as_path.len() + 1)
                .min();
            assert_eq!(Some(wanted), shortest);
        }
    }
}
