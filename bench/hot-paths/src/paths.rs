//! The hot paths by themselves, in one thread, so that their instructions can be counted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use anyhow::{Result, bail};
use bytes::BytesMut;
use caracal_bgp::{
    Asn, ClusterId, MemberUpdate, Message, MessageFormat, OriginMode, OriginRange, OriginRules,
    OriginUpdate, Originations, Outbound, OwnerIdentity, PeerConfig, PeerName, PrefixOwner, Rib,
    RibOptions, RouterId, SessionInfo, SpeakerConfig, UpdateMessage, decode_message,
    encode_announce, encode_withdraw,
};
use caracal_model::{Family, Prefix};

use crate::routes::{AttributeSets, DUT, DUT_AS, NEIGHBOURS, SENDER_AS, Universe};
use crate::wire::HEADER;

/// A path and the unit in which its work is counted.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Its name on the command line and in the record.
    pub name: &'static str,
    /// What one unit of work is.
    pub unit: &'static str,
    run: fn(usize) -> Result<()>,
}

/// All that are counted.
pub const PATHS: [Path; 5] = [
    Path {
        name: "decode",
        unit: "route decoded ten times, from UPDATEs of 17 routes",
        run: decode,
    },
    Path {
        name: "load",
        unit: "route decoded, stored, decided, exported to one external peer and encoded",
        run: |routes| load(routes).map(|_| ()),
    },
    Path {
        name: "withdraw",
        unit: "the same, then withdrawn from the table and from the peer",
        run: withdraw,
    },
    Path {
        name: "reflect-10",
        unit: "route stored and packed once for 10 reflector clients",
        run: |routes| reflect(10, routes),
    },
    Path {
        name: "reflect-100",
        unit: "route stored and packed once for 100 reflector clients",
        run: |routes| reflect(100, routes),
    },
];

/// The same with the origin check, every prefix having an owner: what it costs is the difference to
/// the path beside it.
pub const CHECKED: [(Path, &str); 3] = [
    (
        Path {
            name: "load-checked",
            unit: "route loaded, and found to come from its owner",
            run: |routes| load_into(checked_table(2, false, ALL), routes).map(|_| ()),
        },
        "load",
    ),
    (
        Path {
            name: "load-elsewhere",
            unit: "route loaded, and found not to lie in a pool",
            run: |routes| load_into(checked_table(2, false, POOL), routes).map(|_| ()),
        },
        "load",
    ),
    (
        Path {
            name: "reflect-100-checked",
            unit: "route reflected to 100 clients, and found to come from its owner",
            run: |routes| reflect_by(checked_table(100, true, ALL), 100, routes),
        },
        "reflect-100",
    ),
];

/// The path of this name.
pub fn find(name: &str) -> Result<Path> {
    let checked = CHECKED.iter().map(|(path, _)| path);
    match PATHS.iter().chain(checked).find(|path| path.name == name) {
        Some(path) => Ok(*path),
        None => bail!("there is no hot path {name}"),
    }
}

impl Path {
    /// Does so many units of work.
    pub fn run(self, units: usize) -> Result<()> {
        (self.run)(units)
    }
}

/// Blocks with an owner; more routes than that are not announced by a path that is checked.
const BLOCKS: usize = 20_000;

/// Speaker that announces all routes, and is their next hop.
const SENDER: Ipv4Addr = Ipv4Addr::from_bits(NEIGHBOURS.to_bits() + 1);

fn format(internal: bool) -> MessageFormat {
    MessageFormat {
        four_octet_as: true,
        internal,
        ..MessageFormat::default()
    }
}

/// Messages of an external sender, as octets.
fn announcements(routes: usize) -> Vec<u8> {
    let universe = Universe::internet(routes);
    AttributeSets::of(&universe).announcements(&universe, SENDER_AS, SENDER)
}

/// The UPDATEs in it.
fn decoded(mut octets: &[u8]) -> Result<Vec<UpdateMessage>> {
    let mut found = Vec::new();
    while let Some(len) = octets.get(16..18) {
        let len = usize::from(u16::from_be_bytes([len[0], len[1]])).max(HEADER);
        let (message, rest) = octets.split_at(len);
        match decode_message(message, &format(false))? {
            Message::Update(decoded) => found.extend(decoded.into_updates()),
            other => bail!("{:?} among UPDATEs", other.kind()),
        }
        octets = rest;
    }
    Ok(found)
}

fn updates(routes: usize) -> Result<Vec<UpdateMessage>> {
    decoded(&announcements(routes))
}

fn decode(routes: usize) -> Result<()> {
    let octets = announcements(routes);
    for _ in 0..10 {
        let updates = decoded(&octets)?;
        if updates.is_empty() {
            bail!("nothing was decoded");
        }
    }
    Ok(())
}

fn name(peer: usize) -> PeerName {
    PeerName::from(peer.to_string())
}

/// A table with so many established peers.
fn table(peers: usize, internal: bool) -> (Rib, Instant) {
    table_with(peers, internal, OriginUpdate::default())
}

/// A range with everything in it.
const ALL: (Ipv4Addr, u8) = (Ipv4Addr::UNSPECIFIED, 0);
/// A pool of a usual cluster.
const POOL: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 244, 0, 0), 16);

/// The same with the origin check in a range: each prefix is a block of the one who announces
/// everything.
fn checked_table(peers: usize, internal: bool, range: (Ipv4Addr, u8)) -> (Rib, Instant) {
    let owner = "the one".to_owned();
    let sender = OwnerIdentity {
        addresses: [IpAddr::V4(SENDER)].into(),
        router_ids: BTreeSet::new(),
        relays: false,
        asn: None,
    };
    let rules = OriginRules {
        mode: OriginMode::Enforce,
        ranges: [(
            Prefix::v4(range.0, range.1),
            OriginRange::Owned { shortest: 8 },
        )]
        .into(),
        over_machines: BTreeSet::new(),
    };
    // As many whatever is announced, so that what it costs to learn of them falls out of a
    // comparison of two sizes.
    let blocks = Universe::internet(BLOCKS).nets.into_iter();
    let blocks = blocks.map(|net| Prefix::v4(net.bits.into(), net.len));
    let owned = blocks.map(|block| (block, PrefixOwner::Named(owner.clone()), true));
    let origins = OriginUpdate {
        rules: Some(rules),
        identities: vec![(owner.clone(), Some(sender))],
        ownership: owned.collect(),
        stale: Some(false),
    };
    table_with(peers, internal, origins)
}

fn table_with(peers: usize, internal: bool, origins: OriginUpdate) -> (Rib, Instant) {
    let mut config = SpeakerConfig {
        local_as: Asn(DUT_AS),
        router_id: RouterId(DUT),
        listen: None,
        peers: BTreeMap::new(),
        originate: Originations::default(),
        filters: BTreeMap::new(),
        stations: BTreeMap::new(),
    };
    let address = |peer: usize| Ipv4Addr::from(u32::from(DUT) + 1 + peer as u32);
    for peer in 0..peers {
        let asn = if internal {
            DUT_AS
        } else {
            65001 + peer as u32
        };
        let mut configured = PeerConfig::new(IpAddr::V4(address(peer)), Asn(asn));
        configured.client_of = internal.then_some(ClusterId(DUT));
        config.peers.insert(name(peer), configured);
    }
    let now = Instant::now();
    let options = RibOptions {
        origins,
        ..RibOptions::default()
    };
    let (mut rib, _) = Rib::new(now, &config, options);
    for peer in 0..peers {
        let session = SessionInfo {
            families: vec![Family::Ipv4],
            router_id: RouterId(address(peer)),
            local_address: IpAddr::V4(DUT),
            remote_address: IpAddr::V4(address(peer)),
            graceful_restart: None,
            options: caracal_bgp::SessionOptions::default(),
            capabilities: Vec::new(),
        };
        rib.peer_up(now, &name(peer), session);
    }
    // Nothing is announced before all have told what they had.
    for peer in 0..peers {
        rib.receive(now, &name(peer), UpdateMessage::end_of_rib(Family::Ipv4));
    }
    rib.decide(now);
    (rib, now)
}

/// Decides and packs what waits; the octets that all members of the update groups get.
fn decide_and_pack(rib: &mut Rib, now: Instant, internal: bool, out: &mut BytesMut) -> Result<()> {
    for outbound in rib.decide(now).out {
        let Outbound::Group(update) = outbound else {
            continue;
        };
        for bucket in update.pack().buckets {
            match bucket.common_update() {
                MemberUpdate::Announce(attrs) => encode_announce(
                    Family::Ipv4,
                    attrs,
                    &bucket.prefixes,
                    &format(internal),
                    out,
                )?,
                MemberUpdate::Withdraw => {
                    encode_withdraw(Family::Ipv4, &bucket.prefixes, &format(internal), out);
                }
                MemberUpdate::Nothing => {}
            }
        }
    }
    Ok(())
}

fn load(routes: usize) -> Result<(Rib, Vec<UpdateMessage>)> {
    load_into(table(2, false), routes)
}

fn load_into((mut rib, now): (Rib, Instant), routes: usize) -> Result<(Rib, Vec<UpdateMessage>)> {
    let updates = updates(routes)?;
    let mut out = BytesMut::new();
    for some in updates.chunks(16) {
        for update in some {
            rib.receive(now, &name(0), update.clone());
        }
        decide_and_pack(&mut rib, now, false, &mut out)?;
    }
    if out.is_empty() {
        bail!("nothing was announced");
    }
    Ok((rib, updates))
}

fn withdraw(routes: usize) -> Result<()> {
    let (mut rib, updates) = load(routes)?;
    let now = Instant::now();
    let mut out = BytesMut::new();
    for update in updates {
        let gone = UpdateMessage {
            withdrawn: update.announced,
            ..UpdateMessage::default()
        };
        rib.receive(now, &name(0), gone);
        decide_and_pack(&mut rib, now, false, &mut out)?;
    }
    if out.is_empty() {
        bail!("nothing was withdrawn");
    }
    Ok(())
}

fn reflect(clients: usize, routes: usize) -> Result<()> {
    reflect_by(table(clients, true), clients, routes)
}

fn reflect_by((mut rib, now): (Rib, Instant), clients: usize, routes: usize) -> Result<()> {
    let mut out = BytesMut::new();
    for (number, mut update) in updates(routes)?.into_iter().enumerate() {
        if let Some(attrs) = &mut update.attrs {
            attrs.local_pref = Some(100);
        }
        rib.receive(now, &name(number % clients), update);
        decide_and_pack(&mut rib, now, true, &mut out)?;
    }
    if out.is_empty() {
        bail!("nothing was reflected");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_path_does_its_work() {
        let checked = CHECKED.into_iter().map(|(path, _)| path);
        for path in PATHS.into_iter().chain(checked) {
            find(path.name).unwrap().run(500).unwrap();
        }
        assert!(find("nonsense").is_err());
    }
}
