//! The speaker's configuration as text, and back.
//!
//! # Order of calls
//!
//! Call [`render`] with a [`SpeakerConfig`] and [`Options`]; [`parse`] or [`parse_file`] read the
//! text back. [`Templates`] holds the sets for other daemons ([`Set`]): take the shipped ones, put
//! files of the user over them, then render with a context.
//!
//! ```
//! use caracal_templates::{Options, parse, render};
//!
//! let text = "router id 10.0.0.1;\n\
//!     protocol bgp tor { local as 64512; neighbor 10.0.0.254 as 65000;\n\
//!       ipv4 { import all; export all; }; }\n";
//! let config = parse(text).expect("BIRD's language");
//! let again = render(&config, &Options::default()).expect("everything can be written");
//! assert_eq!(parse(&again).expect("what was rendered"), config);
//! ```
//!
//! # What is where
//!
//! Inside the process the configuration travels as a value; the text is what people read (`caracal
//! render`), what a real BIRD daemon runs, and the file format of a speaker without a datastore.
//! The two directions are held together by one property, cited by tests:
//!
//! * `TEXT-1` `parse(render(config)) == config`, for every configuration that can be rendered.
//! * `TEXT-2` What is rendered in the style `bird2` is accepted by BIRD 2 (`bird -p`).
//! * `TEXT-3` A password is printed only when asked for, and a text without its passwords does not
//!   parse: a session never loses its authentication by a round trip.
//!
//! | module | what it is |
//! |---|---|
//! | `context` | what a template sees: documented, stable |
//! | [`Templates`] | the sets of templates, what users put over them, and where a template is wrong |
//! | `symbols` | names as BIRD can write them |
//! | `grammar` | the subset of BIRD's language that is read back |
//! | `source` | a file with those that it includes |
//! | `error` | where a text does not parse, and how that is shown |
//!
//! Pure: no files, no programs. Templates are part of the binary.

mod context;
mod error;
mod grammar;
mod pieces;
mod set;
mod source;
mod symbols;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::LazyLock;

use caracal_bgp::SpeakerConfig;
use caracal_model::Prefix;

pub use context::Context;
pub use error::{ParseError, ParseErrors};
pub use grammar::{
    Cache, ChooseRouterId, Direct, Dump, File, KernelTable, Learn, Learned, Surroundings, Texts,
    eval, parse, parse_file, read_file,
};
pub use set::{Rendered, Set, TemplateError, Templates};
pub use source::Include;

/// Options of a rendering.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Language of the text.
    pub style: Style,
    /// Purpose of the text.
    pub role: Role,
    /// Print passwords. A text for a daemon has them always; it would be of no use without.
    pub show_passwords: bool,
}

/// Language of the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Style {
    /// BIRD 2, both families in one file.
    #[default]
    Bird2,
}

/// Purpose of the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// For people, and for `caracal speaker`.
    #[default]
    View,
    /// For a real daemon that also programs the kernel.
    Daemon(Daemon),
}

/// Facts about the kernel that a daemon needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Daemon {
    /// Pools whose traffic between nodes is encapsulated. The daemon cannot program such routes and
    /// leaves them out, with a comment.
    pub tunnelled: Vec<Tunnelled>,
    /// Ranges that never go to the kernel: kube-proxy serves them.
    pub rejected: BTreeSet<Prefix>,
    /// Routes to peers, through these gateways.
    pub reachable_by: BTreeMap<Prefix, IpAddr>,
    /// Patterns of interfaces whose addresses the daemon does not take.
    pub ignored_interfaces: Vec<String>,
}

/// A range that is reached through tunnels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tunnelled {
    /// Range of the pool.
    pub prefix: Prefix,
    /// The encapsulation, for the comment: `VXLAN`, `IPIP`.
    pub encap: &'static str,
    /// Next hops in this subnet need no tunnel, so the daemon programs routes through them.
    pub direct_within: Option<Prefix>,
}

/// Why a configuration has no text.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// BIRD's language has no way to write this value.
    #[error("{what}: {value} cannot be written; {reason}")]
    Inexpressible {
        /// Which peer, route or filter, and what of it.
        what: String,
        /// The value as text.
        value: String,
        /// Supported alternative.
        reason: &'static str,
    },
    /// A template is at fault.
    #[error("a template could not be rendered")]
    Template(#[source] Box<TemplateError>),
}

static SHIPPED: LazyLock<Templates> = LazyLock::new(|| Templates::shipped(Set::Bird2));

/// Renders a configuration.
///
/// # Errors
/// [`RenderError`] when a value has no form in the language.
pub fn render(config: &SpeakerConfig, options: &Options) -> Result<String, RenderError> {
    let context = context::Context::new(config, options)?;
    match options.style {
        Style::Bird2 => SHIPPED
            .render("bird.cfg", &context)
            .map_err(|e| RenderError::Template(Box::new(e))),
    }
}

#[cfg(test)]
mod tests;
