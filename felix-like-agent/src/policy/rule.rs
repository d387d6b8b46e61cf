//! Rules of the table, as data: their text is what `nft` reads.

use std::fmt;

use caracal_model::{Family, Prefix};

use crate::nft::SetName;

/// An end of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Source,
    Destination,
}

impl End {
    const fn address(self) -> &'static str {
        match self {
            Self::Source => "saddr",
            Self::Destination => "daddr",
        }
    }

    const fn port(self) -> &'static str {
        match self {
            Self::Source => "sport",
            Self::Destination => "dport",
        }
    }
}

/// What a rule asks. All of it has to be so; `not` turns one round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Match {
    Family(Family),
    Protocol {
        number: u8,
        not: bool,
    },
    Net {
        end: End,
        net: Prefix,
        not: bool,
    },
    /// The address is in a set.
    Set {
        end: End,
        family: Family,
        set: SetName,
        not: bool,
    },
    Ports {
        end: End,
        first: u16,
        last: u16,
        not: bool,
    },
    /// Address, protocol and port are in a set.
    Triple {
        end: End,
        family: Family,
        set: SetName,
        not: bool,
    },
    IcmpType {
        family: Family,
        number: u8,
        not: bool,
    },
    IcmpCode {
        family: Family,
        number: u8,
        not: bool,
    },
}

/// What becomes of a packet that a rule matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Accept,
    Drop,
    /// Dropped and counted: nothing allowed it.
    Refuse,
    Log,
    Goto(Box<str>),
    Jump(Box<str>),
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FilterRule {
    pub(super) matches: Vec<Match>,
    pub(super) action: Action,
}

impl From<Action> for FilterRule {
    /// A rule that matches everything.
    fn from(action: Action) -> Self {
        Self {
            matches: Vec::new(),
            action,
        }
    }
}

/// `ip` or `ip6`.
pub(super) const fn word(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "ip",
        Family::Ipv6 => "ip6",
    }
}

const fn icmp(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "icmp",
        Family::Ipv6 => "icmpv6",
    }
}

/// Number of the protocol ICMP of a family.
pub(super) const fn icmp_number(family: Family) -> u8 {
    match family {
        Family::Ipv4 => 1,
        Family::Ipv6 => 58,
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is = |not: &bool| if *not { "!= " } else { "" };
        match self {
            Self::Family(Family::Ipv4) => f.write_str("meta nfproto ipv4"),
            Self::Family(Family::Ipv6) => f.write_str("meta nfproto ipv6"),
            Self::Protocol { number, not } => write!(f, "meta l4proto {}{number}", is(not)),
            Self::Net { end, net, not } => {
                let (ip, address) = (word(net.family()), end.address());
                write!(f, "{ip} {address} {}{net}", is(not))
            }
            Self::Set {
                end,
                family,
                set,
                not,
            } => {
                write!(f, "{} {} {}@{set}", word(*family), end.address(), is(not))
            }
            Self::Ports {
                end,
                first,
                last,
                not,
            } => {
                write!(f, "th {} {}{first}", end.port(), is(not))?;
                match first == last {
                    true => Ok(()),
                    false => write!(f, "-{last}"),
                }
            }
            Self::Triple {
                end,
                family,
                set,
                not,
            } => {
                let (ip, address, port) = (word(*family), end.address(), end.port());
                write!(
                    f,
                    "{ip} {address} . meta l4proto . th {port} {}@{set}",
                    is(not)
                )
            }
            Self::IcmpType {
                family,
                number,
                not,
            } => {
                write!(f, "{} type {}{number}", icmp(*family), is(not))
            }
            Self::IcmpCode {
                family,
                number,
                not,
            } => {
                write!(f, "{} code {}{number}", icmp(*family), is(not))
            }
        }
    }
}

impl fmt::Display for FilterRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.matches {
            write!(f, "{part} ")?;
        }
        match &self.action {
            Action::Accept => f.write_str("accept"),
            Action::Drop => f.write_str("drop"),
            Action::Refuse => f.write_str("counter drop"),
            Action::Log => f.write_str("limit rate 10/second log prefix \"caracal-policy: \""),
            Action::Goto(chain) => write!(f, "goto {chain}"),
            Action::Jump(chain) => write!(f, "jump {chain}"),
        }
    }
}
