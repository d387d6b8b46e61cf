//! Answers that only the speaker is needed for: the same words from a node and from a standalone
//! speaker.

use std::net::SocketAddr;
use std::time::SystemTime;

use caracal_agent::Learned;
use caracal_bgp::{
    AdvertisedRoute, LearnedRoute, OriginMode, PeerCommand, PeerCommandError, PeerName, Progress,
    RouteInfo, RouteQuery, RouteReader, RouteTable, SpeakerHandle, SpeakerStatus,
};
use caracal_model::{
    BfdStatusJson, InsertEach, OriginStatusJson, PastErrorJson, PeerStatusJson, Prefix,
    StationStatusJson, WorkStatus,
};
use serde_json::Value;

use crate::admin::{Answered, OrderOutcome, PeerOrder, RouteFilter};
use crate::exit::{ExitError, NOT_FOUND};

/// Many routes, a line of JSON each.
pub(crate) struct Rows {
    reader: RouteReader,
    advertised: bool,
    silent: bool,
    count: u64,
}

impl Rows {
    async fn open(
        speaker: &SpeakerHandle,
        table: RouteTable,
        filter: RouteFilter,
    ) -> Result<Answered, String> {
        if filter.longer && filter.prefix.is_none() {
            return Err("longer prefixes than which? name a PREFIX".to_owned());
        }
        let from = match filter.peer {
            Some(peer) => match find(speaker, &peer).await? {
                Some(name) => Some(name),
                None => return Ok(without(&peer)),
            },
            None => None,
        };
        let advertised = matches!(table, RouteTable::Advertised(_));
        let query = RouteQuery {
            table,
            prefix: filter.prefix,
            longer: filter.longer,
            from,
            best: filter.best,
        };
        let reader = speaker.read(query).await.map_err(text)?;
        let mut reader = reader.ok_or("the peer is no longer configured")?;
        if let Some(after) = &filter.after {
            reader.skip_past(after);
        }
        Ok(Answered::Rows(Box::new(Self {
            reader,
            advertised,
            silent: filter.count,
            count: 0,
        })))
    }

    /// The next lines; `None`: that was all.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>, String> {
        let Some(routes) = self.reader.next().await.map_err(text)? else {
            return Ok(None);
        };
        self.count += routes.len() as u64;
        let mut lines = Vec::new();
        if self.silent {
            return Ok(Some(lines));
        }
        for route in routes {
            let written = if self.advertised {
                serde_json::to_writer(&mut lines, &AdvertisedRoute::from(route))
            } else {
                serde_json::to_writer(&mut lines, &RouteInfo::from(route))
            };
            written.map_err(text)?;
            lines.push(b'\n');
        }
        Ok(Some(lines))
    }

    /// How many there were until now.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }
}

/// `caracal bgp routes`.
pub(crate) async fn all(speaker: &SpeakerHandle, filter: RouteFilter) -> Result<Answered, String> {
    Rows::open(speaker, RouteTable::Routes, filter).await
}

/// `caracal bgp received PEER`.
pub(crate) async fn received(
    speaker: &SpeakerHandle,
    peer: &str,
    filter: RouteFilter,
) -> Result<Answered, String> {
    match find(speaker, peer).await? {
        Some(name) => Rows::open(speaker, RouteTable::Received(name), filter).await,
        None => Ok(without(peer)),
    }
}

/// `caracal bgp advertised PEER`.
pub(crate) async fn advertised(
    speaker: &SpeakerHandle,
    peer: &str,
    filter: RouteFilter,
) -> Result<Answered, String> {
    match find(speaker, peer).await? {
        Some(name) => Rows::open(speaker, RouteTable::Advertised(name), filter).await,
        None => Ok(without(peer)),
    }
}

/// `caracal bgp explain PREFIX`.
pub(crate) async fn explain(speaker: &SpeakerHandle, prefix: Prefix) -> Result<Value, String> {
    to_value(&speaker.explain(prefix).await.map_err(text)?)
}

/// `caracal bgp refresh PEER`.
pub(crate) async fn refresh(speaker: &SpeakerHandle, peer: &str) -> Result<Answered, String> {
    let Some(name) = find(speaker, peer).await? else {
        return Ok(without(peer));
    };
    if speaker.refresh(name).await.map_err(text)? {
        return Ok(Value::Null.into());
    }
    Err(format!("peer {peer} has no session"))
}

/// `caracal bgp peer PEER`; null when there is no such peer.
pub(crate) async fn peer(speaker: &SpeakerHandle, peer: &str) -> Result<Value, String> {
    match find(speaker, peer).await? {
        Some(name) => to_value(&speaker.peer(name).await.map_err(text)?),
        None => Ok(Value::Null),
    }
}

/// `caracal bgp disable`, `enable` and `reset`.
pub(crate) async fn operate(
    speaker: &SpeakerHandle,
    peer: &str,
    order: PeerOrder,
) -> Result<Value, String> {
    let Some(name) = find(speaker, peer).await? else {
        return to_value(&OrderOutcome::NoPeer(no_peer(peer)));
    };
    let order = match order {
        PeerOrder::Disable { text } => PeerCommand::Disable(text),
        PeerOrder::Enable => PeerCommand::Enable,
        PeerOrder::Reset { text } => PeerCommand::Reset(text),
        PeerOrder::SoftIn => PeerCommand::SoftIn,
        PeerOrder::SoftOut => PeerCommand::SoftOut,
    };
    let outcome = match speaker.operate(name, order).await.map_err(text)? {
        Ok(done) => OrderOutcome::Done(done),
        Err(PeerCommandError::NoPeer) => OrderOutcome::NoPeer(no_peer(peer)),
        Err(refused) => OrderOutcome::Refused(format!("peer {peer}: {refused}")),
    };
    to_value(&outcome)
}

/// The peers, for `caracal bgp peers`.
pub(crate) fn peers(peers: Vec<caracal_bgp::PeerStatus>) -> Vec<PeerStatusJson> {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    peers
        .into_iter()
        .map(|peer| peer_status(peer, now))
        .collect()
}

fn peer_status(peer: caracal_bgp::PeerStatus, now: u64) -> PeerStatusJson {
    PeerStatusJson {
        name: peer.name.to_string(),
        // The speaker does not know it.
        bgp_peer: None,
        address: Some(peer.address),
        asn: peer.remote_as.0,
        kind: peer.kind,
        state: peer.state.to_string(),
        since_seconds: now.saturating_sub(peer.since),
        reason: peer.reason,
        down_seconds: peer.down_seconds,
        disabled: peer.disabled,
        last_error: peer.last_error.map(|error| PastErrorJson {
            age_seconds: now.saturating_sub(error.at),
            text: error.text,
        }),
        errors: peer
            .errors
            .into_iter()
            .map(|(kind, count)| (kind.json_name(), count))
            .insert_each(),
        warning: peer.warning,
        received: peer.routes.received,
        accepted: peer.routes.accepted,
        advertised: peer.routes.advertised,
        stale: peer.routes.stale,
        bfd: peer.bfd.map(|seen| BfdStatusJson {
            state: seen.state,
            downs: seen.downs,
            diagnostic: seen.diagnostic,
        }),
    }
}

/// A best route as the agent wants to see it.
pub(crate) fn learned(route: LearnedRoute) -> Learned {
    Learned {
        next_hops: route.next_hops,
        gateways: route.gateways,
        internal: route.internal,
        stale: route.stale,
        preferred_source: route.preferred_source,
    }
}

/// The monitoring stations, for `caracal status`.
pub(crate) fn stations(stations: Vec<caracal_bgp::StationStatus>) -> Vec<StationStatusJson> {
    let status = |station: caracal_bgp::StationStatus| StationStatusJson {
        name: station.name,
        address: SocketAddr::new(station.address, station.port).to_string(),
        state: match (station.connected, station.table_sent) {
            (true, true) => "Connected",
            (true, false) => "Table",
            (false, _) => "Down",
        }
        .to_owned(),
        waiting: station.waiting,
        connections: station.connections,
        reason: station.reason,
    };
    stations.into_iter().map(status).collect()
}

/// Long work on the table, for `caracal status` and for who waits.
pub(crate) fn work(work: Vec<Progress>) -> Vec<WorkStatus> {
    let status = |progress: Progress| WorkStatus {
        what: progress.what,
        peer: progress.peer.map(|peer| peer.to_string()),
        done: progress.done,
        total: progress.total,
    };
    work.into_iter().map(status).collect()
}

/// How far the first of it is.
pub(crate) async fn progress(speaker: &SpeakerHandle) -> Option<String> {
    let status = speaker.status().await.ok()?;
    let first = work(status.work).into_iter().next()?;
    Some(first.to_string())
}

/// An error as the answer.
pub(crate) fn text(error: impl std::error::Error) -> String {
    error.to_string()
}

/// A value as the answer.
pub(crate) fn to_value(value: &impl serde::Serialize) -> Result<Value, String> {
    serde_json::to_value(value).map_err(text)
}

fn no_peer(peer: &str) -> String {
    format!("no peer {peer}; `caracal bgp peers` lists names and addresses")
}

fn without(peer: &str) -> Answered {
    Answered::Refused(ExitError::new(NOT_FOUND, no_peer(peer)))
}

/// A peer by name or address.
async fn find(speaker: &SpeakerHandle, wanted: &str) -> Result<Option<PeerName>, String> {
    let status = speaker.status().await.map_err(text)?;
    let found = status
        .peers
        .into_iter()
        .find(|p| p.name.as_str() == wanted || p.address.to_string() == wanted);
    Ok(found.map(|p| p.name))
}

/// The origin check for `caracal status`.
pub(crate) fn origin(speaker: &SpeakerStatus) -> OriginStatusJson {
    let screened = speaker.screened;
    let mode = match speaker.origin.mode {
        OriginMode::Off => "off",
        OriginMode::Log => "log",
        OriginMode::Enforce => "enforce",
    };
    let last = speaker.origin.last_violation.as_ref();
    OriginStatusJson {
        mode: mode.to_owned(),
        never_routed: screened.never_routed,
        not_owner: screened.not_owner,
        over_nodes: screened.over_nodes,
        waiting: screened.waiting,
        violations: screened.violations,
        last_violation: last.map(|(prefix, peer)| format!("{prefix} from {peer}")),
    }
}
