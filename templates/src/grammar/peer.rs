//! The options of a `protocol bgp` or `template bgp` block.

use std::net::{IpAddr, Ipv4Addr};

use caracal_bgp::NextHopMode;
use caracal_model::{Family, Prefix};
use nom::combinator::{cut, opt};
use nom::sequence::{delimited, preceded, terminated};
use nom::{Err, Parser};

use super::lexer::switch;
use super::lexer::{
    Located, Number, ParseFault, Res, block, directive, end_of_line, family, ip_address,
    ipv4_address, number, one_of_words, prefix, string, symbol, token, u8_number, u16_number,
    u32_number,
};
use super::options::{self, ChannelLine, Extra, LimitOption, PathOption};
use super::policy::name_line;

#[derive(Clone, Debug)]
pub(super) enum PeerOption<'a> {
    Name(String),
    Kind(&'a str),
    Local {
        address: Option<IpAddr>,
        asn: Number<'a>,
    },
    Neighbor {
        address: IpAddr,
        range: Option<Prefix>,
        port: Option<u16>,
        asn: Number<'a>,
    },
    /// `None` = direct; `Some(None)` = multihop without a limit.
    Reach(Option<Option<u8>>),
    TtlSecurity(bool),
    /// The exact TTL and TTL security.
    Ttl(Option<u8>, Option<u8>),
    HoldTime(u16),
    Disabled(bool),
    Passive(bool),
    Client(bool),
    ClusterId(Ipv4Addr),
    GracefulRestart(bool),
    RestartTime(u16),
    AllowOwnAs(u8),
    Password(&'a str),
    Channel(Channel<'a>),
    Extra(Extra),
    /// Something that concerns a BIRD daemon only.
    Ignored,
}

/// `ipv4 { … };`.
#[derive(Clone, Debug)]
pub(super) struct Channel<'a> {
    pub(super) family: Family,
    /// Filters as written; `None` = nothing.
    pub(super) import: Option<Vec<Call<'a>>>,
    /// The same for export.
    pub(super) export: Option<Vec<Call<'a>>>,
    pub(super) next_hop: NextHopMode,
    pub(super) own_next_hop: Option<IpAddr>,
    pub(super) extended_next_hop: bool,
    /// `import none;` or `export none;` was written.
    pub(super) none: bool,
    pub(super) paths: Vec<PathOption>,
    pub(super) limit: Vec<LimitOption>,
}

/// A call of a function: `NAME(true);`, or a filter by name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub(super) symbol: Located<'a, &'a str>,
    /// Known from the caller for a peer; unknown for a filter.
    pub(super) internal: Option<Located<'a, bool>>,
}

pub(super) fn peer_option(s: &str) -> Res<'_, PeerOption<'_>> {
    const WORDS: [&str; 23] = [
        "description",
        "disabled",
        "local",
        "neighbor",
        "strict",
        "direct",
        "multihop",
        "ttl",
        "hold",
        "passive",
        "rr",
        "graceful",
        "allow",
        "password",
        "long",
        "bfd",
        "ipv4",
        "ipv6",
        "connect",
        "error",
        "keepalive",
        "source",
        "#:",
    ];
    let (rest, word) = one_of_words(&WORDS, s)?;
    match word {
        "local" => local(rest),
        "neighbor" => neighbor(rest),
        "rr" => reflector(rest),
        "graceful" => graceful(rest),
        "ipv4" | "ipv6" => channel(s),
        "#:" => line(s),
        _ => terminated(|s| simple(word, s), token(";")).parse(rest),
    }
}

/// Options of a few words, without their semicolon.
fn simple<'a>(word: &str, s: &'a str) -> Res<'a, PeerOption<'a>> {
    match word {
        "description" => string.map(PeerOption::Kind).parse(s),
        "direct" => Ok((s, PeerOption::Reach(None))),
        "multihop" => opt(u8_number)
            .map(|hops| PeerOption::Reach(Some(hops)))
            .parse(s),
        "ttl" => preceded(token("security"), switch)
            .map(PeerOption::TtlSecurity)
            .parse(s),
        "hold" => preceded(token("time"), u16_number)
            .map(PeerOption::HoldTime)
            .parse(s),
        "disabled" => switch.map(PeerOption::Disabled).parse(s),
        "passive" => switch.map(PeerOption::Passive).parse(s),
        "allow" => preceded((token("local"), token("as")), opt(u8_number))
            .map(|count| PeerOption::AllowOwnAs(count.unwrap_or(1)))
            .parse(s),
        "password" => string.map(PeerOption::Password).parse(s),
        "long" => options::long_lived.map(PeerOption::Extra).parse(s),
        "bfd" => options::bfd.map(PeerOption::Extra).parse(s),
        "strict" => preceded(token("bind"), switch)
            .map(|_| PeerOption::Ignored)
            .parse(s),
        "source" => preceded(token("address"), ip_address)
            .map(|_| PeerOption::Ignored)
            .parse(s),
        "keepalive" => preceded(token("time"), u32_number)
            .map(|_| PeerOption::Ignored)
            .parse(s),
        "connect" => (one_of_two("delay", "retry"), token("time"), u32_number)
            .map(|_| PeerOption::Ignored)
            .parse(s),
        _ => {
            let wait = (
                token("wait"),
                token("time"),
                u32_number,
                token(","),
                u32_number,
            );
            wait.map(|_| PeerOption::Ignored).parse(s)
        }
    }
}

fn one_of_two<'a>(
    first: &'static str,
    second: &'static str,
) -> impl Fn(&'a str) -> Res<'a, &'static str> {
    move |s| one_of_words(&[first, second], s)
}

fn port(s: &str) -> Res<'_, Option<u16>> {
    opt(preceded(token("port"), cut(u16_number))).parse(s)
}

/// `[ADDRESS] [port PORT] as ASN;`. The port is the listening one, which `#: listen` says.
fn local(s: &str) -> Res<'_, PeerOption<'_>> {
    let asn = delimited(token("as"), number, token(";"));
    (opt(ip_address), port, asn)
        .map(|(address, _, asn)| PeerOption::Local { address, asn })
        .parse(s)
}

/// `ADDRESS [port PORT] as ASN;`, `range PREFIX [port PORT] as ASN;`.
fn neighbor(s: &str) -> Res<'_, PeerOption<'_>> {
    let (rest, range) = opt(preceded(token("range"), cut(prefix))).parse(s)?;
    let (rest, address) = match range {
        Some(range) => (rest, range.address()),
        None => ip_address(rest)?,
    };
    let asn = delimited(token("as"), number, token(";"));
    (port, asn)
        .map(|(port, asn)| PeerOption::Neighbor {
            address,
            range,
            port,
            asn,
        })
        .parse(rest)
}

/// `rr client;`, `rr cluster id ID;`.
fn reflector(s: &str) -> Res<'_, PeerOption<'_>> {
    let (rest, word) = one_of_words(&["client", "cluster"], s)?;
    if word == "client" {
        return terminated(switch, token(";"))
            .map(PeerOption::Client)
            .parse(rest);
    }
    delimited(token("id"), ipv4_address, token(";"))
        .map(PeerOption::ClusterId)
        .parse(rest)
}

/// `graceful restart on;`, `graceful restart aware;`, `graceful restart time SECONDS;`.
fn graceful(s: &str) -> Res<'_, PeerOption<'_>> {
    let (rest, _) = token("restart")(s)?;
    if let Ok((rest, _)) = token("time")(rest) {
        return terminated(u16_number, token(";"))
            .map(PeerOption::RestartTime)
            .parse(rest);
    }
    if let Ok((rest, _)) = token("aware")(rest) {
        return token(";")
            .map(|_| PeerOption::GracefulRestart(false))
            .parse(rest);
    }
    terminated(switch, token(";"))
        .map(PeerOption::GracefulRestart)
        .parse(rest)
}

/// `#: name "…"`, `#: ttl TTL security HOPS`, `#: policy required`, `#: password hidden`, `#: long
/// lived partial`.
fn line(s: &str) -> Res<'_, PeerOption<'_>> {
    let (rest, line) = directive(s)?;
    let (line, word) = one_of_words(&["name", "ttl", "policy", "password", "long"], line)?;
    match word {
        "policy" => {
            let (line, _) = token("required")(line)?;
            end_of_line(line)?;
            Ok((rest, PeerOption::Extra(Extra::RequirePolicy)))
        }
        "name" => name_line.map(PeerOption::Name).parse(s),
        "long" => {
            let (line, _) = (token("lived"), token("partial")).parse(line)?;
            end_of_line(line)?;
            Ok((rest, PeerOption::Extra(Extra::LongLivedPartial)))
        }
        "ttl" => {
            let (line, ttl) = octet_or_none(line)?;
            let (line, security) = preceded(token("security"), octet_or_none).parse(line)?;
            end_of_line(line)?;
            Ok((rest, PeerOption::Ttl(ttl, security)))
        }
        _ => Err(Err::Failure(ParseFault::new(
            line.trim_start(),
            "the password itself; this text was written without its passwords",
        ))),
    }
}

fn octet_or_none(s: &str) -> Res<'_, Option<u8>> {
    nom::branch::alt((token("none").map(|_| None), u8_number.map(Some))).parse(s)
}

/// One line of a channel.
enum ChannelOption<'a> {
    Import(Vec<Call<'a>>),
    Export(Vec<Call<'a>>),
    NextHop(NextHopMode),
    OwnNextHop(Located<'a, IpAddr>),
    ExtendedNextHop(bool),
    None,
    Paths(PathOption),
    Limit(LimitOption),
    Ignored,
}

fn channel(s: &str) -> Res<'_, PeerOption<'_>> {
    let (rest, family) = family(s)?;
    let mut channel = Channel {
        family,
        import: None,
        export: None,
        next_hop: NextHopMode::Auto,
        own_next_hop: None,
        extended_next_hop: false,
        none: false,
        paths: Vec::new(),
        limit: Vec::new(),
    };
    let (rest, options) = opt(block(channel_option)).parse(rest)?;
    for option in options.into_iter().flatten() {
        match option.value {
            ChannelOption::Import(calls) => channel.import = Some(calls),
            ChannelOption::Export(calls) => channel.export = Some(calls),
            ChannelOption::NextHop(mode) => channel.next_hop = mode,
            ChannelOption::OwnNextHop(own) => {
                if Family::of(own.value) != family {
                    return Err(Err::Failure(ParseFault::new(own.at, own_next_hop(family))));
                }
                channel.own_next_hop = Some(own.value);
            }
            ChannelOption::None => channel.none = true,
            ChannelOption::ExtendedNextHop(on) => channel.extended_next_hop = on,
            ChannelOption::Paths(option) => channel.paths.push(option),
            ChannelOption::Limit(option) => channel.limit.push(option),
            ChannelOption::Ignored => {}
        }
    }
    let (rest, _) = token(";")(rest)?;
    Ok((rest, PeerOption::Channel(channel)))
}

/// `next hop address` of a family has an address of the family.
const fn own_next_hop(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "an IPv4 address: this is the next hop of IPv4 routes",
        Family::Ipv6 => "an IPv6 address: this is the next hop of IPv6 routes",
    }
}

fn channel_option(s: &str) -> Res<'_, ChannelOption<'_>> {
    const WORDS: [&str; 8] = [
        "import", "export", "next", "gateway", "extended", "add", "receive", "#:",
    ];
    let (rest, word) = one_of_words(&WORDS, s)?;
    match word {
        "extended" => delimited((token("next"), token("hop")), switch, token(";"))
            .map(ChannelOption::ExtendedNextHop)
            .parse(rest),
        "add" => options::add_paths.map(ChannelOption::Paths).parse(rest),
        "receive" => options::receive_limit.map(ChannelOption::Limit).parse(rest),
        "#:" => options::channel_line
            .map(|line| match line {
                ChannelLine::Paths(option) => ChannelOption::Paths(option),
                ChannelLine::Limit(option) => ChannelOption::Limit(option),
            })
            .parse(s),
        "import" | "export" if token("none")(rest).is_ok() => (token("none"), token(";"))
            .map(|_| ChannelOption::None)
            .parse(rest),
        "import" => terminated(policy, token(";"))
            .map(ChannelOption::Import)
            .parse(rest),
        "export" => terminated(policy, token(";"))
            .map(ChannelOption::Export)
            .parse(rest),
        "gateway" => terminated(one_of_two("recursive", "direct"), token(";"))
            .map(|_| ChannelOption::Ignored)
            .parse(rest),
        _ => {
            let (rest, _) = token("hop")(rest)?;
            let (rest, word) = one_of_words(&["self", "keep", "address"], rest)?;
            if word == "address" {
                let at = super::lexer::skip(rest);
                let (rest, value) = terminated(cut(ip_address), token(";")).parse(rest)?;
                return Ok((rest, ChannelOption::OwnNextHop(Located { at, value })));
            }
            let mode = if word == "self" {
                NextHopMode::Own
            } else {
                NextHopMode::Keep
            };
            token(";").map(|_| ChannelOption::NextHop(mode)).parse(rest)
        }
    }
}

/// `all`, `filter NAME` or `filter { NAME(true); … accept; }`.
fn policy(s: &str) -> Res<'_, Vec<Call<'_>>> {
    let (rest, word) = one_of_words(&["all", "filter"], s)?;
    if word == "all" {
        return Ok((rest, Vec::new()));
    }
    if super::lexer::skip(rest).starts_with('{') {
        let (rest, lines) = block(policy_line)(rest)?;
        return Ok((rest, lines.into_iter().filter_map(|l| l.value).collect()));
    }
    let (rest, symbol) = symbol(rest)?;
    let call = Call {
        symbol,
        internal: None,
    };
    Ok((rest, vec![call]))
}

/// A call, the lines that keep a daemon's other routes out, or the final `accept;`.
fn policy_line(s: &str) -> Res<'_, Option<Call<'_>>> {
    if let Ok((rest, _)) = token("accept")(s) {
        return token(";").map(|_| None).parse(rest);
    }
    if let Ok((rest, _)) = (token("if"), token("source")).parse(s) {
        let gateways = (
            token("="),
            token("RTS_STATIC"),
            token("&&"),
            token("dest"),
            token("!="),
            token("RTD_BLACKHOLE"),
            token("then"),
            token("reject"),
            token(";"),
        );
        if let Ok((rest, _)) = gateways.map(|_| ()).parse(rest) {
            return Ok((rest, None));
        }
        let others = (
            token("!~"),
            token("["),
            token("RTS_BGP"),
            token(","),
            token("RTS_STATIC"),
            token("]"),
            token("then"),
            token("reject"),
            token(";"),
        );
        return others.map(|_| None).parse(rest);
    }
    let (rest, symbol) = symbol(s)?;
    let (rest, _) = token("(")(rest)?;
    let at = super::lexer::skip(rest);
    let (rest, word) = one_of_words(&["true", "false"], rest)?;
    let (rest, _) = (token(")"), token(";")).parse(rest)?;
    let internal = Some(Located {
        at,
        value: word == "true",
    });
    Ok((rest, Some(Call { symbol, internal })))
}
