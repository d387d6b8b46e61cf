//! Which traffic is masqueraded and which is let through.

use caracal_model::net::{Family, Prefix};

use super::Planner;
use crate::nat::{FamilyRules, Nat};

pub(super) fn plan(planner: &mut Planner<'_>) {
    // A pool that cannot be read may be one that is masqueraded: what is there stays.
    if planner.inputs.snapshot.is_doubtful() {
        return;
    }
    let nat = Nat {
        interface_prefixes: planner.inputs.settings.interface_prefixes.clone(),
        ipv4: family(planner, Family::Ipv4),
        ipv6: family(planner, Family::Ipv6),
    };
    planner.desired.nat = Some(nat);
}

fn family(planner: &Planner<'_>, family: Family) -> FamilyRules {
    let mut rules = FamilyRules::default();
    if !planner.family(family) {
        return rules;
    }
    for pool in planner.pools.iter().filter(|p| p.prefix.family() == family) {
        rules.exempt.insert(pool.prefix);
        if pool.nat_outgoing {
            rules.masquerade.insert(pool.prefix);
        }
    }
    if planner.inputs.settings.nat_excludes_hosts {
        let nodes = planner.inputs.snapshot.nodes.values();
        rules.exempt.extend(
            nodes
                .filter_map(|n| n.spec.address(family))
                .map(Prefix::host),
        );
    }
    for tunnel in planner
        .desired
        .tunnels
        .values()
        .filter(|t| t.family() == family)
    {
        if let Some(address) = tunnel.address {
            rules.tunnels.insert(tunnel.name.clone(), address);
        }
    }
    rules
}
