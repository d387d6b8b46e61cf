//! The options of one peer, with those of its templates.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use caracal_bgp::{
    BgpRole, ClusterId, DisableAfter, GracefulRestart, NextHopMode, Password, PeerConfig,
};
use caracal_model::{Family, IfName};

use super::bfd::{self, BfdTimes};
use super::kernel;
use super::lexer::{Located, Number, ParseFault};
use super::neighbor::NeighborLine;
use super::options::{Extras, LimitOption, PathOption};
use super::peer::{ChannelOption, PeerOption, Policy};
use crate::context::Reach;

/// BIRD's hold time, in seconds.
const BIRDS_HOLD_TIME: u16 = 240;

/// The lines of a family of one peer, those of its templates first.
pub(super) struct Channel<'a> {
    pub(super) at: &'a str,
    /// How far down the last of them stands.
    pub(super) level: usize,
    pub(super) family: Family,
    pub(super) import: Option<Policy<'a>>,
    pub(super) export: Option<Policy<'a>>,
    pub(super) next_hop: NextHopMode,
    pub(super) own_next_hop: Option<IpAddr>,
    pub(super) extended_next_hop: bool,
    preference: Option<Located<'a, u16>>,
    pub(super) gateway_direct: Option<&'a str>,
    pub(super) paths: Vec<PathOption>,
    pub(super) limit: Vec<LimitOption>,
}

impl<'a> Channel<'a> {
    const fn new(at: &'a str, level: usize, family: Family) -> Self {
        Self {
            at,
            level,
            family,
            import: None,
            export: None,
            next_hop: NextHopMode::Auto,
            own_next_hop: None,
            extended_next_hop: false,
            preference: None,
            gateway_direct: None,
            paths: Vec::new(),
            limit: Vec::new(),
        }
    }

    fn take(&mut self, line: &Located<'a, ChannelOption<'a>>) {
        match &line.value {
            ChannelOption::Import(policy) => self.import = Some(policy.clone()),
            ChannelOption::Export(policy) => self.export = Some(policy.clone()),
            ChannelOption::NextHop(mode) => self.next_hop = *mode,
            ChannelOption::OwnNextHop(own) => self.own_next_hop = Some(*own),
            ChannelOption::ExtendedNextHop(on) => self.extended_next_hop = *on,
            ChannelOption::Preference(value) => {
                let (at, value) = (line.at, *value);
                self.preference = Some(Located { at, value });
            }
            ChannelOption::GatewayDirect => self.gateway_direct = Some(line.at),
            ChannelOption::Paths(option) => self.paths.push(*option),
            ChannelOption::Limit(option) => self.limit.push(*option),
            ChannelOption::Done => {}
        }
    }
}

impl NeighborLine<'_> {
    /// The lines before this one, with what it says.
    fn with(self, later: Self) -> Self {
        Self {
            address: later.address.or(self.address),
            interface: later.interface.or(self.interface),
            range: match later.address {
                Some(_) => later.range,
                None => self.range,
            },
            port: later.port.or(self.port),
            asn: later.asn.or(self.asn),
        }
    }
}

/// Options of a peer, the last of each kind.
#[derive(Default)]
pub(super) struct PeerOptions<'a> {
    pub(super) name: Option<String>,
    pub(super) kind: Option<&'a str>,
    pub(super) local: Option<(Option<IpAddr>, Number<'a>)>,
    pub(super) local_port: Option<Located<'a, u16>>,
    pub(super) source: Option<IpAddr>,
    pub(super) interface: Option<Located<'a, &'a str>>,
    pub(super) strict_bind: Option<&'a str>,
    pub(super) keepalive: Option<Located<'a, u32>>,
    pub(super) neighbor: Option<Located<'a, NeighborLine<'a>>>,
    reach: Option<Option<Option<u8>>>,
    ttl_security: bool,
    ttl: Option<(Option<u8>, Option<u8>)>,
    hold_time: Option<u16>,
    disabled: bool,
    passive: bool,
    client: bool,
    rs_client: Option<&'a str>,
    role: Option<Located<'a, BgpRole>>,
    require_roles: Option<&'a str>,
    dynamic_name: Option<&'a str>,
    cluster_id: Option<Ipv4Addr>,
    graceful: Option<bool>,
    restart_time: Option<u16>,
    allow_own_as: u8,
    enforce_first_as: Option<&'a str>,
    check_link: Option<bool>,
    password: Option<String>,
    disable_after: DisableAfter,
    pub(super) channels: Vec<Channel<'a>>,
    extras: Extras,
}

/// True for a peer on a common link: no router is in between.
fn is_direct(config: &PeerConfig) -> bool {
    config.ttl == Some(1) || config.ttl_security == Some(1)
}

impl<'a> PeerOptions<'a> {
    /// Takes an option; one that stands further down counts.
    pub(super) fn take(
        &mut self,
        level: usize,
        option: &Located<'a, PeerOption<'a>>,
    ) -> Result<(), ParseFault<'a>> {
        let at = option.at;
        match &option.value {
            PeerOption::Name(name) => self.name = Some(name.clone()),
            PeerOption::Kind(kind) => self.kind = Some(kind),
            PeerOption::Local { address, port, asn } => {
                self.local = Some((*address, *asn));
                self.local_port = port.map(|value| Located { at, value });
            }
            PeerOption::Source(address) => self.source = Some(*address),
            PeerOption::StrictBind(on) => self.strict_bind = on.then_some(at),
            PeerOption::Keepalive(value) => self.keepalive = Some(Located { at, value: *value }),
            PeerOption::Neighbor(line) => {
                let known = self.neighbor.map(|known| known.value).unwrap_or_default();
                let value = known.with(*line);
                self.neighbor = Some(Located { at, value });
                if let Some(value) = line.interface {
                    self.interface = Some(Located { at, value });
                }
            }
            PeerOption::CheckLink(on) => self.check_link = Some(*on),
            PeerOption::EnforceFirstAs(on) => self.enforce_first_as = on.then_some(at),
            PeerOption::Interface(value) => self.interface = Some(Located { at, value }),
            PeerOption::Reach(reach) => self.reach = Some(*reach),
            PeerOption::TtlSecurity(on) => self.ttl_security = *on,
            PeerOption::Ttl(ttl, security) => self.ttl = Some((*ttl, *security)),
            PeerOption::HoldTime(seconds) => self.hold_time = Some(*seconds),
            PeerOption::Disabled(on) => self.disabled = *on,
            PeerOption::Passive(on) => self.passive = *on,
            PeerOption::Client(on) => self.client = *on,
            PeerOption::RsClient(on) => self.rs_client = on.then_some(at),
            PeerOption::Role(role) => self.role = Some(Located { at, value: *role }),
            PeerOption::RequireRoles(on) => self.require_roles = on.then_some(at),
            PeerOption::DynamicName(name) => self.dynamic_name = Some(name),
            PeerOption::ClusterId(id) => self.cluster_id = Some(*id),
            PeerOption::GracefulRestart(on) => self.graceful = Some(*on),
            PeerOption::RestartTime(seconds) => self.restart_time = Some(*seconds),
            PeerOption::AllowOwnAs(count) => self.allow_own_as = *count,
            PeerOption::Password(text) => self.password = Some(text.clone()),
            PeerOption::DisableAfterError(on) => self.disable_after.error = *on,
            PeerOption::DisableAfterCease(cease) => self.disable_after.cease = *cease,
            PeerOption::Channel(family, lines) => self.channel(level, at, *family, lines)?,
            PeerOption::Extra(extra) => self.extras.take(extra),
            PeerOption::Fixed => {}
        }
        Ok(())
    }

    /// A family may stand again below a template, and changes only what it says.
    fn channel(
        &mut self,
        level: usize,
        at: &'a str,
        family: Family,
        lines: &[Located<'a, ChannelOption<'a>>],
    ) -> Result<(), ParseFault<'a>> {
        let mut channels = self.channels.iter_mut();
        let channel = match channels.find(|channel| channel.family == family) {
            Some(channel) if channel.level == level => {
                return Err(ParseFault::new(at, "each family once in a block"));
            }
            Some(channel) => channel,
            None => {
                self.channels.push(Channel::new(at, level, family));
                match self.channels.last_mut() {
                    Some(channel) => channel,
                    None => return Ok(()),
                }
            }
        };
        (channel.at, channel.level) = (at, level);
        for line in lines {
            channel.take(line);
        }
        Ok(())
    }

    /// What the peer relies on and BIRD has otherwise, with the line that makes it explicit.
    pub(super) fn own_defaults(&self, config: &PeerConfig) -> impl Iterator<Item = &'static str> {
        // A restart here takes no route away.
        let restarts = self.graceful.is_none() && self.restart_time.is_none();
        let checks = self.check_link.unwrap_or_else(|| is_direct(config));
        let restart = restarts.then_some(
            "graceful restart is on here and aware in BIRD (\"graceful restart aware;\")",
        );
        let link = checks.then_some(
            "a link that loses its carrier ends no session here, and does in BIRD (\"check link off;\"): its paths \
             are a last resort at once, and the session ends by \"bfd\" or its hold time",
        );
        restart.into_iter().chain(link)
    }

    /// Keepalives are sent three times per hold time; a line that says otherwise is refused.
    pub(super) fn keepalive(&self, config: &PeerConfig) -> Result<(), ParseFault<'a>> {
        let third = config.hold_time.as_secs() / 3;
        match self.keepalive {
            Some(said) if u64::from(said.value) != third => Err(ParseFault::new(
                said.at,
                format!("no line, or {third} s: keepalives are sent three times per hold time"),
            )),
            _ => Ok(()),
        }
    }

    /// The link that we share with a peer, as in BIRD: one with a link-local address has a link,
    /// and is on it. Of others, the kernel's routes say where they are.
    pub(super) fn link(&self, config: &PeerConfig) -> Result<Option<IfName>, ParseFault<'a>> {
        let Some(neighbor) = &self.neighbor else {
            return Ok(None);
        };
        let wrong = |at, what| Err(ParseFault::new(at, what));
        let is_near = |address| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        if !is_near(config.address) || config.range.is_some() {
            return Ok(None);
        }
        let Some(interface) = &self.interface else {
            return wrong(
                neighbor.at,
                "an interface beside a link-local address: \"neighbor fe80::1%eth0 as …;\" or \"interface \"eth0\";\"",
            );
        };
        if !is_direct(config) {
            return wrong(
                neighbor.at,
                "\"direct;\" beside a link-local address: no router is in between",
            );
        }
        if config.bfd.is_some() {
            return wrong(
                neighbor.at,
                "no \"bfd\": between link-local addresses it is not done",
            );
        }
        Ok(Some(interface.value.into()))
    }

    /// As in BIRD: inside an AS there is no route server (RFC 7947 §2).
    pub(super) fn route_server(&self, internal: bool) -> Result<(), ParseFault<'a>> {
        match self.rs_client.filter(|_| internal) {
            Some(at) => Err(ParseFault::new(
                at,
                "no \"rs client\": this peer is internal, and a route server has external clients",
            )),
            None => Ok(()),
        }
    }

    /// As in BIRD: inside an AS a path need not begin with the peer's.
    pub(super) fn first_as(&self, internal: bool) -> Result<(), ParseFault<'a>> {
        match self.enforce_first_as.filter(|_| internal) {
            Some(at) => Err(ParseFault::new(
                at,
                "no \"enforce first as\": this peer is internal, and its paths need not begin with our AS",
            )),
            None => Ok(()),
        }
    }

    /// As in BIRD: roles are those of external peers, and to require the peer's takes one of ours.
    pub(super) fn roles(&self, internal: bool) -> Result<(), ParseFault<'a>> {
        match (&self.role, self.require_roles) {
            (Some(role), _) if internal => Err(ParseFault::new(
                role.at,
                "no \"local role\": this peer is internal, and roles are between ASes (RFC 9234)",
            )),
            (None, Some(at)) => Err(ParseFault::new(
                at,
                "a \"local role\" beside it: the peer's role is held against ours",
            )),
            _ => Ok(()),
        }
    }

    /// How much routes of the peer are preferred. Those of ours come before them, of which the
    /// lowest has `ours`.
    pub(super) fn preference(&self, ours: u16) -> Result<u16, ParseFault<'a>> {
        let mut first = None;
        for channel in &self.channels {
            let said = channel.preference.as_ref();
            let value = said.map_or(PeerConfig::PREFERENCE, |said| said.value);
            if let Some(said) = said
                && !(kernel::PREFERENCE + 1..ours).contains(&value)
            {
                let what = format!(
                    "\"preference\" with a number from {} to {}: routes of ours are used before those of peers",
                    kernel::PREFERENCE + 1,
                    ours - 1
                );
                return Err(ParseFault::new(said.at, what));
            }
            if *first.get_or_insert(value) != value {
                let what = "both families with the same \"preference\"";
                return Err(ParseFault::new(channel.at, what));
            }
        }
        Ok(first.unwrap_or(PeerConfig::PREFERENCE))
    }

    pub(super) fn apply(
        &self,
        config: &mut PeerConfig,
        internal: bool,
        router_id: Option<Ipv4Addr>,
        by_hand: bool,
        bfd: BfdTimes,
    ) {
        // BIRD's defaults: internal peers may be anywhere, external ones are neighbours.
        let multihop = self.reach.unwrap_or_else(|| internal.then_some(None));
        let reach = Reach {
            multihop,
            security: self.ttl_security,
        };
        (config.ttl, config.ttl_security) = self.ttl.unwrap_or_else(|| reach.settings());
        let birds = || by_hand.then_some(BIRDS_HOLD_TIME);
        if let Some(seconds) = self.hold_time.or_else(birds) {
            config.hold_time = Duration::from_secs(seconds.into());
        }
        config.disabled = self.disabled;
        config.passive = self.passive;
        config.client_of = self
            .client
            .then(|| self.cluster_id.or(router_id).map(ClusterId))
            .flatten();
        config.rs_client = self.rs_client.is_some();
        config.role = self.role.as_ref().map(|role| role.value);
        config.dynamic_name = self.dynamic_name.map(str::to_owned);
        config.require_roles = self.require_roles.is_some();
        config.graceful_restart = match (self.graceful, self.restart_time) {
            (Some(false), _) => None,
            (_, Some(seconds)) => Some(GracefulRestart {
                restart_time: Duration::from_secs(seconds.into()),
            }),
            (_, None) => Some(GracefulRestart::default()),
        };
        config.allow_own_as = self.allow_own_as;
        config.disable_after = self.disable_after;
        config.password = self.password.clone().map(Password);
        config.enforce_first_as = self.enforce_first_as.is_some();
        self.kind.unwrap_or_default().clone_into(&mut config.kind);
        config.long_lived = self.extras.long_lived;
        config.long_lived_partial = self.extras.long_lived_partial;
        let times = match is_direct(config) {
            true => bfd.direct,
            false => bfd.multihop,
        };
        config.bfd = bfd::of_peer(&self.extras.bfd, times);
        config.require_policy = self.extras.require_policy;
    }
}
