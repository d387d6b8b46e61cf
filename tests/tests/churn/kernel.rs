//! A kernel made of maps that does what Linux does with the agent's requests, refusals and side
//! effects included: connected routes come and go with addresses and links, a link that goes down
//! loses its routes and neighbours, one that is deleted takes everything with it, a replacement
//! hits the first route of its key whoever wrote it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use caracal_agent::{
    Actual, ActualRoute, ActualTarget, ForwardingTarget, Link, NextHop, Op, Refused, apply_op,
    next_index,
};
use caracal_model::{Cidr, Family, IfName, Prefix};

use crate::dice::Dice;

/// `RTPROT_KERNEL`.
const KERNEL: u8 = 2;
/// `RTPROT_STATIC`.
const STATIC: u8 = 4;
/// The uplink of each machine.
pub const UPLINK: &str = "eth0";

/// One machine's kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its state.
    pub actual: Actual,
    /// Number of next requests that fail, each with one chance in two.
    pub moody: u32,
    /// Routes that were put there by others than the agent, in order.
    foreign: Vec<ActualRoute>,
}

fn route(prefix: Prefix, metric: u32, protocol: u8, target: ForwardingTarget) -> ActualRoute {
    ActualRoute {
        prefix,
        metric,
        tos: 0,
        protocol,
        target: ActualTarget::Known(target),
        mtu: None,
        source: None,
    }
}

fn via(gateway: Option<IpAddr>, link: &str) -> ForwardingTarget {
    ForwardingTarget::Via(vec![NextHop {
        gateway,
        link: link.into(),
        onlink: false,
        extra_weight: 0,
    }])
}

impl Kernel {
    /// A machine with a loopback, an uplink with these addresses, and routes of its
    /// administrator's.
    pub fn boot(addresses: &[Cidr], gateways: [IpAddr; 2]) -> Self {
        let mut kernel = Self {
            actual: Actual::default(),
            moody: 0,
            foreign: Vec::new(),
        };
        let lo = Link::new(1, "lo");
        let lo = lo.with_address("127.0.0.1/8".parse().unwrap());
        let mut eth = Link::new(2, UPLINK);
        eth.addresses = addresses.to_vec();
        let mut dummy = Link::new(3, "dummy0");
        dummy.kind = "dummy".to_owned();
        dummy.addresses = vec!["192.168.7.1/24".parse().unwrap()];
        kernel.actual.links = [lo, eth, dummy].into_iter().collect();
        kernel.connect(UPLINK);
        kernel.connect("dummy0");
        kernel.underlay(gateways);
        kernel
    }

    /// The administrator's routes over the uplink: the other subnets and the rest of the world.
    pub fn underlay(&mut self, [v4, v6]: [IpAddr; 2]) {
        for (prefix, metric, gateway) in [
            ("10.0.0.0/16", 0, v4),
            ("0.0.0.0/0", 0, v4),
            ("fd00::/32", 1024, v6),
            ("::/0", 1024, v6),
        ] {
            let target = via(Some(gateway), UPLINK);
            self.add_foreign(route(prefix.parse().unwrap(), metric, STATIC, target));
        }
    }

    /// Connected routes of an interface's addresses.
    fn connect(&mut self, name: &str) {
        let Some(link) = self.actual.links.by_name(name).filter(|link| link.up) else {
            return;
        };
        let subnets: Vec<Prefix> = link
            .addresses
            .iter()
            .map(Cidr::prefix)
            .filter(|prefix| !prefix.is_host())
            .collect();
        for prefix in subnets {
            let metric = match prefix.family() {
                Family::Ipv4 => 0,
                Family::Ipv6 => 256,
            };
            self.add_foreign(route(prefix, metric, KERNEL, via(None, name)));
        }
    }

    /// A route of somebody else's. False when its place is taken.
    pub fn add_foreign(&mut self, route: ActualRoute) -> bool {
        if self.actual.routes.contains_key(&route.key()) {
            return false;
        }
        self.actual.push_route(route.clone());
        self.foreign.push(route);
        true
    }

    /// A route of somebody else's behind those of its key (`ip route append`).
    pub fn append_foreign(&mut self, route: ActualRoute) {
        self.actual.push_route(route.clone());
        self.foreign.push(route);
    }

    /// Its owner takes the nth route of somebody else's away again; never those of the boot.
    pub fn remove_foreign(&mut self, n: usize) {
        let mut later = (0..self.foreign.len()).filter(|i| self.foreign[*i].protocol > STATIC);
        let count = later.clone().count();
        if count == 0 {
            return;
        }
        let Some(index) = later.nth(n % count) else {
            return;
        };
        let gone = self.foreign.remove(index);
        self.actual.remove_route(&gone);
    }

    /// Routes of others, in order.
    pub fn foreign(&self) -> &[ActualRoute] {
        &self.foreign
    }

    /// Routes of others that are not there any more.
    pub fn missing(&self) -> Option<&ActualRoute> {
        self.foreign.iter().find(|route| {
            let there = self.actual.routes.get(&route.key());
            there.is_none_or(|there| !there.contains(route))
        })
    }

    /// A workload's interface.
    pub fn add_workload(&mut self, name: &str) {
        if self.actual.links.by_name(name).is_none() {
            let mut link = Link::new(next_index(&self.actual.links), name);
            link.kind = "veth".to_owned();
            self.actual.links.insert(link);
        }
    }

    /// An interface goes, and everything on it.
    pub fn remove_link(&mut self, name: &str) {
        let name = IfName::from(name);
        self.actual.remove_link(&name);
        let on = |r: &ActualRoute| r.next_hops().iter().any(|hop| hop.link == name);
        self.foreign.retain(|r| !on(r));
        let inside = format!("/{name}/");
        self.actual
            .sysctls
            .retain(|path, _| !path.contains(&inside));
    }

    /// An interface goes up or down.
    pub fn set_link(&mut self, name: &str, up: bool) {
        let Some(link) = self.actual.links.by_name_mut(name) else {
            return;
        };
        link.up = up;
        if up {
            self.connect(name);
            return;
        }
        let on = |r: &ActualRoute| r.next_hops().iter().any(|hop| hop.link.as_str() == name);
        self.foreign.retain(|r| !on(r));
        self.actual.routes.retain(|_, routes| {
            routes.retain(|r| !on(r));
            !routes.is_empty()
        });
        let over = |hop: &NextHop| hop.link.as_str() == name;
        let objects = &mut self.actual.objects;
        objects.retain(|_, object| !object.hop.as_ref().is_some_and(over));
        let neighbours = &mut self.actual.neighbours;
        neighbours.retain(|key, _| key.link.as_str() != name);
    }

    /// Somebody flushes every route with a protocol.
    pub fn flush(&mut self, protocol: u8) {
        self.actual.routes.retain(|_, routes| {
            routes.retain(|r| r.protocol != protocol);
            !routes.is_empty()
        });
    }

    /// Carries out a request of the agent's.
    pub fn apply_ops(&mut self, op: &Op, dice: &mut Dice) -> Result<(), Refused> {
        if self.moody > 0 {
            self.moody -= 1;
            if dice.one_in(2) {
                return Err("EBUSY");
            }
        }
        let gone = op.is_delete();
        match apply_op(&mut self.actual, op) {
            // As the shell judges: what is gone needs no deletion.
            Err("ESRCH" | "ENOENT" | "ENODEV" | "EADDRNOTAVAIL") if gone => Ok(()),
            Ok(()) => {
                if let Op::DeleteTunnel(name) = op {
                    // Objects of others on it are removed, too.
                    self.remove_link(name.as_str());
                }
                Ok(())
            }
            refused => refused,
        }
    }

    /// The route that a packet takes: the longest prefix, then the lowest metric.
    pub fn lookup(&self, to: IpAddr) -> Option<&ActualRoute> {
        let routes: &BTreeMap<_, Vec<ActualRoute>> = &self.actual.routes;
        let fitting = routes.iter().filter(|(key, _)| key.prefix.contains(to));
        let best = fitting.max_by_key(|(key, _)| (key.prefix.len(), std::cmp::Reverse(key.metric)));
        best.and_then(|(_, routes)| routes.first())
    }
}
