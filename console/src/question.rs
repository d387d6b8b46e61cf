//! What is asked: a path of the API with its parameters.

use caracal_model::Prefix;

use crate::query::{Query, decode};

/// Routes of a page of an answer, where nobody says how many.
const PAGE: usize = 200;
/// Most routes of a page.
const LARGEST_PAGE: usize = 1000;
/// What all paths of the API begin with.
const BASE: &str = "/api/v1/";

/// The paths of the API, as its description has them.
pub const PATHS: [&str; 20] = [
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
            let query = path.ends_with("explain").then_some("destination=10.0.0.1");
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
