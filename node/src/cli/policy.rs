//! `caracal policy`: the policies that this node enforces, and what becomes of a packet.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use clap::Subcommand;
use serde_json::Value;

use super::{run_dir, table};
use crate::admin::{AskPacket, Request, ask};
use crate::args::{Output, OutputArgs};
use crate::exit::NOT_FOUND;
use crate::node::answers::policy::{JudgedEndpoint, JudgedPacket};

/// `caracal policy COMMAND`.
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Show this node's endpoints with the policies that judge them, in their order.
    Show {
        /// Output format.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Say what becomes of a new connection between two addresses, and by which rule: `caracal
    /// policy explain 10.244.0.5 10.244.1.7:80/tcp`.
    Explain {
        /// Address that it comes from.
        #[arg(value_name = "FROM")]
        from: IpAddr,
        /// Where it goes after translation: `ADDRESS:PORT/tcp`, `/udp`, `/sctp`, or
        /// `ADDRESS/icmp`.
        #[arg(value_name = "TO", value_parser = destination)]
        to: (IpAddr, u16, u8),
        /// Output format.
        #[command(flatten)]
        output: OutputArgs,
    },
}

fn destination(text: &str) -> Result<(IpAddr, u16, u8), String> {
    let wanted = "expected ADDRESS:PORT/tcp, /udp or /sctp, or ADDRESS/icmp";
    let (place, protocol) = text.rsplit_once('/').ok_or(wanted)?;
    if protocol == "icmp" {
        let address: IpAddr = place.parse().map_err(|_| wanted)?;
        return Ok((address, 0, if address.is_ipv4() { 1 } else { 58 }));
    }
    let place: SocketAddr = place.parse().map_err(|_| wanted)?;
    let number = match protocol {
        "tcp" => 6,
        "udp" => 17,
        "sctp" => 132,
        _ => return Err(wanted.to_owned()),
    };
    Ok((place.ip(), place.port(), number))
}

pub(crate) fn run(command: PolicyCommand) -> anyhow::Result<ExitCode> {
    let (packet, output) = match command {
        PolicyCommand::Show { output } => (None, output.output),
        PolicyCommand::Explain { from, to, output } => {
            let (destination, port, protocol) = to;
            let packet = AskPacket {
                source: from,
                destination,
                protocol,
                port,
            };
            (Some(packet), output.output)
        }
    };
    let value = ask(&run_dir(), &Request::Policy { packet })?;
    let is_found = packet.is_none() || value.as_array().is_none_or(|rows| !rows.is_empty());
    if matches!(output, Output::Json | Output::Yaml) {
        output.print(&value);
    } else {
        print(packet, value)?;
    }
    Ok(match is_found {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(NOT_FOUND),
    })
}

fn print(packet: Option<AskPacket>, value: Value) -> anyhow::Result<()> {
    if let Some(reason) = value.as_str() {
        println!("no policy is enforced on this node: {reason}");
        return Ok(());
    }
    match packet {
        None => print_endpoints(value),
        Some(packet) => print_packet(&packet, value),
    }
}

fn print_endpoints(value: Value) -> anyhow::Result<()> {
    let endpoints: Vec<JudgedEndpoint> = serde_json::from_value(value)?;
    let mut shown = table(&["ENDPOINT", "INTERFACE", "IN FORCE", "INGRESS", "EGRESS"]);
    let list = |policies: Vec<String>| match policies.is_empty() {
        true => "profiles".to_owned(),
        false => policies.join(", "),
    };
    for row in endpoints {
        shown.add_row([
            row.endpoint,
            row.interface,
            if row.in_force { "yes" } else { "no" }.to_owned(),
            list(row.ingress),
            list(row.egress),
        ]);
    }
    println!("{shown}");
    Ok(())
}

fn print_packet(packet: &AskPacket, value: Value) -> anyhow::Result<()> {
    let judged: Vec<JudgedPacket> = serde_json::from_value(value)?;
    if judged.is_empty() {
        println!(
            "neither {} nor {} is an endpoint's: no policy judges",
            packet.source, packet.destination
        );
    }
    for row in judged {
        let verdict = if row.allowed { "allowed" } else { "dropped" };
        println!(
            "{} of {} on {}: {verdict} by {}",
            row.direction, row.endpoint, row.node, row.by
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_read() {
        let address = |text: &str| text.parse::<IpAddr>().ok();
        for (text, wanted) in [
            ("10.0.0.1:80/tcp", (address("10.0.0.1"), 80, 6)),
            ("[fd00::1]:53/udp", (address("fd00::1"), 53, 17)),
            ("fd00::1/icmp", (address("fd00::1"), 0, 58)),
        ] {
            let read = destination(text).map(|(a, port, number)| (Some(a), port, number));
            assert_eq!(read, Ok(wanted), "{text}");
        }
        for text in [
            "10.0.0.1",
            "10.0.0.1:80",
            "10.0.0.1:80/http",
            "x/icmp",
            "10.0.0.1/tcp",
        ] {
            assert!(destination(text).is_err(), "{text}");
        }
    }
}
