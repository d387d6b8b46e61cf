#![allow(clippy::unwrap_used)]
//! Text and back, and what the real BIRD says of it.

use caracal_bgp::{Asn, Password, PeerConfig, PeerName, RouterId, SpeakerConfig};

use super::*;

mod generate;
mod in_the_wild;
mod parsing;
mod refusals;
mod rendering;
mod router_id;

/// A configuration with nothing in it.
fn empty() -> SpeakerConfig {
    SpeakerConfig {
        local_as: Asn(64512),
        router_id: RouterId([10, 0, 0, 1].into()),
        listen: None,
        peers: std::collections::BTreeMap::new(),
        originate: caracal_bgp::Originations::default(),
        filters: std::collections::BTreeMap::new(),
        stations: std::collections::BTreeMap::new(),
    }
}

fn with_passwords() -> Options {
    Options {
        show_passwords: true,
        ..Options::default()
    }
}
