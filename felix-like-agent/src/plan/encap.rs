//! The whole decision how traffic to another node travels: one `match`.

use caracal_model::EncapMode;

use crate::settings::Settings;

/// Octets that IPIP adds: an IPv4 header.
pub const IPIP_OVERHEAD: u32 = 20;
/// Octets that VXLAN over IPv4 adds: IPv4, UDP, VXLAN and inner Ethernet headers.
pub const VXLAN_OVERHEAD: u32 = 50;
/// Octets that VXLAN over IPv6 adds.
pub const VXLAN_V6_OVERHEAD: u32 = 70;

/// How packets to a prefix travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Encap {
    /// Unencapsulated, to the node itself.
    Direct,
    /// IP in IP.
    Ipip,
    Vxlan,
    /// Not by a route of this source: the other source makes it.
    None,
}

/// Where a route comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Source {
    /// Blocks and allocations in the datastore.
    Datastore,
    /// Paths learned by BGP.
    Bgp,
}

/// Which source makes the routes of a class of pools. VXLAN pools are always the datastore's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sources {
    /// Pools with IPIP, same-subnet routes of CrossSubnet included.
    pub ipip: Source,
    /// Pools without encapsulation.
    pub direct: Source,
}

impl Sources {
    /// From the two settings called `programClusterRoutes`. Both on: the datastore. Neither on: as
    /// by default, IPIP from the datastore and the rest from BGP, because there is but one writer
    /// here and somebody has to be right; the second value names such classes.
    #[must_use]
    pub(crate) fn from_settings(settings: &Settings) -> (Self, Vec<&'static str>) {
        let (felix, bgp) = (settings.felix_routes, settings.bgp_routes);
        let mut unclaimed = Vec::new();
        let mut pick = |felix: bool, bgp: bool, default: Source, class: &'static str| {
            if !felix && !bgp {
                unclaimed.push(class);
            }
            match (felix, bgp) {
                (true, _) => Source::Datastore,
                (false, true) => Source::Bgp,
                (false, false) => default,
            }
        };
        let sources = Self {
            ipip: pick(felix.ipip(), bgp.ipip(), Source::Datastore, "IPIP"),
            direct: pick(
                felix.no_encap(),
                bgp.no_encap(),
                Source::Bgp,
                "unencapsulated",
            ),
        };
        (sources, unclaimed)
    }
}

/// How a route of `source` to another node travels. `same_subnet`: our own node address's subnet
/// contains the other node's address. VXLAN goes before IPIP should a pool have both.
#[must_use]
pub(crate) fn decide(
    ipip: EncapMode,
    vxlan: EncapMode,
    same_subnet: bool,
    source: Source,
    sources: Sources,
) -> Encap {
    use EncapMode::{Always, CrossSubnet, Never};
    let (encap, from) = match (vxlan, ipip, same_subnet) {
        (Always, _, _) | (CrossSubnet, _, false) => (Encap::Vxlan, Source::Datastore),
        (CrossSubnet, _, true) => (Encap::Direct, Source::Datastore),
        (Never, Always, _) | (Never, CrossSubnet, false) => (Encap::Ipip, sources.ipip),
        (Never, CrossSubnet, true) => (Encap::Direct, sources.ipip),
        (Never, Never, _) => (Encap::Direct, sources.direct),
    };
    if source == from { encap } else { Encap::None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::ProgramClusterRoutes as P;
    use EncapMode::{Always, CrossSubnet, Never};

    /// (vxlan, ipip) -> (same subnet, other subnet), and whose the class is: V = datastore always,
    /// I = IPIP class, D = unencapsulated class.
    const TABLE: [(EncapMode, EncapMode, Encap, Encap, char); 9] = [
        (Never, Never, Encap::Direct, Encap::Direct, 'D'),
        (Never, CrossSubnet, Encap::Direct, Encap::Ipip, 'I'),
        (Never, Always, Encap::Ipip, Encap::Ipip, 'I'),
        (CrossSubnet, Never, Encap::Direct, Encap::Vxlan, 'V'),
        (CrossSubnet, CrossSubnet, Encap::Direct, Encap::Vxlan, 'V'),
        (CrossSubnet, Always, Encap::Direct, Encap::Vxlan, 'V'),
        (Always, Never, Encap::Vxlan, Encap::Vxlan, 'V'),
        (Always, CrossSubnet, Encap::Vxlan, Encap::Vxlan, 'V'),
        (Always, Always, Encap::Vxlan, Encap::Vxlan, 'V'),
    ];

    #[test]
    fn every_mode_subnet_source_and_split() {
        let both = [Source::Datastore, Source::Bgp];
        let mut rows = 0;
        for (vxlan, ipip, same, other, class) in TABLE {
            for ipip_source in both {
                for direct_source in both {
                    let sources = Sources {
                        ipip: ipip_source,
                        direct: direct_source,
                    };
                    let of_class = match class {
                        'V' => Source::Datastore,
                        'I' => ipip_source,
                        _ => direct_source,
                    };
                    for source in both {
                        for (same_subnet, encap) in [(true, same), (false, other)] {
                            let expected = if source == of_class {
                                encap
                            } else {
                                Encap::None
                            };
                            assert_eq!(
                                decide(ipip, vxlan, same_subnet, source, sources),
                                expected,
                                "vxlan {vxlan} ipip {ipip} same {same_subnet} {source:?} {sources:?}"
                            );
                            rows += 1;
                        }
                    }
                }
            }
        }
        assert_eq!(rows, 9 * 4 * 4);
    }

    #[test]
    fn the_coherent_pairs_of_calico() {
        use Source::{Bgp, Datastore};
        for (felix, bgp, ipip, direct) in [
            (P::EnabledIpipOnly, P::EnabledNoEncapOnly, Datastore, Bgp),
            (P::Disabled, P::Enabled, Bgp, Bgp),
            (P::Enabled, P::Disabled, Datastore, Datastore),
            (P::EnabledNoEncapOnly, P::EnabledIpipOnly, Bgp, Datastore),
            (P::Enabled, P::Enabled, Datastore, Datastore),
        ] {
            let settings = Settings {
                felix_routes: felix,
                bgp_routes: bgp,
                ..Settings::default()
            };
            let (sources, unclaimed) = Sources::from_settings(&settings);
            assert_eq!(sources, Sources { ipip, direct }, "{felix:?} {bgp:?}");
            assert!(unclaimed.is_empty());
        }
        let settings = Settings {
            felix_routes: P::Disabled,
            bgp_routes: P::Disabled,
            ..Settings::default()
        };
        let (sources, unclaimed) = Sources::from_settings(&settings);
        assert_eq!((sources.ipip, sources.direct), (Datastore, Bgp));
        assert_eq!(unclaimed, ["IPIP", "unencapsulated"]);
    }
}
