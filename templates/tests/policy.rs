//! Two speakers, one policy: what the filters of the set `calico` let a session have is what the
//! live speaker gives it, for each kind of route and session.

#![allow(clippy::unwrap_used)]

mod bird16;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Instant;

use bird16::{Daemon, Route};
use caracal_bgp::{
    Advertisement, AsPath, PathAttrs, PathStatus, PeerName, Rib, RibOptions, RouterId, SessionInfo,
    SessionOptions, SpeakerConfig, UpdateMessage, Withheld,
};
use caracal_model::{Family, Prefix, Snapshot};
use caracal_templates::{Set, Templates};
use caracal_topologies::{PlanOptions, assign_block, plan, plan_calico, resources_from_yaml};

const CLUSTER: &str = "
kind: BGPConfiguration
metadata: {name: default}
spec:
  asNumber: 64512
  serviceClusterIPs: [{cidr: 10.96.0.0/12}, {cidr: 'fd00:96::/108'}]
  serviceExternalIPs: [{cidr: 192.0.2.0/24}, {cidr: 203.0.113.7/32}, {cidr: 'fd00:192::/64'}]
  serviceLoadBalancerIPs: [{cidr: 198.18.0.0/24}, {cidr: 'fd00:198::/64'}]
  nodeToNodeMeshEnabled: MESH
  communities: [{name: bulk, value: '64512:7'}]
  prefixAdvertisements:
  - {cidr: 10.244.0.0/16, communities: [bulk, '64512:1:2']}
  - {cidr: 10.96.0.0/12, communities: ['64512:9']}
  - {cidr: 'fd00:10::/48', communities: [bulk, '64512:1:2']}
  - {cidr: 'fd00:96::/108', communities: ['64512:9']}
---
{kind: IPPool, metadata: {name: open}, spec: {cidr: 10.244.0.0/16, ipipMode: CrossSubnet}}
---
{kind: IPPool, metadata: {name: disabled}, spec: {cidr: 10.245.0.0/16, vxlanMode: Always, disabled: true}}
---
{kind: IPPool, metadata: {name: hidden}, spec: {cidr: 10.247.0.0/16, disableBGPExport: true}}
---
{kind: IPPool, metadata: {name: six}, spec: {cidr: 'fd00:10::/48'}}
---
{kind: IPPool, metadata: {name: six-disabled}, spec: {cidr: 'fd00:11::/48', vxlanMode: Always, disabled: true}}
---
{kind: IPPool, metadata: {name: six-hidden}, spec: {cidr: 'fd00:12::/48', disableBGPExport: true}}
---
{kind: Node, metadata: {name: b}, spec: {bgp: {ipv4Address: 10.0.0.2/24, ipv6Address: 'fd00::2/64'}}}
---
{kind: Node, metadata: {name: c}, spec: {bgp: {ipv4Address: 10.0.0.3/24, ipv6Address: 'fd00::3/64'}}}
---
{kind: BGPPeer, metadata: {name: tor}, spec: {peerIP: 10.0.0.254, asNumber: 65000}}
---
{kind: BGPPeer, metadata: {name: other}, spec: {peerIP: 10.0.0.253, asNumber: 65001}}
---
{kind: BGPPeer, metadata: {name: tor6}, spec: {peerIP: 'fd00::254', asNumber: 65000}}
---
{kind: BGPPeer, metadata: {name: picky}, spec: {peerIP: 10.0.0.252, asNumber: 65002, filters: [policy]}}
---
{kind: BGPPeer, metadata: {name: inside}, spec: {peerIP: 10.0.0.251, asNumber: 64512, filters: [policy]}}
---
{kind: BGPPeer, metadata: {name: other6}, spec: {peerIP: 'fd00::253', asNumber: 65001}}
---
{kind: BGPPeer, metadata: {name: picky6}, spec: {peerIP: 'fd00::252', asNumber: 65002, filters: [policy]}}
---
{kind: BGPPeer, metadata: {name: inside6}, spec: {peerIP: 'fd00::251', asNumber: 64512, filters: [policy]}}
---
kind: BGPFilter
metadata: {name: policy}
spec:
  importV4:
  - {action: Accept, cidr: 10.9.0.0/16, matchOperator: In, prefixLength: {min: 20, max: 30}, peerType: eBGP, asPathPrefix: [65002], operations: [{addCommunity: {value: '3:4:5'}}, {setPriority: {value: 100}}]}
  - {action: Reject, cidr: 10.9.0.0/16, matchOperator: In}
  - {action: Reject, cidr: 0.0.0.0/0, matchOperator: Equal}
  exportV4:
  - {action: Reject, cidr: 10.244.2.0/24, matchOperator: In, source: RemotePeers, peerType: eBGP}
  - {action: Accept, cidr: 172.16.0.0/12, matchOperator: In, operations: [{addCommunity: {value: '1:2'}}]}
  - {action: Reject, cidr: 10.96.0.0/12, matchOperator: NotIn, communities: {values: ['64512:66']}}
  importV6:
  - {action: Accept, cidr: 'fd00:99::/48', matchOperator: In, prefixLength: {min: 60, max: 70}, peerType: eBGP, asPathPrefix: [65002], operations: [{addCommunity: {value: '3:4:5'}}, {setPriority: {value: 100}}]}
  - {action: Reject, cidr: 'fd00:99::/48', matchOperator: In}
  - {action: Reject, cidr: '::/0', matchOperator: Equal}
  exportV6:
  - {action: Reject, cidr: 'fd00:10::80/122', matchOperator: In, source: RemotePeers, peerType: eBGP}
  - {action: Accept, cidr: 'fd00:98::/32', matchOperator: In, operations: [{addCommunity: {value: '1:2'}}]}
  - {action: Reject, cidr: 'fd00:96::/108', matchOperator: NotIn, communities: {values: ['64512:66']}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: d}, spec: {type: LoadBalancer, clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9, 'fd00:96::9'], externalIPs: [192.0.2.5, 203.0.113.7, 'fd00:192::5'], externalTrafficPolicy: Local}, status: {loadBalancer: {ingress: [{ip: 198.18.0.5}, {ip: 'fd00:198::5'}]}}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-x, namespace: d, labels: {kubernetes.io/service-name: web}}, endpoints: [{addresses: [10.244.1.67], nodeName: a, conditions: {ready: true}}]}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv6, metadata: {name: web-y, namespace: d, labels: {kubernetes.io/service-name: web}}, endpoints: [{addresses: ['fd00:10::43'], nodeName: a, conditions: {ready: true}}]}
";

/// Blocks of node `a`.
const BLOCKS: [&str; 9] = [
    "10.244.1.64/26",
    "10.244.1.192/26",
    "10.244.7.7/32",
    "10.245.1.0/26",
    "10.247.1.0/26",
    "fd00:10::40/122",
    "fd00:10::7/128",
    "fd00:11::/122",
    "fd00:12::/122",
];

/// What node `a` is in the cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Role {
    Mesh,
    Client,
    Reflector,
}

/// The cluster as the node's role has it.
fn cluster(role: Role) -> Snapshot {
    let mesh = role == Role::Mesh;
    let mut text = CLUSTER.replace("MESH", &mesh.to_string());
    let reflects = match role {
        Role::Reflector => ", routeReflectorClusterID: 244.0.0.1",
        _ => "",
    };
    let _ = write!(
        text,
        "---\n{{kind: Node, metadata: {{name: a, labels: {{x: one}}}}, spec: {{bgp: {{ipv4Address: 10.0.0.1/24, ipv6Address: 'fd00::1/64', ipv4IPIPTunnelAddr: 10.244.1.65{reflects}}}, ipv4VXLANTunnelAddr: 10.244.3.1}}}}\n"
    );
    if role == Role::Client {
        text += "---\n{kind: Node, metadata: {name: r, labels: {rr: 'true'}}, spec: {bgp: {ipv4Address: 10.0.0.9/24, ipv6Address: 'fd00::9/64', routeReflectorClusterID: 244.0.0.9}}}\n";
        text += "---\n{kind: BGPPeer, metadata: {name: rr}, spec: {nodeSelector: all(), peerSelector: has(rr)}}\n";
    }
    if role == Role::Reflector {
        text += "---\n{kind: BGPPeer, metadata: {name: rr}, spec: {nodeSelector: has(x), peerSelector: '!has(x)'}}\n";
    }
    let mut snapshot = Snapshot::default();
    assert_eq!(resources_from_yaml(&text).unwrap().apply(&mut snapshot), []);
    for block in BLOCKS {
        assign_block(&mut snapshot, &"a".into(), block.parse().unwrap());
    }
    let leaving = "/calico/ipam/v2/host/a/ipv4/block/10.244.1.192-26";
    snapshot.apply(leaving, Some(br#"{"state":"pendingDeletion"}"#), 99);
    snapshot
}

/// Where a route comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Whence {
    /// The node itself, as a route that leads nowhere.
    Own,
    /// The node's kernel: an address of a device, or the route to a workload.
    Device(&'static str),
    /// A peer, inside the AS or not.
    Peer { internal: bool },
}

/// What there is to tell, and what it is.
fn routes() -> Vec<(&'static str, Prefix, Whence)> {
    let own = [
        ("own block", "10.244.1.64/26"),
        ("own block that is being given back", "10.244.1.192/26"),
        ("own block of a disabled pool", "10.245.1.0/26"),
        ("own block of a hidden pool", "10.247.1.0/26"),
        ("own IPv6 block", "fd00:10::40/122"),
        ("own IPv6 block of a disabled pool", "fd00:11::/122"),
        ("own IPv6 block of a hidden pool", "fd00:12::/122"),
        ("service range", "10.96.0.0/12"),
        ("range of external addresses", "192.0.2.0/24"),
        ("own service's cluster address", "10.96.0.9/32"),
        ("own service's external address", "192.0.2.5/32"),
        ("own service's balanced address", "198.18.0.5/32"),
        ("IPv6 service range", "fd00:96::/108"),
        ("IPv6 range of external addresses", "fd00:192::/64"),
        ("own service's IPv6 cluster address", "fd00:96::9/128"),
        ("own service's IPv6 external address", "fd00:192::5/128"),
        ("own service's IPv6 balanced address", "fd00:198::5/128"),
    ];
    let device = [
        ("own block of one address", "10.244.7.7/32", "cali7"),
        ("workload of an own block", "10.244.1.67/32", "cali6"),
        ("tunnel address of an own block", "10.244.1.65/32", "tunl0"),
        ("tunnel address elsewhere", "10.244.3.1/32", "vxlan.calico"),
        ("the nodes' subnet", "10.0.0.0/24", "eth0"),
        ("own IPv6 block of one address", "fd00:10::7/128", "cali7"),
        ("workload of an own IPv6 block", "fd00:10::43/128", "cali6"),
        ("the nodes' IPv6 subnet", "fd00::/64", "eth0"),
    ];
    let learned = [
        ("another node's block", "10.244.2.0/26"),
        ("another node's IPv6 block", "fd00:10::80/122"),
        ("another block of a disabled pool", "10.245.2.0/26"),
        ("another block of a hidden pool", "10.247.2.0/26"),
        ("address that another borrows here", "10.244.1.70/32"),
        ("another's service's cluster address", "10.96.0.77/32"),
        ("another's service's external address", "192.0.2.77/32"),
        ("another's service's balanced address", "198.18.0.77/32"),
        ("part of a service range", "10.97.0.0/16"),
        ("foreign prefix", "172.16.5.0/24"),
        ("foreign prefix of a filter", "10.9.16.0/24"),
        ("another IPv6 block of a disabled pool", "fd00:11::80/122"),
        ("another IPv6 block of a hidden pool", "fd00:12::80/122"),
        ("IPv6 address that another borrows here", "fd00:10::46/128"),
        ("another's IPv6 cluster address", "fd00:96::77/128"),
        ("another's IPv6 external address", "fd00:192::77/128"),
        ("another's IPv6 balanced address", "fd00:198::77/128"),
        ("part of an IPv6 service range", "fd00:96::8000/113"),
        ("IPv6 prefix that a filter marks", "fd00:98::/64"),
        ("foreign IPv6 prefix", "fd00:99::/64"),
        ("default", "0.0.0.0/0"),
        ("IPv6 default", "::/0"),
    ];
    let net = |text: &str| text.parse::<Prefix>().unwrap();
    let own = own.map(|(what, text)| (what, net(text), Whence::Own));
    let device = device.map(|(what, text, link)| (what, net(text), Whence::Device(link)));
    let peers = [true, false].map(|internal| Whence::Peer { internal });
    let learned = learned.into_iter();
    let learned = learned.flat_map(|(what, text)| peers.map(|from| (what, net(text), from)));
    own.into_iter().chain(device).chain(learned).collect()
}

/// What a session gets.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Nothing,
    /// Communities, and LOCAL_PREF inside the AS.
    Route(BTreeSet<String>, Option<u32>),
}

/// LOCAL_PREF of a normal route.
const NORMAL: u32 = 2_147_482_623;

struct Case {
    config: SpeakerConfig,
    daemons: BTreeMap<Family, Daemon>,
}

impl Case {
    fn new(role: Role) -> Self {
        let snapshot = cluster(role);
        let options = PlanOptions::default();
        let files = Templates::shipped(Set::Calico)
            .files(&plan_calico(&snapshot, &"a".into(), &options).context)
            .unwrap();
        let read = |six: bool| {
            let of_family = files.iter().filter(|f| f.file.starts_with("bird6") == six);
            Daemon::read(&of_family.map(|f| f.text.as_str()).collect::<String>())
        };
        Self {
            config: plan(&snapshot, &"a".into(), &options).config,
            daemons: [(Family::Ipv4, read(false)), (Family::Ipv6, read(true))].into(),
        }
    }

    fn is_internal(&self, peer: &PeerName) -> bool {
        self.config.peers[peer].remote_as == self.config.local_as
    }

    /// A peer of the family and kind that is not the one that is to hear of the route.
    fn sender(&self, family: Family, internal: bool, listener: &PeerName) -> Option<&PeerName> {
        let mut peers = self.config.peers.iter();
        let found = peers.find(|(name, peer)| {
            let is_other = *name != listener && peer.import.is_empty();
            is_other && Family::of(peer.address) == family && self.is_internal(name) == internal
        });
        found.map(|(name, _)| name)
    }

    /// The live table with this route from a peer.
    fn table(&self, route: Option<(&PeerName, Prefix)>) -> Rib {
        let now = Instant::now();
        let (mut rib, _) = Rib::new(now, &self.config, RibOptions::default());
        for (number, (name, peer)) in (1_u8..).zip(&self.config.peers) {
            let family = Family::of(peer.address);
            let local: IpAddr = match family {
                Family::Ipv4 => "10.0.0.1".parse().unwrap(),
                Family::Ipv6 => "fd00::1".parse().unwrap(),
            };
            let session = SessionInfo {
                families: vec![family],
                router_id: RouterId([10, 1, 1, number].into()),
                local_address: local,
                remote_address: peer.address,
                graceful_restart: None,
                options: SessionOptions::default(),
                capabilities: Vec::new(),
            };
            rib.peer_up(now, name, session);
        }
        if let Some((name, prefix)) = route {
            let attrs = self.attributes(name);
            let update = UpdateMessage {
                announced: vec![prefix],
                attrs: Some(attrs),
                ..UpdateMessage::default()
            };
            rib.receive(now, name, update);
        }
        for (name, peer) in &self.config.peers {
            let end = UpdateMessage::end_of_rib(Family::of(peer.address));
            rib.receive(now, name, end);
        }
        rib.decide(now);
        rib
    }

    /// As the peer sends it.
    fn attributes(&self, sender: &PeerName) -> PathAttrs {
        let peer = &self.config.peers[sender];
        let internal = self.is_internal(sender);
        let mut attrs = PathAttrs {
            next_hop: Some(peer.address),
            local_pref: internal.then_some(NORMAL),
            ..PathAttrs::default()
        };
        if !internal {
            attrs.as_path = AsPath::sequence([peer.remote_as]);
        }
        attrs
    }

    /// What the live speaker gives a session; `None` where the protocol forbids it before policy.
    fn live(&self, rib: &Rib, prefix: Prefix, listener: &PeerName) -> Option<Said> {
        let explained = rib.explain(&prefix);
        if explained.prefix != Some(prefix) {
            return Some(Said::Nothing);
        }
        let used = explained
            .paths
            .iter()
            .find(|path| matches!(path.status, PathStatus::Best { .. }));
        used?;
        let mut told = explained.advertised.into_iter();
        match told.find(|(name, _)| name == listener)?.1 {
            Advertisement::Sent(attrs) => Some(Said::Route(
                attrs.communities.iter().map(ToString::to_string).collect(),
                attrs.local_pref,
            )),
            Advertisement::Withheld(Withheld::Policy(_)) => Some(Said::Nothing),
            Advertisement::Withheld(_) => None,
        }
    }

    /// The same, of the files.
    fn rendered(
        &self,
        (prefix, from): (Prefix, Whence),
        sender: Option<&PeerName>,
        listener: &PeerName,
    ) -> Said {
        let daemon = &self.daemons[&prefix.family()];
        let mut route = Route {
            net: prefix,
            source: "RTS_STATIC",
            ifname: None,
            path: Vec::new(),
            numbers: BTreeMap::new(),
            communities: BTreeSet::new(),
        };
        match from {
            Whence::Own if !daemon.blackholes.contains(&prefix) => return Said::Nothing,
            Whence::Own => {}
            Whence::Device(link) => {
                route.ifname = Some(link);
                route.source = "RTS_INHERIT";
            }
            Whence::Peer { internal } => {
                route.source = "RTS_BGP";
                // BIRD gives an external route the default.
                let pref = if internal { NORMAL } else { 100 };
                route.numbers.insert("bgp_local_pref".to_owned(), pref);
                let sender = sender.unwrap();
                if !internal {
                    route.path.push(self.config.peers[sender].remote_as.0);
                }
                if !daemon.imports(sender.as_str(), &mut route) {
                    return Said::Nothing;
                }
                // The metric is one of the export filter's own.
                route.numbers.remove("krt_metric");
            }
        }
        if !daemon.exports(listener.as_str(), &mut route) {
            return Said::Nothing;
        }
        let text = |parts: &Vec<u32>| {
            let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
            parts.join(":")
        };
        let pref = route.numbers.get("bgp_local_pref").copied();
        Said::Route(
            route.communities.iter().map(text).collect(),
            pref.filter(|_| self.is_internal(listener)),
        )
    }
}

#[test]
fn the_files_and_the_speaker_say_the_same_of_every_route() {
    let mut differences = String::new();
    let (mut sent, mut kept) = (0, 0);
    for role in [Role::Mesh, Role::Client, Role::Reflector] {
        let case = Case::new(role);
        for (listener, peer) in &case.config.peers {
            let family = Family::of(peer.address);
            for (what, prefix, from) in routes() {
                if prefix.family() != family {
                    continue;
                }
                // The daemon tells a peer outside of the cluster, which has no use for it.
                if what == "tunnel address elsewhere" && !case.is_internal(listener) {
                    continue;
                }
                let sender = match from {
                    Whence::Peer { internal } => match case.sender(family, internal, listener) {
                        None => continue,
                        sender => sender,
                    },
                    Whence::Own | Whence::Device(_) => None,
                };
                let rib = case.table(sender.map(|name| (name, prefix)));
                let Some(live) = case.live(&rib, prefix, listener) else {
                    continue;
                };
                match live {
                    Said::Nothing => kept += 1,
                    Said::Route(..) => sent += 1,
                }
                let rendered = case.rendered((prefix, from), sender, listener);
                if live != rendered {
                    let _ = writeln!(
                        differences,
                        "{role:?} to {listener}, {what}, {prefix}, {from:?}:\n  live {live:?}\n  file {rendered:?}"
                    );
                }
            }
        }
    }
    assert_eq!(differences, "");
    assert!(sent > 200 && kept > 200, "{sent} sent, {kept} kept");
}

/// What a peer may tell: import filters.
#[test]
fn the_files_and_the_speaker_take_the_same_in() {
    let case = Case::new(Role::Mesh);
    let mut refused = 0;
    for (name, peer) in &case.config.peers {
        let family = Family::of(peer.address);
        let learned = routes().into_iter().filter(|(_, prefix, from)| {
            prefix.family() == family && *from == Whence::Peer { internal: true }
        });
        for (what, prefix, _) in learned {
            let rib = case.table(Some((name, prefix)));
            let explained = rib.explain(&prefix);
            let path = explained.paths.first().unwrap();
            let by_policy = matches!(path.status, PathStatus::Refused { by: Some(_), .. });
            let internal = case.is_internal(name);
            let attrs = case.attributes(name);
            let mut route = Route {
                net: prefix,
                source: "RTS_BGP",
                ifname: None,
                path: attrs.as_path.asns().map(|asn| asn.0).collect(),
                numbers: BTreeMap::new(),
                communities: BTreeSet::new(),
            };
            let pref = if internal { NORMAL } else { 100 };
            route.numbers.insert("bgp_local_pref".to_owned(), pref);
            let accepted = case.daemons[&family].imports(name.as_str(), &mut route);
            assert_eq!(
                accepted, !by_policy,
                "{name}, {what}, {prefix}: {:?}",
                path.status
            );
            refused += usize::from(!accepted);
            let of_file = route.communities.iter().map(Vec::len).collect::<Vec<_>>();
            let of_speaker = path.attrs.communities.len();
            if accepted {
                assert_eq!(of_file.len(), of_speaker, "{name}, {what}, {prefix}");
                let pref = route.numbers.get("bgp_local_pref").copied();
                assert_eq!(path.attrs.local_pref.or(Some(100)), pref, "{name}, {what}");
            }
        }
    }
    assert!(refused > 2, "{refused}");
}

/// A node announces the address of a Service that has an endpoint there; the reflector's router is
/// to hear of it, and so are the other clients.
#[test]
fn a_reflector_passes_addresses_of_services_on() {
    let case = Case::new(Role::Reflector);
    let client = PeerName::from("Node_10_0_0_2");
    for (address, listener) in [
        ("10.96.0.77/32", "Global_10_0_0_254"),
        ("192.0.2.77/32", "Global_10_0_0_254"),
        ("198.18.0.77/32", "Global_10_0_0_254"),
        ("10.96.0.77/32", "Node_10_0_0_3"),
    ] {
        let prefix = address.parse().unwrap();
        let rib = case.table(Some((&client, prefix)));
        let said = case.live(&rib, prefix, &listener.into());
        assert!(
            matches!(said, Some(Said::Route(..))),
            "{address} to {listener}: {said:?}"
        );
    }
}
