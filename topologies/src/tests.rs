#![allow(clippy::unwrap_used)]
//! Plans of whole clusters, written as the resource files that a user would write.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use caracal_bgp::{
    Asn, CALICO_LOCAL_PREF, FilterAction, FilterCondition, FilterVerdict, NextHopMode, PeerConfig,
    PeerKind, PeerName,
};
use caracal_model::{Family, Prefix};
use proptest::prelude::*;

use super::*;
use crate::resources::{assign_block, resources_from_yaml};

mod among_pods;
mod cluster;
mod filter;
mod order;
mod peering;
mod reflection;
mod services;
mod transition;
