//! `caracal bgp peer`, `disable`, `enable` and `reset`: one peer in full, and orders about it.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use caracal_bgp::{Endpoint, MessageCounts, NegotiatedTime, PastError, PeerDetail};
use caracal_model::Timestamp;
use serde_json::Value;

use super::whom::Whom;
use super::{duration, run_dir};
use crate::admin::{OrderOutcome, PeerOrder, Request, ask};
use crate::args::Output;
use crate::exit::{NOT_FOUND, REFUSED};

pub(super) fn show(whom: &Whom, peer: &str, output: Output) -> anyhow::Result<ExitCode> {
    let request = Request::Peer {
        peer: peer.to_owned(),
    };
    let value = whom.ask(&request)?;
    if value == Value::Null {
        eprintln!("no peer {peer}; `caracal bgp peers` lists names and addresses");
        return Ok(ExitCode::from(NOT_FOUND));
    }
    if output.is_data() {
        output.print(&value);
    } else {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let bgp_peer = value["bgpPeer"].as_str().map(str::to_owned);
        let detail: PeerDetail = serde_json::from_value(value)?;
        print!("{}", head(&detail, bgp_peer.as_deref()));
        print!("{}", text(&detail, now.as_secs(), output));
    }
    Ok(ExitCode::SUCCESS)
}

/// Orders something.
pub(super) fn order(peer: String, order: PeerOrder) -> anyhow::Result<ExitCode> {
    let value = ask(&run_dir(), &Request::Operate { peer, order })?;
    Ok(match serde_json::from_value(value)? {
        OrderOutcome::Done(sentence) => {
            println!("{sentence}");
            ExitCode::SUCCESS
        }
        OrderOutcome::Refused(reason) => {
            eprintln!("{reason}");
            ExitCode::from(REFUSED)
        }
        OrderOutcome::NoPeer(reason) => {
            eprintln!("{reason}");
            ExitCode::from(NOT_FOUND)
        }
    })
}

/// `2026-01-05T10:12:00Z (3m04s ago)`.
fn when(at: u64, now: u64) -> String {
    let time = Timestamp::from_nanos(at.saturating_mul(1_000_000_000));
    format!("{time} ({} ago)", duration(now.saturating_sub(at)))
}

fn past(error: Option<&PastError>, now: u64) -> String {
    error.map_or_else(
        || "none".to_owned(),
        |error| format!("{}: {}", when(error.at, now), error.text),
    )
}

fn end(end: &Endpoint) -> String {
    let address = end
        .address
        .map_or_else(|| "any".to_owned(), |a| a.to_string());
    let port = end.port.map(|port| format!(" port {port}"));
    let id = end.router_id.map(|id| format!(", router id {id}"));
    let asn = end.asn.0;
    format!(
        "{address}{}, AS {asn}{}",
        port.unwrap_or_default(),
        id.unwrap_or_default()
    )
}

fn agreed(time: NegotiatedTime) -> String {
    let configured = format!("{} s configured", time.configured);
    match time.agreed {
        Some(0) => format!("none agreed, {configured}"),
        Some(agreed) => format!("{agreed} s agreed, {configured}"),
        None => configured,
    }
}

fn list(items: &[String]) -> String {
    match items {
        [] => "none".to_owned(),
        items => items.join("; "),
    }
}

fn ttl(peer: &PeerDetail) -> String {
    let ttl = peer
        .ttl
        .map_or_else(|| "system default".to_owned(), |ttl| ttl.to_string());
    match peer.ttl_security_hops {
        Some(hops) => format!("{ttl}, packets over more than {hops} hops are dropped"),
        None => ttl,
    }
}

fn bfd(peer: &PeerDetail) -> String {
    match &peer.bfd {
        None => "off".to_owned(),
        Some(seen) => {
            let diagnostic = seen.diagnostic.as_ref().map(|d| format!(": {d}"));
            let diagnostic = diagnostic.unwrap_or_default();
            format!("{}, went down {} times{diagnostic}", seen.state, seen.downs)
        }
    }
}

fn state(peer: &PeerDetail, now: u64) -> String {
    let mut text = format!("{} since {}", peer.state, when(peer.since, now));
    if let Some(down) = peer.down_seconds {
        let _ = write!(text, "; down for {}", duration(down));
    }
    if let Some(reason) = &peer.reason {
        let _ = write!(text, ": {reason}");
    }
    if peer.stale {
        text.push_str("; its routes are kept");
    }
    text
}

/// The line that says which peer it is.
fn head(peer: &PeerDetail, bgp_peer: Option<&str>) -> String {
    let kind = Some(peer.kind.clone()).filter(|kind| !kind.is_empty());
    let bgp_peer = bgp_peer.map(|name| format!("BGPPeer {name}"));
    let words: Vec<String> = kind.into_iter().chain(bgp_peer).collect();
    match words.is_empty() {
        true => format!("Peer {}\n", peer.name),
        false => format!("Peer {} ({})\n", peer.name, words.join(", ")),
    }
}

/// The peer, for people.
fn text(peer: &PeerDetail, now: u64, output: Output) -> String {
    let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    let lines: [(&str, String); 20] = [
        ("State", state(peer, now)),
        ("Disabled", yes(peer.disabled)),
        ("Times up", peer.established_count.to_string()),
        ("Local", end(&peer.local)),
        ("Remote", end(&peer.remote)),
        ("Waits for the peer to dial", yes(peer.passive)),
        ("Hold time", agreed(peer.hold_time)),
        ("Keepalive", agreed(peer.keepalive_time)),
        ("TTL", ttl(peer)),
        ("TCP MD5", yes(peer.md5)),
        ("BFD", bfd(peer)),
        ("Capabilities sent", list(&peer.capabilities.sent)),
        ("Capabilities received", list(&peer.capabilities.received)),
        ("In use", list(&peer.capabilities.agreed)),
        ("Prefixes advertised", peer.advertised.to_string()),
        ("Import filters", list(&peer.import_filters)),
        ("Export filters", list(&peer.export_filters)),
        ("Last error", past(peer.last_error.as_ref(), now)),
        (
            "Last NOTIFICATION sent",
            past(peer.last_notification_sent.as_ref(), now),
        ),
        (
            "Last NOTIFICATION received",
            past(peer.last_notification_received.as_ref(), now),
        ),
    ];
    let mut text = String::new();
    for (name, value) in lines {
        let _ = writeln!(text, "  {:<27} {value}", format!("{name}:"));
    }
    let _ = writeln!(text, "\n{}", families(peer, output));
    let _ = writeln!(text, "\n{}", messages(peer, output));
    if !peer.errors.is_empty() {
        let mut shown = output.table(&["ERRORS", "COUNT"]);
        for (kind, count) in &peer.errors {
            shown.add_row([kind.as_str().to_owned(), count.to_string()]);
        }
        let _ = writeln!(text, "\n{shown}");
    }
    text
}

fn families(peer: &PeerDetail, output: Output) -> comfy_table::Table {
    let mut shown = output.table(&[
        "FAMILY",
        "SESSION",
        "RECEIVED",
        "ACCEPTED",
        "ADVERTISED",
        "KEPT BACK",
        "LIMIT",
        "WARNING FROM",
        "IMPORT LIMIT",
        "EXPORT LIMIT",
    ]);
    for family in &peer.families {
        let number = |n: Option<u32>| n.map_or_else(|| "none".to_owned(), |n| n.to_string());
        shown.add_row([
            family.family.to_string(),
            if family.agreed { "yes" } else { "no" }.to_owned(),
            family.received.to_string(),
            family.accepted.to_string(),
            family
                .advertised
                .map_or_else(|| "-".to_owned(), |n| n.to_string()),
            family.kept_back.to_string(),
            number(family.limit),
            number(family.warning_from),
            number(family.import_limit),
            number(family.export_limit),
        ]);
    }
    shown
}

fn messages(peer: &PeerDetail, output: Output) -> comfy_table::Table {
    let mut shown = output.table(&[
        "MESSAGES",
        "OPEN",
        "UPDATE",
        "KEEPALIVE",
        "REFRESH",
        "NOTIFICATION",
        "TOTAL",
    ]);
    let mut row = |name: &str, counts: &MessageCounts| {
        let numbers = [
            counts.open,
            counts.update,
            counts.keepalive,
            counts.route_refresh,
            counts.notification,
            counts.total(),
        ];
        let numbers = numbers.iter().map(ToString::to_string);
        shown.add_row(std::iter::once(name.to_owned()).chain(numbers));
    };
    row("received", &peer.messages.received);
    row("sent", &peer.messages.sent);
    shown
}
