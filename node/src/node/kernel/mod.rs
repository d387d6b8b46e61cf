//! Between the speaker and the agent: the underlay, learned routes, when the kernel may be swept;
//! and what follows from what the agent says of the kernel.

pub(crate) mod datastore_way;
pub(crate) mod felix;
pub(crate) mod health_checks;
pub(crate) mod kube_proxy;
pub(crate) mod learned;
pub(crate) mod lifelines;
pub(crate) mod lost_addresses;
pub(crate) mod mode_check;
pub(crate) mod mtu;
pub(crate) mod neighbour_limits;
pub(crate) mod policy;
pub(crate) mod services;
pub(crate) mod services_report;
pub(crate) mod sweep;
pub(crate) mod underlay;
