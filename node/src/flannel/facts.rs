//! What commands know of a network and of this node: read once, nothing is changed.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use caracal_agent::{Actual, Desired, read_kernel};
use caracal_datastore::read_text_file;
use caracal_flannel::{
    Families, FlannelConfig, FlannelNetwork, KnownLease, LeaseOrigin, LeaseTable, LeaseView,
    NodeSubnets, OwnLease, SubnetEnv, list_leases, plan_flannel,
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
        // Without a configuration those that have IPv4.
        let usual = Families {
            v4: true,
            v6: false,
        };
        let families = config.as_ref().map_or(usual, FlannelConfig::families);
        let list = list_leases(stores.leases, stores.keys, families);
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
        let first = self.env.as_ref().ok().and_then(|env| env.subnets().next());
        let in_file = |subnets: &NodeSubnets| first.is_some() && subnets.iter().next() == first;
        let is_here = |known: &KnownLease| {
            let links = &self.actual.links;
            links.holding(known.lease.node()).is_some()
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
            uplink: uplink::choose(args, &self.actual, config.families())?,
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
