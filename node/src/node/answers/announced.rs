//! Whether a pod's addresses are announced: the plan of the pod's revision is the speaker's, and
//! every established session has taken what it is to send. BGP knows no receipt, so this is as far
//! as a sender can see.
//!
//! On a node that started without routes (a machine that booted) the pod waits for the routes of
//! the other nodes as well, a while: without them it begins with packets that get nowhere.
//!
//! Where policy is enforced, the pod waits until its own is in force: until then it is cut off.
//!
//! In Kubernetes' API a later revision of another kind may be published first. There the plan has
//! to know the pod's endpoint and the blocks of its addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use caracal_agent::{AgentStatus, Phase};
use caracal_bgp::{SessionState, SpeakerHandle};
use caracal_datastore::View;
use caracal_model::{Announcement, AwaitAnnouncement, InsertEach, Prefix};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::admin::routes::text;
use crate::node::announce::publish::AnnouncedPlan;
use crate::node::kernel::policy::Enforced;

/// Longest wait that is granted.
const LIMIT: Duration = Duration::from_secs(60);
/// Granted beyond what was asked while the first routes are learned. A plugin waits 5 s longer than
/// it asks for.
pub(crate) const FIRST_ROUTES: Duration = Duration::from_secs(4);
/// Pause between two looks at the sessions; a new plan is looked at immediately.
const LOOK: Duration = Duration::from_millis(20);

/// Scope of a revision of the datastore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// Everything: who is at a revision knows all that came before.
    Whole,
    ByKind,
}

/// Whom to ask whether a pod is announced.
#[derive(Clone)]
pub(crate) struct AnnouncementSources {
    pub(crate) announced: watch::Receiver<AnnouncedPlan>,
    pub(crate) counting: Counting,
    pub(crate) view: watch::Receiver<View>,
    pub(crate) speaker: SpeakerHandle,
    /// The agent, where the kernel had no routes of ours when this process started; and how much
    /// longer a pod waits for them ([`FIRST_ROUTES`]).
    pub(crate) first_routes: Option<(watch::Receiver<Arc<AgentStatus>>, Duration)>,
    /// Policy in the kernel.
    pub(crate) enforced: watch::Receiver<Enforced>,
}

/// Answers when all is announced or the time is over.
///
/// # Errors
/// When the speaker has ended.
pub(crate) async fn wait(
    sources: AnnouncementSources,
    question: &AwaitAnnouncement,
) -> Result<Announcement, String> {
    let AnnouncementSources {
        mut announced,
        counting,
        view,
        speaker,
        first_routes,
        enforced,
    } = sources;
    let asked = Duration::from_millis(question.milliseconds).min(LIMIT);
    let begun = Instant::now();
    loop {
        let learning = first_routes
            .as_ref()
            .filter(|(agent, _)| is_learning(agent));
        let end = begun + asked + learning.map_or(Duration::ZERO, |(_, more)| *more);
        let plan = announced.borrow_and_update().clone();
        // A pod that is written again as it was wakes nobody.
        let followed = view.borrow().followed(plan.revision);
        let missing = behind(&plan, followed, counting, question)
            .or_else(|| {
                let routes = "routes of other nodes are still being learned";
                learning.is_some().then(|| routes.to_owned())
            })
            .or_else(|| unenforced(&enforced.borrow(), &view.borrow(), &question.addresses));
        let answer = match missing {
            Some(missing) => Announcement {
                missing: Some(missing),
                ..Announcement::default()
            },
            None => ask_speaker(&speaker, &plan.originated, &question.addresses).await?,
        };
        if answer.missing.is_none() || Instant::now() >= end {
            return Ok(answer);
        }
        let next = end.min(Instant::now() + LOOK);
        tokio::select! {
            changed = announced.changed() => changed.map_err(text)?,
            () = sleep_until(next) => {}
        }
    }
}

/// Why the policies of the pod with these addresses are not in force; `None`: they are.
fn unenforced(enforced: &Enforced, view: &View, addresses: &[IpAddr]) -> Option<String> {
    if matches!(enforced, Enforced::Off) {
        return None;
    }
    let has = |networks: &[Prefix]| networks.iter().any(|n| addresses.contains(&n.address()));
    let mut own = view.snapshot.workloads.values();
    let own = own.find(|workload| has(&workload.spec.ip_networks))?;
    enforced.lacks(&own.spec.interface_name)
}

fn is_learning(agent: &watch::Receiver<Arc<AgentStatus>>) -> bool {
    let agent = agent.borrow();
    agent.passes == 0 || agent.kernel.phase == Phase::Learning.as_str()
}

/// Reason why the plan does not cover the pod yet; `None`: it does.
fn behind(
    plan: &AnnouncedPlan,
    followed: i64,
    counting: Counting,
    question: &AwaitAnnouncement,
) -> Option<String> {
    if counting == Counting::Whole {
        return (followed < question.revision).then(|| {
            format!(
                "the speaker is at revision {followed} of the datastore, the pod at {}",
                question.revision
            )
        });
    }
    let snapshot = &plan.snapshot;
    let has = |address: &IpAddr| {
        let mut own = snapshot
            .workloads
            .values()
            .flat_map(|w| &w.spec.ip_networks);
        own.any(|network| network.address() == *address)
    };
    question.addresses.iter().find_map(|address| {
        let block = snapshot.block_of(&Prefix::host(*address));
        match (has(address), block.is_some()) {
            (true, true) => None,
            (false, _) => Some(format!(
                "the speaker does not know of the pod with {address}"
            )),
            (true, false) => Some(format!("the speaker does not know the block of {address}")),
        }
    })
}

async fn ask_speaker(
    speaker: &SpeakerHandle,
    originated: &[Prefix],
    addresses: &[IpAddr],
) -> Result<Announcement, String> {
    let mut answer = Announcement {
        prefixes: covering(originated, addresses),
        ..Announcement::default()
    };
    let status = speaker.status().await.map_err(text)?;
    if answer.prefixes.is_empty() || status.peers.is_empty() {
        return Ok(answer);
    }
    let up = |p: &&caracal_bgp::PeerStatus| p.state == SessionState::Established;
    let sessions: Vec<_> = status.peers.iter().filter(up).collect();
    answer.sessions = sessions.len();
    answer.missing = if sessions.is_empty() {
        Some("no session is established".to_owned())
    } else if status.deferring {
        Some("the speaker waits for its peers' routes after a restart".to_owned())
    } else {
        let waiting = sessions.iter().find(|p| p.pending > 0);
        waiting.map(|p| format!("{} changes wait for session {}", p.pending, p.name))
    };
    Ok(answer)
}

/// The longest originated prefix of each address.
fn covering(originated: &[Prefix], addresses: &[IpAddr]) -> Vec<Prefix> {
    let longest = |address: &IpAddr| {
        let covers = originated.iter().filter(|p| p.contains(*address));
        covers.max_by_key(|p| p.len()).copied()
    };
    let prefixes: BTreeSet<_> = addresses.iter().filter_map(longest).insert_each();
    prefixes.into_iter().collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use caracal_bgp::{Speaker, SpeakerOptions};
    use caracal_datastore::{Freshness, StoreId};
    use caracal_model::Snapshot;

    use super::*;

    /// The ends that tell: the agent's, and the planner's.
    type Says = (
        watch::Sender<Arc<AgentStatus>>,
        watch::Sender<AnnouncedPlan>,
    );

    fn view(snapshot: Snapshot) -> View {
        View {
            snapshot: Arc::new(snapshot),
            revision: 0,
            wakes: 0,
            freshness: Freshness::Fresh,
            synced: true,
            fault: None,
            store: StoreId::default(),
            absent: Vec::new(),
        }
    }

    /// Sources without peers, whose agent is in this phase.
    fn sources(phase: &str, more: Duration) -> (Says, AnnouncementSources) {
        let mut status = AgentStatus {
            passes: 1,
            ..AgentStatus::default()
        };
        phase.clone_into(&mut status.kernel.phase);
        let (says, agent) = watch::channel(Arc::new(status));
        let (plans, announced) = watch::channel(AnnouncedPlan::default());
        let config = caracal_templates::parse(
            "define caracal_local_as = 64512;\nrouter id 10.0.0.1;\n#: listen none\n",
        )
        .unwrap();
        let sources = AnnouncementSources {
            announced,
            counting: Counting::ByKind,
            view: watch::channel(view(Snapshot::default())).1,
            speaker: Speaker::spawn(config, SpeakerOptions::default()),
            first_routes: Some((agent, more)),
            enforced: watch::channel(Enforced::Off).1,
        };
        ((says, plans), sources)
    }

    const QUESTION: AwaitAnnouncement = AwaitAnnouncement {
        addresses: Vec::new(),
        revision: 0,
        milliseconds: 0,
    };

    #[tokio::test]
    async fn the_first_pods_of_a_machine_wait_for_the_routes_of_others_a_while() {
        let (_says, learning) = sources("learning", Duration::from_millis(50));
        let answer = wait(learning, &QUESTION).await.unwrap();
        let missing = answer.missing.unwrap();
        assert_eq!(missing, "routes of other nodes are still being learned");

        let (says, learning) = sources("learning", Duration::from_secs(600));
        let waiting = tokio::spawn(async move { wait(learning, &QUESTION).await });
        says.0.send_modify(|status| {
            let mut synced = AgentStatus::clone(status);
            "synced".clone_into(&mut synced.kernel.phase);
            *status = Arc::new(synced);
        });
        assert_eq!(waiting.await.unwrap().unwrap().missing, None);
    }

    #[test]
    fn a_pod_waits_for_its_policies() {
        let address: IpAddr = "10.244.3.65".parse().unwrap();
        let mut snapshot = Snapshot::default();
        let key = "/calico/resources/v3/projectcalico.org/workloadendpoints/d/w";
        let endpoint = br#"{"metadata":{"name":"w","namespace":"d"},"spec":{"node":"n",
            "ipNetworks":["10.244.3.65/32"],"interfaceName":"cali1"}}"#;
        snapshot.apply(key, Some(endpoint), 7);
        let view = view(snapshot);
        let of = |enforced: &Enforced| unenforced(enforced, &view, &[address]);
        assert_eq!(of(&Enforced::Off), None);
        let missing = "the policies of cali1 are not in force yet".to_owned();
        assert_eq!(of(&Enforced::Unknown), Some(missing.clone()));
        let without = Enforced::Policies(Arc::default());
        assert_eq!(of(&without), Some(missing));
    }

    #[test]
    fn by_kind_the_plan_has_to_know_the_pod_and_its_block() {
        let address: IpAddr = "10.244.3.65".parse().unwrap();
        let question = AwaitAnnouncement {
            addresses: vec![address],
            revision: 7,
            milliseconds: 0,
        };
        let mut snapshot = Snapshot::default();
        let said = |snapshot: &Snapshot, counting| {
            let plan = AnnouncedPlan {
                revision: 9,
                snapshot: Arc::new(snapshot.clone()),
                ..AnnouncedPlan::default()
            };
            behind(&plan, plan.revision, counting, &question)
        };
        // Another kind is at revision 9; the pod's has not arrived yet.
        assert_eq!(said(&snapshot, Counting::Whole), None);
        let missing = said(&snapshot, Counting::ByKind).unwrap();
        assert_eq!(
            missing,
            "the speaker does not know of the pod with 10.244.3.65"
        );
        let endpoint = br#"{"metadata":{"name":"n-k8s-w-eth0","namespace":"d"},"spec":{"orchestrator":"k8s",
            "node":"n","endpoint":"eth0","pod":"w","ipNetworks":["10.244.3.65/32"],"interfaceName":"cali1"}}"#;
        let key = "/calico/resources/v3/projectcalico.org/workloadendpoints/d/n-k8s-w-eth0";
        snapshot.apply(key, Some(endpoint), 7);
        let missing = said(&snapshot, Counting::ByKind).unwrap();
        assert_eq!(
            missing,
            "the speaker does not know the block of 10.244.3.65"
        );
        let free = vec!["null"; 64].join(",");
        let block = format!(
            r#"{{"cidr":"10.244.3.64/26","affinity":"host:n","allocations":[{free}],"unallocated":[],"attributes":[]}}"#
        );
        let key = "/calico/ipam/v2/assignment/ipv4/block/10.244.3.64-26";
        snapshot.apply(key, Some(block.as_bytes()), 8);
        assert_eq!(said(&snapshot, Counting::ByKind), None);
    }
}
