//! From the datastore to the speaker: its configuration, passwords, who may announce what, and the
//! order of a drain or of a change of topology.

pub(crate) mod drain;
pub(crate) mod named_secrets;
pub(crate) mod origins;
pub(crate) mod publish;
pub(crate) mod range_check;
pub(crate) mod secrets;
pub(crate) mod transition_report;
