//! Monitoring stations (RFC 7854): BIRD's `protocol bmp`, and the `#:` line that is rendered in its
//! place, since many a BIRD is built without that protocol and would refuse the file.

use std::time::Duration;

use caracal_bgp::Station;
use nom::Parser;
use nom::branch::alt;
use nom::combinator::{cut, opt};
use nom::sequence::{delimited, preceded};

use super::lexer::switch;
use super::lexer::{
    Located, ParseFault, Res, block, directive, end_of_line, ip_address, json_string, one_of_words,
    skip, string, symbol, token, u16_number, u32_number,
};

/// A station with its name and the text from which on it was read.
pub(super) type StationStatement<'a> = Located<'a, (String, Station)>;

/// Octets of BIRD's unit of `tx buffer limit`.
const MEGABYTE: usize = 1 << 20;

enum StationOption {
    Place(std::net::IpAddr, u16),
    PrePolicy(bool),
    PostPolicy(bool),
    SystemName(String),
    SystemDescription(String),
    Buffer(u32),
    Statistics(Option<u32>),
}

/// After `protocol bmp`: a name and a block.
pub(super) fn station_block(s: &str) -> Res<'_, StationStatement<'_>> {
    let (rest, name) = opt(symbol).parse(s)?;
    let at = name.map_or_else(|| skip(s), |name| name.at);
    let name = name.map_or("bmp1", |name| name.value).to_owned();
    let (rest, options) = block(station_option)(rest)?;
    let mut address = None;
    let mut station = Station {
        pre_policy: false,
        ..Station::new(std::net::Ipv4Addr::UNSPECIFIED.into(), 0)
    };
    for option in options {
        match option.value {
            StationOption::Place(ip, port) => address = Some((ip, port)),
            StationOption::PrePolicy(on) => station.pre_policy = on,
            StationOption::PostPolicy(on) => station.post_policy = on,
            StationOption::SystemName(text) => station.system_name = Some(text),
            StationOption::SystemDescription(text) => station.system_description = Some(text),
            StationOption::Buffer(megabytes) => station.buffer = octets(megabytes),
            StationOption::Statistics(every) => station.statistics = every.map(seconds),
        }
    }
    let Some((address, port)) = address else {
        let what = "a station with a line \"station address ip ADDRESS port PORT;\"";
        return Err(nom::Err::Failure(ParseFault::missing(at, what)));
    };
    (station.address, station.port) = (address, port);
    let value = (name, station);
    Ok((rest, Located { at, value }))
}

fn octets(megabytes: u32) -> usize {
    usize::try_from(megabytes)
        .unwrap_or(usize::MAX)
        .saturating_mul(MEGABYTE)
}

fn seconds(count: u32) -> Duration {
    Duration::from_secs(count.into())
}

fn address_and_port(s: &str) -> Res<'_, (std::net::IpAddr, u16)> {
    let port = preceded(token("port"), cut(u16_number));
    (ip_address, port).parse(s)
}

fn station_option(s: &str) -> Res<'_, StationOption> {
    let words = ["station", "monitoring", "system", "tx", "#:"];
    let (rest, word) = one_of_words(&words, s)?;
    let option = match word {
        "station" => preceded((token("address"), token("ip")), address_and_port)
            .map(|(address, port)| StationOption::Place(address, port))
            .parse(rest)?,
        "monitoring" => monitoring(rest)?,
        "system" => {
            let (rest, word) = one_of_words(&["name", "description"], rest)?;
            let (rest, text) = string(rest)?;
            let text = text.to_owned();
            let option = if word == "name" {
                StationOption::SystemName(text)
            } else {
                StationOption::SystemDescription(text)
            };
            (rest, option)
        }
        "tx" => preceded((token("buffer"), token("limit")), u32_number)
            .map(StationOption::Buffer)
            .parse(rest)?,
        // The directive is read again as a whole line.
        _ => return statistics(s),
    };
    let (rest, option) = option;
    token(";").parse(rest).map(|(rest, _)| (rest, option))
}

/// After `monitoring`: `rib in pre_policy [on|off]`.
fn monitoring(s: &str) -> Res<'_, StationOption> {
    let view = |s| one_of_words(&["pre_policy", "post_policy"], s);
    let (rest, view) = preceded((token("rib"), token("in")), view).parse(s)?;
    let (rest, on) = switch(rest)?;
    let option = match view {
        "pre_policy" => StationOption::PrePolicy(on),
        _ => StationOption::PostPolicy(on),
    };
    Ok((rest, option))
}

/// `#: statistics every SECONDS`, `#: statistics off`.
fn statistics(s: &str) -> Res<'_, StationOption> {
    let (rest, line) = directive(s)?;
    let every = preceded(token("every"), u32_number).map(Some);
    let every = alt((every, token("off").map(|_| None)));
    let (line, every) = preceded(token("statistics"), every).parse(line)?;
    end_of_line(line)?;
    Ok((rest, StationOption::Statistics(every)))
}

/// Text behind `#: bmp`: `"NAME" station ADDRESS port PORT [pre_policy] [post_policy]
/// [statistics SECONDS] buffer OCTETS [name "TEXT"] [description "TEXT"]`.
pub(super) fn station_line(s: &str) -> Res<'_, StationStatement<'_>> {
    let at = skip(s);
    let named = delimited(token("bmp"), json_string, token("station"));
    let (rest, (name, (address, port))) = (named, address_and_port).parse(at)?;
    let flag = |word: &'static str| opt(token(word)).map(|found| found.is_some());
    let statistics = opt(preceded(token("statistics"), u32_number));
    let buffer = preceded(token("buffer"), u32_number);
    let text = |word: &'static str| opt(preceded(token(word), json_string));
    let (rest, (pre_policy, post_policy, statistics, buffer)) =
        (flag("pre_policy"), flag("post_policy"), statistics, buffer).parse(rest)?;
    let (rest, (system_name, system_description)) =
        (text("name"), text("description")).parse(rest)?;
    let station = Station {
        address,
        port,
        pre_policy,
        post_policy,
        statistics: statistics.map(seconds),
        buffer: usize::try_from(buffer).unwrap_or(usize::MAX),
        system_name,
        system_description,
    };
    let value = (name, station);
    Ok((rest, Located { at, value }))
}
