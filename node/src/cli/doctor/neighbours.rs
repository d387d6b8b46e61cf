//! Whether the kernel's table of neighbours is large enough.

use caracal_agent::Links;
use caracal_model::{DoctorCode, NodeName, Snapshot};

use super::{CheckVerdict, DoctorFinding};
use crate::neighbours::NeighbourTable;

pub(super) fn check_neighbours(
    findings: &mut Vec<DoctorFinding>,
    snapshot: &Snapshot,
    node: &NodeName,
    links: &Links,
) {
    let tables = NeighbourTable::of_machine(snapshot, node, links);
    findings.extend(tables.into_iter().map(|table| {
        let verdict = match (table.is_full(), table.is_short()) {
            (true, _) => CheckVerdict::Fail,
            (_, true) => CheckVerdict::Warn,
            _ => CheckVerdict::Ok,
        };
        let code = DoctorCode::SysctlNeighbours;
        DoctorFinding::new(code, table.name(), verdict, table.seen(), table.fix())
    }));
}
