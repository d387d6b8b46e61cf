//! The pools, parsed once for a plan.

use caracal_model::{EncapMode, Family, PoolName, Prefix, Snapshot};

use crate::settings::Settings;

/// Facts of a pool that a plan needs. Pools for load balancers alone are left out, but for those of
/// which nodes still have blocks; disabled ones are not, their blocks live on.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub(super) name: PoolName,
    pub(super) prefix: Prefix,
    pub(super) ipip: EncapMode,
    pub(super) vxlan: EncapMode,
    pub(super) nat_outgoing: bool,
}

impl Pool {
    /// What a problem with routes of the pool is about.
    pub(super) fn subject(&self) -> String {
        format!("pool {}", self.name)
    }
}

/// All pools, most specific first.
pub(super) struct Pools(Vec<Pool>);

impl Pools {
    pub(super) fn from_snapshot(snapshot: &Snapshot, settings: &Settings) -> Self {
        let mut pools: Vec<Pool> = snapshot
            .pools
            .iter()
            .filter(|(_, pool)| snapshot.makes_routes(&pool.spec))
            .map(|(name, pool)| Pool {
                name: name.clone(),
                prefix: pool.spec.prefix(),
                ipip: pool.spec.ipip_mode,
                vxlan: pool.spec.vxlan_mode,
                nat_outgoing: pool.spec.nat_outgoing,
            })
            .filter(|pool| settings.family(pool.prefix.family()))
            .collect();
        pools.sort_by_key(|pool| std::cmp::Reverse(pool.prefix.len()));
        Self(pools)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Pool> {
        self.0.iter()
    }

    pub(super) fn of_family(&self, family: Family) -> impl Iterator<Item = &Pool> {
        self.iter().filter(move |p| p.prefix.family() == family)
    }

    /// The most specific pool that covers a prefix.
    pub(super) fn covering(&self, prefix: &Prefix) -> Option<&Pool> {
        self.iter().find(|pool| pool.prefix.covers(prefix))
    }

    pub(super) fn any_ipip(&self) -> bool {
        self.iter().any(|p| p.ipip != EncapMode::Never)
    }

    pub(super) fn any_vxlan(&self, family: Family) -> bool {
        self.iter()
            .any(|p| p.vxlan != EncapMode::Never && p.prefix.family() == family)
    }

    pub(super) fn any(&self, family: Family) -> bool {
        self.iter().any(|p| p.prefix.family() == family)
    }
}
