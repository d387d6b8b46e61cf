//! Names of kinds on the command line, and which kinds users may write.

use crate::resource::Kind;
use crate::spelling::nearest_name;

/// Object of a command: a kind of resource, or one of IPAM's read-only kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResourceType {
    /// One that can be read and written.
    Resource(Kind),
    /// IPAM's blocks.
    IpamBlock,
    /// IPAM's block affinities.
    BlockAffinity,
    /// IPAM's handles: the addresses of one container.
    IpamHandle,
}

/// Whether a kind may be written from the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteRule {
    /// Yes.
    Writable,
    /// No; why, and what to do instead.
    ReadOnly(&'static str),
}

/// Names of a kind: singular, plural, then what calicoctl's users type.
const NAMES: &[(ResourceType, &str)] = &[
    (
        ResourceType::Resource(Kind::BgpConfiguration),
        "bgpconfiguration bgpconfigurations bgpconfig bgpconfigs",
    ),
    (
        ResourceType::Resource(Kind::BgpPeer),
        "bgppeer bgppeers bgpp bgpps bp bps",
    ),
    (
        ResourceType::Resource(Kind::BgpFilter),
        "bgpfilter bgpfilters",
    ),
    (
        ResourceType::Resource(Kind::FelixConfiguration),
        "felixconfiguration felixconfigurations felixconfig felixconfigs",
    ),
    (
        ResourceType::Resource(Kind::IpPool),
        "ippool ippools ipp ipps pool pools",
    ),
    (
        ResourceType::Resource(Kind::IpReservation),
        "ipreservation ipreservations reservation reservations",
    ),
    (ResourceType::Resource(Kind::Node), "node nodes no nos"),
    (
        ResourceType::Resource(Kind::WorkloadEndpoint),
        "workloadendpoint workloadendpoints wep weps",
    ),
    (
        ResourceType::Resource(Kind::ClusterInformation),
        "clusterinformation clusterinformations clusterinfo clusterinfos",
    ),
    (
        ResourceType::Resource(Kind::IpamConfiguration),
        "ipamconfiguration ipamconfigurations ipamconfig ipamconfigs",
    ),
    (
        ResourceType::Resource(Kind::HostEndpoint),
        "hostendpoint hostendpoints hep heps",
    ),
    (
        ResourceType::Resource(Kind::Profile),
        "profile profiles pro pros",
    ),
    (ResourceType::Resource(Kind::Tier), "tier tiers"),
    (
        ResourceType::Resource(Kind::KubeControllersConfiguration),
        "kubecontrollersconfiguration kubecontrollersconfigurations kubecontrollersconfig kcc",
    ),
    (
        ResourceType::Resource(Kind::CalicoNodeStatus),
        "caliconodestatus caliconodestatuses cns",
    ),
    (
        ResourceType::BlockAffinity,
        "blockaffinity blockaffinities affinity affinities",
    ),
    (ResourceType::IpamBlock, "ipamblock ipamblocks block blocks"),
    (
        ResourceType::IpamHandle,
        "ipamhandle ipamhandles handle handles",
    ),
];

fn names(names: &'static str) -> std::str::SplitAsciiWhitespace<'static> {
    names.split_ascii_whitespace()
}

impl ResourceType {
    /// All kinds that have a name.
    pub fn all() -> impl Iterator<Item = Self> {
        NAMES.iter().map(|(target, _)| *target)
    }

    /// Finds a kind by any of its names, in any case of letters.
    ///
    /// # Errors
    /// Names the nearest kind, or all.
    pub fn named(name: &str) -> Result<Self, String> {
        let wanted = name.to_ascii_lowercase();
        let all = || {
            NAMES
                .iter()
                .flat_map(|(target, all)| names(all).map(move |name| (*target, name)))
        };
        if let Some((target, _)) = all().find(|(_, known)| *known == wanted) {
            return Ok(target);
        }
        Err(match nearest_name(all().map(|(_, known)| known), name) {
            Some(known) => format!("there is no kind {name:?}; did you mean {known}?"),
            None => {
                let kinds = NAMES.iter().filter_map(|(_, all)| names(all).nth(1));
                format!(
                    "there is no kind {name:?}; the kinds are: {}",
                    kinds.collect::<Vec<_>>().join(", ")
                )
            }
        })
    }

    /// `IPPool`, `BlockAffinity` …
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Resource(kind) => kind.as_str(),
            Self::IpamBlock => "IPAMBlock",
            Self::BlockAffinity => "BlockAffinity",
            Self::IpamHandle => "IPAMHandle",
        }
    }

    /// `ippool`, as `-o name` and the lines about changes have it.
    #[must_use]
    pub fn short(self) -> &'static str {
        let found = NAMES.iter().find(|(target, _)| *target == self);
        found.and_then(|(_, all)| names(all).next()).unwrap_or("")
    }

    /// Whether it may be written.
    #[must_use]
    pub const fn writable(self) -> WriteRule {
        match self {
            Self::Resource(Kind::ClusterInformation) => WriteRule::ReadOnly(
                "the nodes write it themselves: it is the identity of the cluster",
            ),
            Self::Resource(Kind::Profile | Kind::Tier | Kind::HostEndpoint) => WriteRule::ReadOnly(
                "Caracal enforces no policy and does not read its content, so it could not validate it; use calicoctl",
            ),
            Self::Resource(_) => WriteRule::Writable,
            Self::IpamBlock | Self::BlockAffinity | Self::IpamHandle => WriteRule::ReadOnly(
                "it belongs to IPAM, which changes it together with what depends on it; use caracal ipam",
            ),
        }
    }
}
