//! What is asked: a path of the API with its parameters.

use caracal_model::{EncapMode, Prefix};

use crate::query::{Query, decode};

/// Routes of a page of an answer, where nobody says how many.
const PAGE: usize = 200;
/// Most routes of a page.
const LARGEST_PAGE: usize = 1000;
/// What all paths of the API begin with.
const BASE: &str = "/api/v1/";

/// The paths of the API, as its description has them.
pub const PATHS: [&str; 22] = [
    "/api/v1/openapi.json",
    "/api/v1/status",
    "/api/v1/sessions",
    "/api/v1/sessions/{peer}",
    "/api/v1/routes",
    "/api/v1/blocks",
    "/api/v1/kernel",
    "/api/v1/pools",
    "/api/v1/nodes",
    "/api/v1/nodes/{node}/status",
    "/api/v1/nodes/{node}/sessions",
    "/api/v1/nodes/{node}/sessions/{peer}",
    "/api/v1/nodes/{node}/routes",
    "/api/v1/nodes/{node}/blocks",
    "/api/v1/nodes/{node}/kernel",
    "/api/v1/nodes/{node}/audit",
    "/api/v1/nodes/{node}/explain",
    "/api/v1/audit",
    "/api/v1/explain",
    "/api/v1/plan/mode",
    "/api/v1/plan/topology",
    "/api/v1/events",
];

/// What is said to who asks for another path; one node knows by it that another is older.
pub const NO_SUCH_PATH: &str = "there is no such path; /api/v1/openapi.json lists those that are";

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// The description of the API.
    Description,
    /// The node at a glance.
    Status,
    /// All peers.
    Sessions,
    /// One peer in full.
    Session {
        /// Its name, its address or its BGPPeer.
        peer: String,
    },
    /// A page of routes.
    Routes(RouteQuestion),
    /// The node's blocks.
    Blocks,
    /// The kernel as the agent sees it.
    Kernel,
    /// The cluster's pools.
    Pools,
    /// The cluster's nodes and their sessions.
    Nodes,
    /// The auditor's findings.
    Audit,
    /// A destination from the datastore to the kernel.
    Explain {
        /// The destination.
        destination: Prefix,
    },
    /// What another encapsulation of a pool would do.
    PlanMode {
        /// The pool.
        pool: String,
        /// Its new `ipipMode`.
        ipip: EncapMode,
        /// Its new `vxlanMode`.
        vxlan: EncapMode,
    },
    /// What another topology would do.
    PlanTopology(TopologyQuestion),
    /// What changes from now on.
    Events,
    /// What a node of the cluster is asked.
    OfNode {
        /// The node.
        node: String,
        /// The question, which each node answers itself.
        question: Box<Self>,
        /// Its path behind the API's version, with its parameters.
        path: String,
    },
}

/// Which topology is asked about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopologyQuestion {
    /// Elected reflectors; else the mesh.
    pub auto: bool,
    /// Up to so many nodes there is a mesh.
    pub limit: Option<usize>,
    /// Reflectors of a zone besides the standby.
    pub reflectors: Option<usize>,
    /// Levels of reflectors.
    pub levels: Option<usize>,
}

/// Which routes are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteQuestion {
    /// The table.
    pub table: Table,
    /// Of whom, where the table is a peer's.
    pub peer: Option<String>,
    /// Only routes to it.
    pub prefix: Option<Prefix>,
    /// And to those inside it.
    pub longer: bool,
    /// Only best paths.
    pub best: bool,
    /// Only what comes behind this prefix.
    pub after: Option<Prefix>,
    /// Routes of the page; those of its last prefix are all there.
    pub limit: usize,
}

/// A table of the speaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// All accepted paths.
    Routes,
    /// What a peer has announced.
    Received,
    /// What is announced to a peer.
    Advertised,
}

/// Why there is no question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuestionError {
    /// The API has no such path.
    NoSuchPath,
    /// A parameter cannot be used.
    Invalid(String),
}

impl From<String> for QuestionError {
    fn from(reason: String) -> Self {
        Self::Invalid(reason)
    }
}

impl Question {
    /// Reads the path and the query of a request.
    ///
    /// # Errors
    /// [`QuestionError`].
    pub fn parse(path: &str, query: Option<&str>) -> Result<Self, QuestionError> {
        let name = path.strip_prefix(BASE).ok_or(QuestionError::NoSuchPath)?;
        if let Some((node, asked)) = name.strip_prefix("nodes/").and_then(|n| n.split_once('/')) {
            return of_node(node, asked, query);
        }
        let mut query = Query::parse(query)?;
        let question = match name {
            "openapi.json" => Self::Description,
            "status" => Self::Status,
            "sessions" => Self::Sessions,
            "routes" => return routes(query).map(Self::Routes),
            "blocks" => Self::Blocks,
            "kernel" => Self::Kernel,
            "pools" => Self::Pools,
            "nodes" => Self::Nodes,
            "audit" => Self::Audit,
            "events" => Self::Events,
            "plan/mode" => return mode(query),
            "plan/topology" => return topology(query).map(Self::PlanTopology),
            "explain" => {
                let destination = prefix(&mut query, "destination")?;
                query.finish("destination")?;
                return match destination {
                    Some(destination) => Ok(Self::Explain { destination }),
                    None => Err("destination=ADDRESS or PREFIX is missing".to_owned().into()),
                };
            }
            other => match other.strip_prefix("sessions/") {
                Some(peer) if !peer.is_empty() && !peer.contains('/') => Self::Session {
                    peer: decode(peer)?,
                },
                _ => return Err(QuestionError::NoSuchPath),
            },
        };
        query.finish("")?;
        Ok(question)
    }
}

/// A question to a node. What a node asks others, or tells as it happens, is not passed on.
fn of_node(node: &str, asked: &str, query: Option<&str>) -> Result<Question, QuestionError> {
    let question = Question::parse(&format!("{BASE}{asked}"), query)?;
    let is_its_own = match question {
        Question::Status
        | Question::Sessions
        | Question::Session { .. }
        | Question::Routes(_)
        | Question::Blocks
        | Question::Kernel
        | Question::Audit
        | Question::Explain { .. } => true,
        Question::Description
        | Question::Pools
        | Question::Nodes
        | Question::PlanMode { .. }
        | Question::PlanTopology(_)
        | Question::Events
        | Question::OfNode { .. } => false,
    };
    if !is_its_own || node.is_empty() {
        return Err(QuestionError::NoSuchPath);
    }
    let query = query.map(|query| format!("?{query}"));
    Ok(Question::OfNode {
        node: decode(node)?,
        question: Box::new(question),
        path: format!("{asked}{}", query.unwrap_or_default()),
    })
}

fn routes(mut query: Query) -> Result<RouteQuestion, QuestionError> {
    let table = query.value(
        "table",
        "routes, received or advertised",
        |text| match text {
            "routes" => Some(Table::Routes),
            "received" => Some(Table::Received),
            "advertised" => Some(Table::Advertised),
            _ => None,
        },
    )?;
    let limit = query.value("limit", "a number, 1 to 1000", |text| {
        let number = text.parse().ok();
        number.filter(|number| (1..=LARGEST_PAGE).contains(number))
    })?;
    let question = RouteQuestion {
        table: table.unwrap_or(Table::Routes),
        peer: query.text("peer"),
        prefix: prefix(&mut query, "prefix")?,
        longer: query.flag("longer")?,
        best: query.flag("best")?,
        after: prefix(&mut query, "after")?,
        limit: limit.unwrap_or(PAGE),
    };
    query.finish("table, peer, prefix, longer, best, after and limit")?;
    if question.longer && question.prefix.is_none() {
        return Err("longer=true needs a prefix".to_owned().into());
    }
    if question.table != Table::Routes && question.peer.is_none() {
        let reason = "the tables received and advertised are a peer's: peer=NAME is missing";
        return Err(reason.to_owned().into());
    }
    if question.table == Table::Advertised && question.best {
        let reason = "what is advertised has no best paths: leave best out";
        return Err(reason.to_owned().into());
    }
    Ok(question)
}

/// Encapsulations of a pool, by the words of Calico's operator.
const MODES: [(&str, EncapMode, EncapMode); 5] = [
    ("None", EncapMode::Never, EncapMode::Never),
    ("IPIP", EncapMode::Always, EncapMode::Never),
    ("IPIPCrossSubnet", EncapMode::CrossSubnet, EncapMode::Never),
    ("VXLAN", EncapMode::Never, EncapMode::Always),
    ("VXLANCrossSubnet", EncapMode::Never, EncapMode::CrossSubnet),
];

fn mode(mut query: Query) -> Result<Question, QuestionError> {
    let expected = "None, IPIP, IPIPCrossSubnet, VXLAN or VXLANCrossSubnet";
    let mode = query.value("mode", expected, |text| {
        MODES
            .iter()
            .find(|(word, ..)| word.eq_ignore_ascii_case(text))
    })?;
    let pool = query.text("pool");
    query.finish("pool and mode")?;
    let pool = pool.ok_or_else(|| "pool=NAME is missing; /api/v1/pools lists them".to_owned())?;
    let (_, ipip, vxlan) = mode.ok_or_else(|| format!("mode=MODE is missing: {expected}"))?;
    Ok(Question::PlanMode {
        pool,
        ipip: *ipip,
        vxlan: *vxlan,
    })
}

fn topology(mut query: Query) -> Result<TopologyQuestion, QuestionError> {
    let auto = query.value("topology", "mesh or reflectors", |text| match text {
        "mesh" => Some(false),
        "reflectors" => Some(true),
        _ => None,
    })?;
    let mut number = |name, expected, most| {
        query.value(name, expected, |text| {
            let number: Option<usize> = text.parse().ok();
            number.filter(|number| (1..=most).contains(number))
        })
    };
    let limit = number("limit", "a number of nodes, at least 1", usize::MAX)?;
    let reflectors = number(
        "reflectors",
        "a number of reflectors, at least 1",
        usize::MAX,
    )?;
    let levels = number("levels", "1 or 2", 2)?;
    query.finish("topology, limit, reflectors and levels")?;
    let missing = "topology=mesh or topology=reflectors is missing";
    let auto = auto.ok_or_else(|| missing.to_owned())?;
    if !auto && (limit.is_some() || reflectors.is_some() || levels.is_some()) {
        let reason = "limit, reflectors and levels are for topology=reflectors";
        return Err(reason.to_owned().into());
    }
    Ok(TopologyQuestion {
        auto,
        limit,
        reflectors,
        levels,
    })
}

/// A prefix, or an address for its host prefix.
fn prefix(query: &mut Query, name: &str) -> Result<Option<Prefix>, String> {
    query.value(name, "an address or a prefix", |text| {
        text.trim().parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_of_the_list_is_a_question_and_no_other_is() {
        for path in PATHS {
            let path = path.replace("{peer}", "10.0.0.2").replace("{node}", "n2");
            let query = match path.rsplit_once('/') {
                Some((_, "explain")) => Some("destination=10.0.0.1"),
                Some((_, "mode")) => Some("pool=p&mode=vxlan"),
                Some((_, "topology")) => Some("topology=mesh"),
                _ => None,
            };
            assert!(Question::parse(&path, query).is_ok(), "{path}");
        }
        for path in [
            "/api/v1/",
            "/api/v2/status",
            "/api/v1/sessions/",
            "/api/v1/sessions/a/b",
            "/api/v1/statuses",
            "/api/v1/nodes/",
            "/api/v1/nodes//status",
            "/api/v1/nodes/n2",
            "/api/v1/nodes/n2/pools",
            "/api/v1/nodes/n2/nodes",
            "/api/v1/nodes/n2/events",
            "/api/v1/nodes/n2/openapi.json",
            "/api/v1/nodes/n2/nodes/n3/status",
        ] {
            let parsed = Question::parse(path, None);
            assert_eq!(parsed, Err(QuestionError::NoSuchPath), "{path}");
        }
    }

    #[test]
    fn a_node_is_asked_what_it_answers_itself() {
        let query = Some("peer=tor%20a&limit=7");
        let parsed = Question::parse("/api/v1/nodes/n%32/routes", query);
        let Ok(Question::OfNode {
            node,
            question,
            path,
        }) = parsed
        else {
            panic!("{parsed:?}");
        };
        assert_eq!(
            (&*node, &*path),
            ("n2", "routes?peer=tor%20a&limit=7"),
            "as it was asked"
        );
        assert!(matches!(*question, Question::Routes(_)));
        // It is judged here, too.
        let wrong = Question::parse("/api/v1/nodes/n2/routes", Some("limit=0"));
        assert!(matches!(wrong, Err(QuestionError::Invalid(_))), "{wrong:?}");
    }

    #[test]
    fn routes_are_asked_for_by_prefix_and_peer() {
        let query = "prefix=10.244.0.0%2F16&longer=true&peer=tor+a&limit=7&after=10.244.1.0/26";
        let parsed = Question::parse("/api/v1/routes", Some(query));
        let Ok(Question::Routes(routes)) = parsed else {
            panic!("{parsed:?}");
        };
        assert_eq!(routes.peer.as_deref(), Some("tor a"));
        assert_eq!(routes.limit, 7);
        assert!(routes.longer && !routes.best && routes.table == Table::Routes);
        assert_eq!(
            routes.after.map(|p| p.to_string()).as_deref(),
            Some("10.244.1.0/26")
        );
    }

    #[test]
    fn a_plan_is_asked_for_by_the_words_of_its_command() {
        use EncapMode::{Always, CrossSubnet, Never};
        for (word, wanted) in [
            ("None", (Never, Never)),
            ("IPIP", (Always, Never)),
            ("ipipcrosssubnet", (CrossSubnet, Never)),
            ("VXLAN", (Never, Always)),
            ("VXLANCrossSubnet", (Never, CrossSubnet)),
        ] {
            let query = format!("pool=a+b&mode={word}");
            let parsed = Question::parse("/api/v1/plan/mode", Some(&query));
            let (ipip, vxlan) = wanted;
            let pool = "a b".to_owned();
            assert_eq!(parsed, Ok(Question::PlanMode { pool, ipip, vxlan }));
        }
        let query = "topology=reflectors&limit=9&levels=2";
        let parsed = Question::parse("/api/v1/plan/topology", Some(query));
        let wanted = TopologyQuestion {
            auto: true,
            limit: Some(9),
            reflectors: None,
            levels: Some(2),
        };
        assert_eq!(parsed, Ok(Question::PlanTopology(wanted)));
    }

    #[test]
    fn a_parameter_that_cannot_be_used_is_named() {
        for (path, query, part) in [
            ("status", "x=1", "the parameter x is not known"),
            ("routes", "limit=0", "expected a number, 1 to 1000"),
            ("routes", "prefix=10.0.0", "expected an address or a prefix"),
            ("routes", "longer=true", "needs a prefix"),
            ("routes", "table=received", "peer=NAME is missing"),
            (
                "routes",
                "table=advertised&peer=x&best=true",
                "leave best out",
            ),
            ("routes", "perfix=10.0.0.0/8", "there are table, peer"),
            ("explain", "", "destination=ADDRESS"),
            ("plan/mode", "", "pool=NAME is missing"),
            ("plan/mode", "mode=VXLAN", "pool=NAME is missing"),
            ("plan/mode", "pool=p", "mode=MODE is missing: None, IPIP"),
            ("plan/mode", "pool=p&mode=GRE", "expected None, IPIP"),
            (
                "plan/mode",
                "pool=p&mode=IPIP&apply=true",
                "there are pool and mode",
            ),
            ("plan/topology", "", "topology=mesh or topology=reflectors"),
            (
                "plan/topology",
                "topology=star",
                "expected mesh or reflectors",
            ),
            (
                "plan/topology",
                "topology=mesh&limit=5",
                "are for topology=reflectors",
            ),
            (
                "plan/topology",
                "topology=reflectors&levels=3",
                "expected 1 or 2",
            ),
            (
                "plan/topology",
                "topology=reflectors&reflectors=0",
                "at least 1",
            ),
        ] {
            let path = format!("{BASE}{path}");
            match Question::parse(&path, Some(query)) {
                Err(QuestionError::Invalid(reason)) => {
                    assert!(reason.contains(part), "{query}: {reason}");
                }
                other => panic!("{query}: {other:?}"),
            }
        }
    }
}
