//! Names a table of neighbours that is too small for this cluster. Nobody tells of new limits, and
//! a cluster grows slowly: it is looked at by time.

use std::sync::Arc;
use std::time::Duration;

use caracal_agent::{AgentStatus, Links};
use caracal_datastore::View;
use caracal_model::{NodeName, Problem, ProblemCode, Snapshot};
use tokio::sync::watch;

use crate::neighbours::NeighbourTable;
use crate::node::problems::ProblemReporter;

/// From one look to the next.
const PERIOD: Duration = Duration::from_secs(60);

/// Looks for ever.
pub(crate) async fn report_neighbour_limits(
    me: NodeName,
    view: watch::Receiver<View>,
    mut kernel: watch::Receiver<Arc<AgentStatus>>,
    problems: ProblemReporter,
) {
    loop {
        let links = match kernel.wait_for(|status| status.passes > 0).await {
            Ok(status) => status.links.clone(),
            Err(_) => return,
        };
        let snapshot = Arc::clone(&view.borrow().snapshot);
        problems.warn(problems_of(&snapshot, &me, &links));
        tokio::time::sleep(PERIOD).await;
    }
}

fn problems_of(snapshot: &Snapshot, me: &NodeName, links: &Links) -> Vec<Problem> {
    let tables = NeighbourTable::of_machine(snapshot, me, links);
    let short = tables.into_iter().filter(NeighbourTable::is_short);
    short
        .map(|table| Problem {
            code: ProblemCode::NodeNeighbours,
            subject: table.name(),
            reason: format!("{}; {}", table.seen(), table.fix()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use caracal_agent::Link;

    use super::*;

    #[test]
    fn as_many_nodes_on_the_link_as_the_table_holds_are_named() {
        let limit = std::fs::read_to_string("/proc/sys/net/ipv4/neigh/default/gc_thresh3");
        let limit: usize = limit.unwrap().trim().parse().unwrap();
        let mut snapshot = Snapshot::default();
        let me = "me".into();
        let link = Link::new(2, "eth0").with_address("10.0.0.1/8".parse().unwrap());
        let links: Links = [link].into_iter().collect();
        assert_eq!(problems_of(&snapshot, &me, &links), []);
        for n in 0..limit {
            let address = std::net::Ipv4Addr::from_bits(0x0a01_0000 + u32::try_from(n).unwrap());
            let value = format!(
                r#"{{"metadata":{{"name":"n{n}"}},"spec":{{"bgp":{{"ipv4Address":"{address}/8"}}}}}}"#
            );
            let path = format!("/calico/resources/v3/projectcalico.org/nodes/n{n}");
            let revision = snapshot.revision + 1;
            snapshot.apply(&path, Some(value.as_bytes()), revision);
        }
        let found = problems_of(&snapshot, &me, &links);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].code, ProblemCode::NodeNeighbours);
        assert_eq!(found[0].subject, "net.ipv4.neigh.default.gc_thresh3");
        let seen = format!(
            "{limit} neighbours of IPv4, and the table holds {limit}: packets to those that are not in it are dropped; sysctl -w "
        );
        assert!(found[0].reason.starts_with(&seen), "{}", found[0].reason);
    }
}
