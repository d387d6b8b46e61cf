//! The datastore: does it answer, how fast, what is wrong in it; and the clocks, by what others
//! wrote with theirs.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use caracal_datastore::{Datastore, Store};
use caracal_ipam::{LEASE_PREFIX, Lease};
use caracal_model::{DoctorCode, KeyRange, KeyValue, ProblemCode, Snapshot, Timestamp};

use super::{CheckVerdict, DoctorFinding};
use crate::cli::read_everything;

const UNREACHABLE_ETCD: &str = "check ETCD_ENDPOINTS, the certificates in ETCD_CA_CERT_FILE, ETCD_CERT_FILE and ETCD_KEY_FILE, and TCP 2379 from here; routes stay as they are meanwhile";
const UNREACHABLE_API: &str = "check KUBECONFIG or K8S_API_ENDPOINT, the certificate and the token in it, the account's rights, and TCP to the API server from here; routes stay as they are meanwhile";
/// Slower than this for one read, and watches and IPAM suffer.
const SLOW: Duration = Duration::from_millis(500);
/// Further apart than this, and what logs of two nodes say cannot be put in order.
const APART: Duration = Duration::from_secs(5);

/// Reads everything; `None` when the datastore does not answer.
pub(super) async fn check_datastore(findings: &mut Vec<DoctorFinding>) -> Option<Arc<Snapshot>> {
    let (store, snapshot) = match read_everything().await {
        Ok(read) => read,
        Err(error) => {
            let named = Datastore::from_env().ok();
            let subject = named.as_ref().map_or("datastore", Datastore::kind);
            let advice = match named.as_ref().is_some_and(Datastore::counts_by_kind) {
                true => UNREACHABLE_API,
                false => UNREACHABLE_ETCD,
            };
            findings.push(DoctorFinding::new(
                DoctorCode::DatastoreReachable,
                subject,
                CheckVerdict::Fail,
                format!("{error:#}"),
                advice,
            ));
            return None;
        }
    };
    let began = Instant::now();
    let leases = store
        .read(&[KeyRange::Prefix(LEASE_PREFIX.to_owned())])
        .await;
    speed(findings, &store, began.elapsed(), snapshot.revision);
    let foreign = snapshot.foreign_fields();
    for problem in snapshot.problems().into_iter().chain(foreign) {
        let problem = match store.counts_by_kind() {
            true => problem.spoken(),
            false => problem,
        };
        let (check, verdict, remedy) = match problem.code {
            ProblemCode::DatastoreLocked => (
                DoctorCode::DatastoreReady,
                CheckVerdict::Fail,
                "`caracal datastore unlock`, once the migration is finished or given up",
            ),
            ProblemCode::PolicyNotEnforced => (
                DoctorCode::Policies,
                CheckVerdict::Fail,
                "run a policy engine beside Caracal, or delete the policies",
            ),
            ProblemCode::DatastoreUnknownField | ProblemCode::DatastoreFieldWithoutEffect => (
                DoctorCode::DatastoreFields,
                CheckVerdict::Warn,
                "correct the field's name, or take it out; docs/resources.md has all fields",
            ),
            _ => (
                DoctorCode::DatastoreValues,
                CheckVerdict::Fail,
                "correct it or delete it; the last good value is in use meanwhile",
            ),
        };
        findings.push(DoctorFinding::new(
            check,
            problem.subject,
            verdict,
            problem.reason,
            remedy,
        ));
    }
    findings.push(match leases {
        Ok(answer) => {
            let leases: Vec<KeyValue> = answer.ranges.into_iter().flatten().collect();
            clocks(&leases, SystemTime::now().into())
        }
        Err(error) => DoctorFinding::new(
            DoctorCode::Clock,
            "clocks",
            CheckVerdict::Skip,
            format!("the nodes' leases cannot be read: {error}"),
            "",
        ),
    });
    Some(snapshot)
}

fn speed(findings: &mut Vec<DoctorFinding>, store: &Datastore, took: Duration, revision: i64) {
    let slow = match store.counts_by_kind() {
        false => {
            "look at etcd's disk: etcd_disk_wal_fsync_duration_seconds should stay below 10 ms"
        }
        true => {
            "look at the API server's load and at its etcd's disk: apiserver_request_duration_seconds"
        }
    };
    let seen = format!("answers in {} ms at revision {revision}", took.as_millis());
    findings.push(match took < SLOW {
        true => DoctorFinding::ok(DoctorCode::DatastoreReachable, store.kind(), seen),
        false => DoctorFinding::new(
            DoctorCode::DatastoreReachable,
            store.kind(),
            CheckVerdict::Warn,
            seen,
            slow,
        ),
    });
}

/// A lease that was renewed in our future: one of the two clocks is wrong.
fn clocks(leases: &[KeyValue], now: Timestamp) -> DoctorFinding {
    const CHECK: DoctorCode = DoctorCode::Clock;
    let ahead = leases.iter().filter_map(|kv| {
        let lease = Lease::read(kv)?;
        let renewed = Timestamp::parse_rfc3339(&lease.renewed)?;
        // Saturates: zero for a lease of the past.
        Some((renewed.since(now), lease.node))
    });
    match ahead.max() {
        None => DoctorFinding::new(
            CHECK,
            "clocks",
            CheckVerdict::Skip,
            "no node has written a liveness lease yet",
            "",
        ),
        Some((ahead, node)) if ahead > APART => DoctorFinding::new(
            CHECK,
            node.to_string(),
            CheckVerdict::Fail,
            format!(
                "{node} wrote a time that is {} s in this machine's future",
                ahead.as_secs()
            ),
            "set the clock with NTP on both (timedatectl set-ntp true); certificates and logs depend on it",
        ),
        Some(_) => DoctorFinding::ok(CHECK, "clocks", "no node writes times of the future"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_time_of_the_future_is_a_wrong_clock() {
        let at = |text: &str| Timestamp::parse_rfc3339(text).unwrap();
        let now = at("2026-01-01T00:00:00Z");
        let stored = |renewed: &str| {
            let text = format!(r#"{{"node":"b","renewed":"{renewed}","seconds":900}}"#);
            KeyValue {
                key: Lease::path(&"b".into()),
                value: text.into_bytes(),
                mod_revision: 1,
            }
        };
        assert_eq!(clocks(&[], now).verdict, CheckVerdict::Skip);
        for (renewed, verdict) in [
            ("2025-12-31T23:00:00Z", CheckVerdict::Ok),
            ("2026-01-01T00:00:03Z", CheckVerdict::Ok),
            ("2026-01-01T00:01:00Z", CheckVerdict::Fail),
        ] {
            let finding = clocks(&[stored(renewed)], now);
            assert_eq!(finding.verdict, verdict, "{finding:?}");
        }
    }
}
