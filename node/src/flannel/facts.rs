//! What commands know of a network and of this node: read once, nothing is changed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context;
use caracal_agent::{Actual, Desired, read_kernel};
use caracal_datastore::read_text_file;
use caracal_flannel::{
    FlannelNetwork, KnownLease, LeaseOrigin, LeaseTable, LeaseView, NodeSubnets, OwnLease,
    SubnetEnv, list_leases, plan_flannel,
};

use super::args::FlannelArgs;
use super::stores::{FoundConfig, Stores};
use super::uplink;

/// A network, and this node in it.
pub(super) struct Facts {
    /// Where the configuration is.
    pub(super) place: String,
    pub(super) config: FoundConfig,
    pub(super) table: LeaseTable,
    /// How long leases last still that end by themselves.
    pub(super) left: BTreeMap<NodeSubnets, Duration>,
    /// `subnet.env` of this node, or why it cannot be read.
    pub(super) env: Result<SubnetEnv, String>,
    pub(super) actual: Actual,
}

impl Facts {
    pub(super) async fn read(args: &FlannelArgs) -> anyhow::Result<Self> {
        let stores = Stores::of(args, "".into())?;
        let place = stores.config.name();
        let gives_subnets = stores.config.gives_subnets();
        let (_, config) = stores.config.read().await.context(ADVICE)?;
        let has_v6 = config.as_ref().is_ok_and(|config| config.v6.is_some());
        let list = list_leases(stores.leases, stores.keys, has_v6);
        let (table, left) = list.await.context(ADVICE)?;
        let path = &args.subnet_file;
        let text = read_text_file(path).map_err(|e| format!("{}: {e}", path.display()));
        let parse = |text: String| {
            SubnetEnv::parse(&text).map_err(|fault| format!("{} {fault}", path.display()))
        };
        let mut facts = Self {
            place,
            config,
            table,
            left,
            env: text.and_then(parse),
            actual: read_kernel().await.context("reading the kernel's state")?,
        };
        let own = facts.own().map(|(own, _)| *own).filter(|_| !gives_subnets);
        if let (Some(own), Ok(config)) = (own, &mut facts.config) {
            config.take_lengths(&own);
        }
        Ok(facts)
    }

    /// This node's lease: that of the subnets in `subnet.env`, else that with an address of this
    /// machine's.
    pub(super) fn own(&self) -> Option<(&NodeSubnets, &KnownLease)> {
        let v4 = self.env.as_ref().ok().and_then(|env| env.v4);
        let in_file = |subnets: &NodeSubnets| v4.is_some_and(|v4| v4.prefix() == subnets.v4);
        let is_here = |known: &KnownLease| {
            let public = IpAddr::V4(known.lease.public_ip);
            self.actual.links.holding(public).is_some()
        };
        let mut all = self.table.iter();
        let by_file = all.find(|(subnets, _)| in_file(subnets));
        by_file.or_else(|| self.table.iter().find(|(_, known)| is_here(known)))
    }

    /// What the daemon would have in this node's kernel; the reason why that cannot be said.
    pub(super) fn desired(&self, args: &FlannelArgs) -> Result<Desired, String> {
        let config = self.config.clone()?;
        let (subnets, known) = self.own().ok_or("this machine has no lease")?;
        let network = FlannelNetwork {
            uplink: uplink::choose(args, &self.actual, config.v6.is_some())?,
            config,
            before: Vec::new(),
            blackhole: args.ip_blackhole_route,
            metric: args.route_metric,
            macs: Default::default(),
            refused: Vec::new(),
        };
        let view = LeaseView {
            own: OwnLease {
                subnets: *subnets,
                lease: known.lease.clone(),
                revision: known.revision,
                reserved: !self.left.contains_key(subnets),
                origin: LeaseOrigin::Renewed,
            },
            leases: self.table.clone(),
            revision: known.revision,
            connected: true,
            settled: true,
            twin: None,
        };
        Ok(plan_flannel(&network, &view, &self.actual.links))
    }
}

/// What to look at when nobody answers.
const ADVICE: &str =
    "check --etcd-endpoints, or with --kube-subnet-mgr --kubeconfig-file, and the rights to read";
