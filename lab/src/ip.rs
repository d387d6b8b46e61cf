//! `ip -batch` and `ip -j`: many lines per process, since starting the process is what costs.

use std::net::IpAddr;
use std::time::Duration;

use caracal_model::{Family, Prefix};
use serde::Deserialize;

use crate::program::{self, ProgramError};

/// The kernel makes and unmakes namespaces one after the other, for all labs of the machine, and
/// waits for readers of theirs on every core: with a dozen labs that come and go at once it was
/// seen to take 40 s.
const CALL: Duration = Duration::from_secs(120);

/// Runs lines of `ip` commands, inside a namespace if one is given. Stops at the first that fails.
///
/// # Errors
/// [`ProgramError`], with the line that failed.
pub fn batch(netns: Option<&str>, lines: &[String]) -> Result<(), ProgramError> {
    if lines.is_empty() {
        return Ok(());
    }
    let text = lines.join("\n") + "\n";
    let mut command = program::command("ip")?;
    command.args(["-batch", "-"]);
    match program::call(netns, &mut command, text.as_bytes(), CALL) {
        Ok(_) => Ok(()),
        Err(ProgramError::Failed {
            program,
            status,
            stderr,
        }) => {
            let line = failed_line(&stderr)
                .and_then(|n| lines.get(n))
                .map_or("", |l| l.as_str());
            Err(ProgramError::Failed {
                program: format!("{program} ({line})"),
                status,
                stderr,
            })
        }
        Err(other) => Err(other),
    }
}

/// Deletes namespaces; one that cannot be deleted does not keep the others.
///
/// # Errors
/// [`ProgramError`] when any could not be deleted.
pub fn delete_namespaces(names: &[String]) -> Result<(), ProgramError> {
    let lines: Vec<_> = names.iter().map(|n| format!("netns del {n}\n")).collect();
    let mut command = program::command("ip")?;
    command.args(["-force", "-batch", "-"]);
    program::call(None, &mut command, lines.concat().as_bytes(), CALL).map(drop)
}

/// `Command failed -:3` is the third line.
fn failed_line(stderr: &str) -> Option<usize> {
    let rest = stderr.rsplit_once("Command failed -:")?.1;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse::<usize>().ok()?.checked_sub(1)
}

/// A route as `ip -j route` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Route {
    /// Destination; a host route has no length.
    pub dst: String,
    /// `blackhole` and the like; unicast is left out.
    #[serde(default, rename = "type")]
    pub kind: Option<String>,
    /// Address of the next hop.
    #[serde(default)]
    pub gateway: Option<IpAddr>,
    /// Name of the device that the route leaves by.
    #[serde(default)]
    pub dev: Option<String>,
    /// Origin of the route: `kernel`, `boot`, `bird`, `80`.
    #[serde(default)]
    pub protocol: Option<String>,
    /// `link`, `global`, `host`.
    #[serde(default)]
    pub scope: Option<String>,
    /// Preferred source address.
    #[serde(default)]
    pub prefsrc: Option<IpAddr>,
    /// Metric: the lowest wins.
    #[serde(default)]
    pub metric: Option<u32>,
    /// `onlink`, `linkdown`.
    #[serde(default)]
    pub flags: Vec<String>,
    /// Next hops of a multipath route.
    #[serde(default)]
    pub nexthops: Vec<NextHop>,
}

/// One next hop of a multipath route.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct NextHop {
    /// Address of the next hop.
    #[serde(default)]
    pub gateway: Option<IpAddr>,
    /// Name of the device that the route leaves by.
    #[serde(default)]
    pub dev: Option<String>,
    /// `onlink`, `linkdown`.
    #[serde(default)]
    pub flags: Vec<String>,
}

/// Purpose of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteKind {
    /// An own block: nothing leaves the node for an address nobody has.
    Blackhole,
    /// A workload of this node.
    Local,
    /// Another node's block through the plain underlay (host-gw).
    Direct,
    /// Another node's block through `tunl0`, or subnet through `flannel.ipip`.
    Ipip,
    /// Another node's block through `vxlan.calico`, or subnet through `flannel.VNI`.
    Vxlan,
    /// All nodes' subnets through flannel's relay, `flannel0`.
    Udp,
    /// A route of the lab's own network.
    Underlay,
}

impl RouteKind {
    /// The word of `caracal status`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Blackhole => "blackhole",
            Self::Local => "local",
            Self::Direct => "direct",
            Self::Ipip => "ipip",
            Self::Vxlan => "vxlan",
            Self::Udp => "udp",
            Self::Underlay => "underlay",
        }
    }
}

impl Route {
    /// The destination as a prefix; `default` is `0.0.0.0/0`, whatever the family.
    #[must_use]
    pub fn destination(&self) -> Option<Prefix> {
        if self.dst == "default" {
            return "0.0.0.0/0".parse().ok();
        }
        self.dst.parse().ok()
    }

    /// Purpose of the route; `underlay` are the segments' subnets.
    #[must_use]
    pub fn classify(&self, underlay: &[Prefix]) -> RouteKind {
        let dev = self.dev.as_deref().unwrap_or_default();
        let destination = self.destination();
        let known = |p: &Prefix| p.len() == 0 || underlay.iter().any(|u| u.covers(p));
        let kernels = destination.is_some_and(|p| is_kernels_own(&p))
            || self.protocol.as_deref() == Some("kernel");
        if kernels {
            return RouteKind::Underlay;
        }
        if self.kind.as_deref() == Some("blackhole") {
            RouteKind::Blackhole
        } else if dev.starts_with("cali") {
            RouteKind::Local
        } else if matches!(dev, "tunl0" | "flannel.ipip") {
            RouteKind::Ipip
        } else if matches!(dev, "vxlan.calico" | "vxlan-v6.calico")
            || dev.starts_with("flannel.")
            || dev.starts_with("flannel-v6.")
        {
            RouteKind::Vxlan
        } else if dev == "flannel0" {
            RouteKind::Udp
        } else if (self.gateway.is_none() && self.nexthops.is_empty())
            || destination.as_ref().is_none_or(known)
        {
            RouteKind::Underlay
        } else {
            RouteKind::Direct
        }
    }
}

/// Link-local and multicast routes, which the kernel makes for every device that speaks IPv6.
fn is_kernels_own(destination: &Prefix) -> bool {
    match destination.address() {
        IpAddr::V4(_) => false,
        IpAddr::V6(a) => a.is_unicast_link_local() || a.is_multicast(),
    }
}

/// The routes of a family in a namespace's main table.
///
/// # Errors
/// [`ProgramError`].
pub fn routes(netns: &str, family: Family) -> Result<Vec<Route>, ProgramError> {
    let mut command = program::command("ip")?;
    let flag = match family {
        Family::Ipv4 => "-4",
        Family::Ipv6 => "-6",
    };
    command.args([flag, "-j", "route", "show"]);
    let text = program::call(Some(netns), &mut command, b"", CALL)?;
    Ok(parse(&text))
}

/// A namespace without routes prints nothing, or `[ ]`. A route this type does not cover is left
/// out.
fn parse(text: &str) -> Vec<Route> {
    let values: Vec<serde_json::Value> = serde_json::from_str(text.trim()).unwrap_or_default();
    values
        .into_iter()
        .filter_map(|v| serde_json::from_value(v).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_classified() {
        let text = r#"[
            {"dst":"default","gateway":"10.0.0.254","dev":"eth0","flags":[]},
            {"dst":"10.0.0.0/24","dev":"eth0","protocol":"kernel","scope":"link","prefsrc":"10.0.0.1","flags":[]},
            {"dst":"10.0.9.0/24","gateway":"10.0.0.254","dev":"eth0","flags":[]},
            {"type":"blackhole","dst":"10.244.1.0/26","protocol":"80","flags":[]},
            {"dst":"10.244.1.2","dev":"cali0123456789a","scope":"link","flags":[]},
            {"dst":"10.244.2.0/26","gateway":"10.0.0.2","dev":"eth0","protocol":"80","flags":[]},
            {"dst":"10.244.3.0/26","gateway":"10.0.0.3","dev":"tunl0","protocol":"80","flags":["onlink"]},
            {"dst":"10.244.4.0/26","gateway":"10.244.4.0","dev":"vxlan.calico","protocol":"80","flags":["onlink"]},
            {"dst":"10.244.5.0/26","protocol":"bird","flags":[],"nexthops":[{"gateway":"10.0.0.5","dev":"eth0","weight":1,"flags":[]}]},
            {"dst":"fe80::/64","dev":"cali0123456789a","protocol":"kernel","metric":256,"flags":[],"pref":"medium"},
            {"dst":"fd00:244::40","dev":"vxlan-v6.calico","protocol":"kernel","metric":256,"flags":[],"pref":"medium"},
            {"dst":"fd00:10::/64","dev":"eth0","protocol":"kernel","metric":256,"flags":[],"pref":"medium"},
            {"type":"blackhole","dst":"fd00:244::40/122","dev":"lo","protocol":"80","metric":1024,"flags":[],"pref":"medium"},
            {"dst":"fd00:244::41","dev":"cali0123456789a","metric":1024,"flags":[],"pref":"medium"},
            {"dst":"fd00:244::80/122","gateway":"fd00:10::2","dev":"eth0","protocol":"80","metric":1024,"flags":["onlink"],"pref":"medium"},
            {"dst":"fd00:244::c0/122","gateway":"fd00:244::c0","dev":"vxlan-v6.calico","metric":1024,"flags":["onlink"],"pref":"medium"},
            {"dst":"10.5.2.0/24","gateway":"10.5.2.0","dev":"flannel.1","protocol":"82","flags":["onlink"]},
            {"dst":"fd00:5:0:2::/64","gateway":"fd00:5:0:2::","dev":"flannel-v6.1","protocol":"82","flags":["onlink"]},
            {"dst":"10.5.3.0/24","gateway":"10.0.0.3","dev":"flannel.ipip","protocol":"82","flags":["onlink"]},
            {"dst":"10.5.0.0/16","dev":"flannel0","protocol":"82","scope":"link","flags":[]}
        ]"#;
        let underlay =
            ["10.0.0.0/24", "10.0.9.0/24", "fd00:10::/64"].map(|p| p.parse().expect("a prefix"));
        let kinds: Vec<_> = parse(text)
            .iter()
            .map(|r| r.classify(&underlay).as_str())
            .collect();
        assert_eq!(
            kinds,
            [
                "underlay",
                "underlay",
                "underlay",
                "blackhole",
                "local",
                "direct",
                "ipip",
                "vxlan",
                "direct",
                "underlay",
                "underlay",
                "underlay",
                "blackhole",
                "local",
                "direct",
                "vxlan",
                "vxlan",
                "vxlan",
                "ipip",
                "udp"
            ]
        );
        assert!(parse("").is_empty());
        assert!(parse("[ ]\n").is_empty());
    }

    #[test]
    fn the_failed_line_is_found() {
        let stderr = "RTNETLINK answers: File exists\nCommand failed -:3\n";
        assert_eq!(failed_line(stderr), Some(2));
        assert_eq!(failed_line("nothing"), None);
    }
}
