//! The hot paths of the speaker's core by themselves ([`paths`]), what they cost in a unit that a
//! busy machine does not change ([`count`]), and the routes of all benchmarks ([`routes`],
//! [`wire`]).
#![allow(
    clippy::cast_possible_truncation,
    reason = "counts of peers and prefixes that are constants of the benchmarks"
)]
#![allow(
    clippy::missing_errors_doc,
    reason = "an error ends the program with its message"
)]

pub mod count;
pub mod paths;
pub mod routes;
pub mod wire;
