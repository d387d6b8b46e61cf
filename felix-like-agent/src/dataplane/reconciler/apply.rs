//! Carrying out the ops of a pass.

use caracal_model::IfName;
use tokio::time::Instant;

use super::Reconciler;
use crate::actual::Actual;
use crate::dataplane::netlink::NetlinkError;
use crate::dataplane::read;
use crate::dataplane::write::{self, sysctl};
use crate::desired::Desired;
use crate::links::Links;
use crate::op::Op;
use crate::ownership::is_vxlan_device;
use crate::settings::Settings;
use crate::slice::SLICE;

/// Passes with more ops log them at debug level.
const LOGGED: usize = 50;

impl Reconciler {
    /// Does the ops of a pass, and sets what netlink does not tell of devices; answers as
    /// [`Self::apply`].
    pub(super) async fn write(
        &mut self,
        ops: Vec<Op>,
        actual: &Actual,
        desired: &Desired,
        settings: &Settings,
    ) -> Result<(usize, Links), NetlinkError> {
        let (failures, links) = self.apply(ops, actual, desired.revision).await?;
        let vxlan = links
            .iter()
            .filter(|link| is_vxlan_device(link.name.as_str()));
        self.tx_checksums.keep(settings.vxlan_tx_checksum, vxlan);
        Ok((failures, links))
    }

    /// Does ops in order and remembers what failed; answers with the number of failures and the
    /// devices then.
    pub(in crate::dataplane) async fn apply(
        &mut self,
        ops: Vec<Op>,
        actual: &Actual,
        revision: i64,
    ) -> Result<(usize, Links), NetlinkError> {
        if ops.is_empty() {
            return Ok((0, actual.links.clone()));
        }
        let total = ops.len();
        let mut failures = 0;
        // Devices first: the rest needs their indices.
        if ops.iter().any(|op| matches!(op, Op::DeleteTunnel(_))) {
            // The kernel takes what stood on the device with it, and the monitor hears nothing of
            // our own doing.
            self.wake_up.notify_one();
        }
        let (devices, rest): (Vec<Op>, Vec<Op>) = ops.into_iter().partition(|op| {
            matches!(op, Op::AddTunnel(_) | Op::SetTunnel(_))
                || matches!(op, Op::DeleteTunnel(name) if self.is_recreated(name))
        });
        let mut links = actual.links.clone();
        for op in devices {
            let results = write::send(&mut self.netlink, std::slice::from_ref(&op), &links).await?;
            failures += self.note(&[op], &results, total, revision);
            links = read::links(&self.netlink).await?;
        }
        // Runs of what is netlink's, each change of something else between them.
        let mut rest = rest.as_slice();
        while !rest.is_empty() {
            self.questions.answer().await;
            let run = rest.iter().take(SLICE).take_while(|op| op.is_netlink());
            let run = run.count();
            let (ops, behind) = rest.split_at(run.max(1));
            let results = if run > 0 {
                write::send(&mut self.netlink, ops, &links).await?
            } else {
                vec![self.outside_netlink(&ops[0])]
            };
            failures += self.note(ops, &results, total, revision);
            rest = behind;
        }
        if total > LOGGED {
            tracing::info!(
                rev = revision,
                ops = total,
                failures,
                "kernel state changed"
            );
        }
        Ok((failures, links))
    }

    /// A device that is unwanted goes last; one that is made anew goes first.
    fn is_recreated(&self, name: &IfName) -> bool {
        !self.unwanted.contains_key(name)
    }

    fn outside_netlink(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::WriteSysctl(path, value) => {
                if let Some(Err(error)) = self.saved_sysctls.as_mut().map(|o| o.note(path, value)) {
                    tracing::warn!(path, %error, "cannot note what the value was; an uninstallation will not put it back");
                }
                sysctl::write(path, value).map_err(|error| error.to_string())
            }
            // Routes are netlink's, and rules have a task of their own.
            _ => Err("not one of the reconciler's changes".to_owned()),
        }
    }

    /// Logs and remembers results; answers with the number of failures.
    fn note(
        &mut self,
        ops: &[Op],
        results: &[Result<(), String>],
        total: usize,
        rev: i64,
    ) -> usize {
        let now = Instant::now();
        let mut failures = 0;
        for (op, result) in ops.iter().zip(results) {
            match result {
                Ok(()) => {
                    self.applied += 1;
                    self.retries.succeeded(op, total, now);
                    if total > LOGGED {
                        tracing::debug!(rev, %op, "done");
                    } else {
                        tracing::info!(rev, %op, "done");
                    }
                }
                Err(reason) => {
                    failures += 1;
                    tracing::warn!(rev, %op, reason, "the kernel refuses");
                    self.retries.failed(op, reason.clone(), now);
                }
            }
        }
        failures
    }
}
