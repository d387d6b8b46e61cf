//! The task that makes the kernel as somebody else's plan wants it: read, plan, compare, write. For
//! networks that are not Calico's; plan and inputs are given, the comparison and the writing are
//! the agent's own.
//!
//! Everything is read and compared again when an input changes, when somebody else changed an
//! interface, a route or an entry, and from time to time.

use std::sync::Arc;
use std::time::Duration;

use caracal_model::Problem;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::read::hints::Listener;
use super::read::monitor;
use super::{chain, read, write};
use crate::dataplane::netlink::{Netlink, NetlinkError};
use crate::dataplane::read::MAIN_TABLE;
use crate::desired::Desired;
use crate::diff::{Phase, conflicts, diff};
use crate::links::Links;
use crate::op::Op;

/// Everything is read again after this long, whatever was heard: flannel's own interval.
const RESYNC: Duration = Duration::from_secs(10);
/// Wait before the next attempt after a failure; doubled up to [`RESYNC`].
const RETRY: Duration = Duration::from_millis(500);
/// After a pass, nothing of the kind for so many times as long as it took.
const REST: u32 = 4;

/// What may be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// Nothing but devices that have to be made anew: it is not known yet who else is there.
    Nothing,
    /// All that is ours and unwanted.
    Unwanted,
}

/// State of the task.
#[derive(Clone, Debug, Default)]
pub struct PlannedStatus {
    /// Times that the kernel was compared with the plan.
    pub passes: u64,
    /// Interfaces as the last pass left them.
    pub links: Links,
    /// Routes of the last plan, without those that are a part of the way to others.
    pub routes: usize,
    /// Operations that were carried out since the start.
    pub applied: u64,
    /// Faults that the last plan and the last pass found.
    pub problems: Vec<Problem>,
    /// Operations that the kernel refused in the last pass, with its reason.
    pub refused: Vec<(String, String)>,
}

/// Starts the task in the calling thread's network namespace. `plan` says for the inputs and the
/// interfaces what the kernel is to hold and what may be deleted. Once the inputs' sender is
/// dropped, the task ends and leaves the kernel as it is. Answers with the state, which changes
/// with each pass.
///
/// # Errors
/// [`NetlinkError`] when there are no sockets to be had.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn spawn_planned<I, F>(
    inputs: watch::Receiver<Arc<I>>,
    plan: F,
) -> Result<watch::Receiver<Arc<PlannedStatus>>, NetlinkError>
where
    I: Send + Sync + 'static,
    F: Fn(&I, &Links) -> (Desired, Sweep) + Send + 'static,
{
    let wake_up = Arc::new(Notify::new());
    let sockets = Sockets::open(&wake_up)?;
    let (status, status_receiver) = watch::channel(Arc::new(PlannedStatus::default()));
    let writer = Writer {
        inputs,
        plan,
        sockets,
        wake_up,
        status,
        current: PlannedStatus::default(),
    };
    tokio::spawn(writer.run());
    Ok(status_receiver)
}

struct Sockets {
    netlink: Netlink,
    /// Held for its task.
    _monitor: Listener,
}

impl Sockets {
    fn open(wake_up: &Arc<Notify>) -> Result<Self, NetlinkError> {
        let netlink = Netlink::open()?;
        let monitor = monitor::start_for(Arc::clone(wake_up), netlink.port(), vec![MAIN_TABLE])?;
        Ok(Self {
            netlink,
            _monitor: monitor,
        })
    }
}

struct Writer<I, F> {
    inputs: watch::Receiver<Arc<I>>,
    plan: F,
    sockets: Sockets,
    wake_up: Arc<Notify>,
    status: watch::Sender<Arc<PlannedStatus>>,
    current: PlannedStatus,
}

impl<I, F> Writer<I, F>
where
    I: Send + Sync + 'static,
    F: Fn(&I, &Links) -> (Desired, Sweep) + Send + 'static,
{
    async fn run(mut self) {
        let mut failures = 0;
        loop {
            let started = Instant::now();
            let clean = match self.pass().await {
                Ok(clean) => clean,
                Err(error) => {
                    self.unreadable(&error);
                    false
                }
            };
            failures = if clean { 0 } else { failures + 1 };
            self.current.passes += 1;
            self.status.send_replace(Arc::new(self.current.clone()));
            let earliest = Instant::now() + started.elapsed() * REST;
            let again = match failures {
                0 => RESYNC,
                n => (RETRY * (1 << n.min(10))).min(RESYNC),
            };
            tokio::select! {
                changed = self.inputs.changed() => if changed.is_err() { return },
                () = self.wake_up.notified() => {}
                () = tokio::time::sleep(again) => {}
            }
            tokio::time::sleep_until(earliest).await;
        }
    }

    /// True when nothing was refused.
    async fn pass(&mut self) -> Result<bool, NetlinkError> {
        let inputs = Arc::clone(&self.inputs.borrow_and_update());
        let links = read::links(&self.sockets.netlink).await?;
        let (desired, sweep) = (self.plan)(&inputs, &links);
        let has_fdb = |name: &str| desired.ownership.is_vxlan(name);
        let mut actual = read::actual_with(&mut self.sockets.netlink, has_fdb).await?;
        let mut ops = operations(&desired, &actual, sweep);
        // What stands on a device needs its number, which it has once it is there.
        if ops.iter().any(|op| matches!(op, Op::AddTunnel(_))) {
            // What is not wanted any more waits until routes lead elsewhere.
            ops.retain(|op| match op {
                Op::AddTunnel(_) => true,
                Op::DeleteTunnel(name) => desired.tunnels.contains_key(name),
                _ => false,
            });
            self.write(&ops, &actual.links).await?;
            actual = read::actual_with(&mut self.sockets.netlink, has_fdb).await?;
            ops = operations(&desired, &actual, sweep);
        }
        let refused = self.write(&ops, &actual.links).await?;
        if ops.iter().any(|op| matches!(op, Op::DeleteTunnel(_))) {
            actual.links = read::links(&self.sockets.netlink).await?;
        }
        let mut problems: Vec<Problem> = desired.problems.iter().cloned().collect();
        problems.extend(conflicts(&desired, &actual));
        if problems != self.current.problems {
            for problem in &problems {
                tracing::warn!(code = problem.code.as_str(), subject = %problem.subject, "{}", problem.reason);
            }
        }
        self.current.problems = problems;
        let destinations = desired.routes.values().filter(|r| !r.is_vtep());
        self.current.routes = destinations.count();
        self.current.links = actual.links;
        let clean = refused.is_empty();
        self.current.refused = refused;
        Ok(clean)
    }

    /// Answers with what was refused.
    async fn write(
        &mut self,
        ops: &[Op],
        links: &Links,
    ) -> Result<Vec<(String, String)>, NetlinkError> {
        let results = write::send(&mut self.sockets.netlink, ops, links).await?;
        let mut refused = Vec::new();
        for (op, result) in ops.iter().zip(results) {
            match result {
                Ok(()) => {
                    self.current.applied += 1;
                    tracing::info!("{op}");
                }
                Err(reason) => {
                    tracing::warn!(%reason, "refused: {op}");
                    refused.push((op.to_string(), reason));
                }
            }
        }
        Ok(refused)
    }

    fn unreadable(&mut self, error: &NetlinkError) {
        let reason = chain(error);
        tracing::error!(%reason, "the kernel's state cannot be read");
        // A socket with lost answers is not to be trusted any more.
        match Sockets::open(&self.wake_up) {
            Ok(sockets) => self.sockets = sockets,
            Err(error) => tracing::error!(reason = chain(&error), "no new netlink socket"),
        }
    }
}

fn operations(desired: &Desired, actual: &crate::actual::Actual, sweep: Sweep) -> Vec<Op> {
    let mut ops = diff(desired, actual, Phase::Synced);
    if sweep == Sweep::Nothing {
        ops.retain(|op| match op {
            Op::DeleteTunnel(name) => desired.tunnels.contains_key(name),
            op => !op.is_delete(),
        });
    }
    ops
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::actual::{Actual, ActualRoute};
    use crate::kernel_objects::{ForwardingTarget, Route, Tunnel, TunnelDevice};
    use crate::links::Link;
    use crate::ownership::{FLANNEL_PROTOCOL, Ownership};

    #[test]
    fn agent_4_before_it_is_known_who_is_there_only_wrong_devices_go() {
        let mut actual = Actual::default();
        let mut device = Link::new(7, "flannel.1");
        device.kind = "vxlan".into();
        actual.links.insert(Link::new(2, "eth0"));
        actual.links.insert(device);
        actual.push_route(ActualRoute::from(Route {
            prefix: "10.5.9.0/24".parse().unwrap(),
            metric: 0,
            protocol: FLANNEL_PROTOCOL,
            target: ForwardingTarget::via(Some("10.0.0.9".parse().unwrap()), &"eth0".into(), false),
            mtu: None,
            source: None,
        }));
        let ownership =
            Ownership::flannel(vec!["flannel.1".into()], Vec::new(), std::iter::empty());
        let tunnel = Tunnel {
            name: "flannel.1".into(),
            kind: TunnelDevice::Vxlan {
                vni: 1,
                port: 8472,
                local: "10.0.0.1".parse().unwrap(),
                parent: "eth0".into(),
                mac: [2, 0, 0, 0, 0, 1],
            },
            mtu: 1450,
            address: None,
        };
        let mut desired = Desired {
            tunnels: [(tunnel.name.clone(), tunnel)].into(),
            ownership,
            ..Desired::default()
        };
        let shown = |desired: &Desired, sweep| -> Vec<String> {
            let ops = operations(desired, &actual, sweep);
            ops.iter().map(ToString::to_string).collect()
        };
        let anew = [
            "delete device flannel.1",
            "add vxlan device flannel.1 mtu 1450",
        ];
        assert_eq!(shown(&desired, Sweep::Nothing), anew);
        assert_eq!(shown(&desired, Sweep::Unwanted)[..2], anew);
        assert_eq!(
            shown(&desired, Sweep::Unwanted).len(),
            3,
            "the route goes, too"
        );
        desired.tunnels.clear();
        assert_eq!(shown(&desired, Sweep::Nothing), [""; 0]);
        assert_eq!(shown(&desired, Sweep::Unwanted).len(), 2);
    }
}
