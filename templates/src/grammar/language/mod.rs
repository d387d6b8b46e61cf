//! BIRD's filter language: expressions, sets, functions, steps. Names are resolved and types are
//! checked while it is read.
//!
//! | module | what it reads |
//! |---|---|
//! | `scope` | names that are defined so far |
//! | `literal` | numbers, addresses, prefixes |
//! | `types` | which types go together |
//! | `expression` | operators, properties, calls; sets and path masks |
//! | `steps` | blocks, functions, filters |

mod expression;
mod literal;
mod scope;
mod steps;
mod types;

pub(super) use expression::computed;
pub(super) use scope::{LOCAL_AS, Named, Scope};
pub(super) use steps::{attributes, filter, function, named_filter, where_filter};
