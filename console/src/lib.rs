//! The console of a node without its sockets: who may ask ([`Access`]), how often ([`Pacer`]), what
//! is asked ([`Question`]), what has changed since ([`EventDiff`]), and the page ([`page_file`]).
//! The program serves it (`node/src/console`); this crate has no clock, no socket and no task.

mod access;
mod events;
mod pacing;
mod page;
mod query;
mod question;

pub use access::{Access, Caller, Denial, Token};
pub use events::{ConsoleEvent, EventDiff, ProblemChange, RouteCounts};
pub use pacing::Pacer;
pub use page::{PageFile, SECURITY_HEADERS, description, page_file};
pub use question::{
    NO_SUCH_PATH, PATHS, Question, QuestionError, RouteQuestion, Table, TopologyQuestion,
};
