//! A table with each code: one thing is wrong with a healthy node, and just that is found.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use caracal_model::{AffinityState, BlockAffinity, BlockOwner, Prefix, ProblemCode, SharedMap};

use super::*;
use crate::actual::{ActualRoute, ActualTarget};
use crate::diff::{Phase, diff};
use crate::kernel_objects::{
    FdbKey, ForwardingTarget, NeighbourKey, NextHop, NextHopObject, RouteKey,
};
use crate::links::Link;
use crate::op::Op;
use crate::ownership::FIRST_OBJECT;
use crate::plan::tests::World;
use crate::problem::problem;
use crate::slice::take_looks;
use crate::testing::apply_op;

mod table;

use table::TABLE;

const VXLAN: &str = "vxlan.calico";

/// A node and all that is compared.
struct Case {
    world: World,
    desired: Desired,
    actual: Actual,
    unreadable: Option<&'static str>,
    stale: Option<&'static str>,
    /// The last revision that anything follows from; `None` = the snapshot's.
    revision: Option<i64>,
    agent: KernelStatus,
    problems: Vec<Problem>,
    rib: AuditRib,
    services: Option<ServiceDifferences>,
}

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn affinity(world: &mut World, cidr: &str, owner: &str, state: AffinityState) {
    let key = caracal_model::Key::Affinity(BlockOwner::Host(owner.into()), prefix(cidr)).to_path();
    let revision = world.snapshot.revision + 1;
    let value = BlockAffinity::new(state).to_json();
    world.snapshot.apply(&key, Some(&value), revision);
}

impl Case {
    /// Node `a` with a pool over VXLAN and one without encapsulation, a workload, a peer `b` with a
    /// block in each pool.
    fn healthy() -> Self {
        let mut world = World::new(r#","vxlanMode":"Always""#);
        world.pool("direct", "10.245.0.0/16", "");
        world.block("10.244.0.0/26", "a", &[(5, "a")]);
        for (cidr, owner) in [("10.245.0.0/26", "a"), ("10.245.1.0/26", "b")] {
            world.block(cidr, owner, &[]);
        }
        for (n, owner) in ["a", "b", "c"].iter().enumerate() {
            let cidr = format!("10.244.{n}.0/26");
            affinity(&mut world, &cidr, owner, AffinityState::Confirmed);
        }
        affinity(&mut world, "10.245.0.0/26", "a", AffinityState::Confirmed);
        affinity(&mut world, "10.245.1.0/26", "b", AffinityState::Confirmed);
        world.workload("pod", "cali123", r#"["10.244.0.5/32"]"#);
        world.learn("10.245.1.0/26", "10.0.0.2");
        let mut links = world.links.clone();
        links.remove("cali456");
        links.by_name_mut("cali123").unwrap().kind = "veth".to_owned();
        world.links = links;
        let own = OwnBlock {
            originated: true,
            advertised_to: BTreeSet::from(["b".to_owned()]),
            withheld: BTreeMap::new(),
        };
        let rib = AuditRib {
            peers: vec![AuditPeer {
                name: "b".to_owned(),
                established: true,
                wrong: None,
                disabled: false,
                state: "Established".to_owned(),
                reason: None,
            }],
            own_blocks: [prefix("10.244.0.0/26"), prefix("10.245.0.0/26")]
                .into_iter()
                .map(|cidr| (cidr, own.clone()))
                .collect(),
            unused: BTreeMap::new(),
            learned: world.learned.clone(),
            drained: None,
        };
        let desired = world.plan();
        let mut actual = Actual {
            links: world.links.clone(),
            ..Actual::default()
        };
        for op in diff(&desired, &actual, Phase::Synced) {
            apply_op(&mut actual, &op).unwrap();
        }
        let agent = KernelStatus {
            phase: "synced".to_owned(),
            revision: desired.revision,
            ..KernelStatus::default()
        };
        Self {
            world,
            desired,
            actual,
            unreadable: None,
            revision: None,
            stale: None,
            agent,
            problems: Vec::new(),
            rib,
            services: None,
        }
    }

    fn audit(&self) -> Vec<Observation> {
        let me = "a".into();
        let inputs = AuditInputs {
            me: &me,
            snapshot: &self.world.snapshot,
            revision: self.revision.unwrap_or(self.world.snapshot.revision),
            stale: self.stale,
            desired: &self.desired,
            agent: &self.agent,
            problems: &self.problems,
            actual: self.unreadable.map_or(Ok(&self.actual), Err),
            rib: Some(&self.rib),
            services: self.services.as_ref(),
        };
        let whole = audit(&inputs);
        // What stood on a device that is made anew is compared in one piece.
        let ops = diff(&self.desired, &self.actual, Phase::Synced);
        let anew = ops.iter().any(|op| matches!(op, Op::DeleteTunnel(_)));
        for most in 1..4 {
            let mut job = AuditJob::new(&inputs);
            let mut done = false;
            while !done {
                take_looks();
                done = job.step(most);
                let looks = take_looks();
                assert!(anew || looks <= most, "{looks} in one step");
            }
            assert_eq!(job.finish(), whole);
        }
        whole
    }

    /// Plans anew, as after a change of the datastore, with the kernel in step.
    fn settle(&mut self) {
        self.desired = self.world.plan();
        self.agent.revision = self.desired.revision;
        for op in diff(&self.desired, &self.actual, Phase::Synced) {
            apply_op(&mut self.actual, &op).unwrap();
        }
    }

    fn route(&self, cidr: &str) -> RouteKey {
        self.desired.routes[&prefix(cidr)].route.key()
    }

    fn foreign(&mut self, cidr: &str, metric: u32) {
        let key = RouteKey {
            prefix: prefix(cidr),
            metric,
        };
        let route = ActualRoute {
            prefix: prefix(cidr),
            metric,
            tos: 0,
            protocol: 4,
            target: ActualTarget::Known(ForwardingTarget::Blackhole),
            mtu: None,
            source: None,
        };
        self.actual.routes.insert(key, vec![route]);
    }

    fn vtep_neighbour(&self) -> NeighbourKey {
        let on_vxlan = |key: &&NeighbourKey| key.link.as_str() == VXLAN;
        self.desired
            .neighbours
            .keys()
            .find(on_vxlan)
            .unwrap()
            .clone()
    }

    /// Routes lead through next-hop objects, and the kernel is in step. Node `b` has a second
    /// block, for which it gets one.
    fn through_objects(&mut self) {
        self.world.block("10.244.1.64/26", "b", &[]);
        affinity(
            &mut self.world,
            "10.244.1.64/26",
            "b",
            AffinityState::Confirmed,
        );
        self.settle();
        self.desired.objects = true;
        for op in diff(&self.desired, &self.actual, Phase::Synced) {
            apply_op(&mut self.actual, &op).unwrap();
        }
    }

    fn vtep_fdb(&self) -> FdbKey {
        self.desired.fdb.keys().next().unwrap().clone()
    }
}

#[test]
fn a_healthy_node_has_no_findings() {
    assert_eq!(Case::healthy().audit(), []);
}

#[test]
fn each_fault_is_found_and_nothing_else() {
    for (number, (fault, code, subject, words)) in TABLE.iter().enumerate() {
        let mut case = Case::healthy();
        fault(&mut case);
        let found = case.audit();
        let [one] = found.as_slice() else {
            panic!("case {number}, {}: {found:#?}", code.as_str())
        };
        assert_eq!(one.code, *code, "case {number}: {one:?}");
        assert!(one.subject.contains(subject), "case {number}: {one:?}");
        assert!(one.seen.contains(words), "case {number}: {one:?}");
    }
}

#[test]
fn every_code_has_a_case_and_a_name_of_its_own() {
    let tested: BTreeSet<AuditCode> = TABLE.iter().map(|(_, code, ..)| *code).collect();
    assert_eq!(tested, AuditCode::ALL.iter().copied().collect());
    let names: BTreeSet<&str> = AuditCode::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(names.len(), AuditCode::ALL.len());
}

/// A write that nothing follows from is planned by nobody, and nobody is behind it.
#[test]
fn nobody_is_behind_a_change_that_woke_nobody() {
    let mut case = Case::healthy();
    case.revision = Some(case.agent.revision);
    case.world.snapshot.revision += 2;
    assert_eq!(case.audit(), []);
}

#[test]
fn without_bgp_nothing_is_said_of_it() {
    let mut case = Case::healthy();
    case.world.learned.clear();
    case.settle();
    let me = "a".into();
    let found = audit(&AuditInputs {
        me: &me,
        snapshot: &case.world.snapshot,
        revision: case.world.snapshot.revision,
        stale: None,
        desired: &case.desired,
        agent: &case.agent,
        problems: &[],
        actual: Ok(&case.actual),
        rib: None,
        services: None,
    });
    assert_eq!(found, []);
}

#[test]
fn another_node_of_a_similar_name_does_not_explain_a_missing_path() {
    let mut case = Case::healthy();
    case.world.learned.clear();
    case.rib.learned = SharedMap::default();
    case.settle();
    let other = problem(
        ProblemCode::AgentNoVtep,
        "pool p",
        "routes to bb, b-2 are not installed".to_owned(),
    );
    case.desired.problems.insert(other);
    assert_eq!(case.audit()[0].code, AuditCode::NoPathToBlock);
    let this = problem(
        ProblemCode::AgentNoVtep,
        "pool p",
        "routes to c, b: not installed".to_owned(),
    );
    case.desired.problems.insert(this);
    assert_eq!(case.audit(), []);
}

#[test]
fn many_findings_of_one_code_are_a_few_and_a_number() {
    let mut case = Case::healthy();
    for n in 0..=255u8 {
        let route = case.desired.routes[&prefix("10.245.1.0/26")].clone();
        let other = Prefix::v4([10, 200, n, 0].into(), 24);
        let mut route = route;
        route.route.prefix = other;
        case.desired.routes.insert(other, route);
    }
    let found = case.audit();
    assert_eq!(found.len(), NAMED + 1);
    assert_eq!(found[NAMED].seen, "206 more of these");
}

fn observed(code: AuditCode) -> Vec<Observation> {
    vec![Observation::new(code, "x", "y")]
}

#[test]
fn a_finding_counts_when_it_is_older_than_its_grace_and_did_not_go_away() {
    let mut ages = FindingAges::default();
    let start = Instant::now();
    let code = AuditCode::RouteMissing;
    let at = |seconds: u64| start + Duration::from_secs(seconds);
    let counts = |findings: Vec<AuditFinding>| findings[0].counts;
    assert!(!counts(ages.update(at(0), observed(code))));
    assert!(!counts(ages.update(at(9), observed(code))));
    assert!(ages.update(at(9), vec![]).is_empty());
    assert!(
        !counts(ages.update(at(10), observed(code))),
        "the age starts again"
    );
    let old = ages.update(at(20), observed(code));
    assert_eq!((old[0].counts, old[0].age_seconds), (true, 10));
    assert_eq!(old[0].sentence, format!("y; {}", code.remedy()));
    // Findings that count come first, whatever their code.
    let mut both = observed(AuditCode::BlockNotAnnounced);
    both.extend(observed(code));
    let found = ages.update(at(21), both);
    let codes: Vec<&str> = found.iter().map(|f| f.code.as_str()).collect();
    assert_eq!(codes, ["CRL-R001", "CRL-B003"]);
    assert!(
        !counts(ages.update(at(99), observed(AuditCode::Drained))),
        "a notice"
    );
}

#[test]
fn a_lost_peer_counts_when_the_speaker_says_so_and_a_disabled_one_never() {
    let mut peer = AuditPeer {
        name: "tor".to_owned(),
        established: false,
        wrong: None,
        disabled: false,
        state: "Active".to_owned(),
        reason: Some("TCP 179 refused".to_owned()),
    };
    let counts = |peer: &AuditPeer| {
        let mut case = Case::healthy();
        case.rib.peers.push(peer.clone());
        let found = case.audit();
        let found = found.into_iter().filter(|o| o.subject == "tor").collect();
        let findings = FindingAges::default().update(Instant::now(), found);
        (findings[0].code.clone(), findings[0].counts)
    };
    assert_eq!(counts(&peer), ("CRL-B001".to_owned(), false));
    peer.wrong = Some("the session is refused: TCP 179 refused".to_owned());
    assert_eq!(counts(&peer), ("CRL-B001".to_owned(), true));
    peer.disabled = true;
    assert_eq!(counts(&peer), ("CRL-B008".to_owned(), false));
}
