//! Files: how many the process may open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files to what the administrator allows at most: a connection is one, a
/// speaker has as many as it has peers, and a shell's or a service's usual 1,024 is too few for a
/// thousand. Without success, what is there has to do.
pub(crate) fn allow_many() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    let all = Rlimit {
        current: maximum,
        maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, all) {
        tracing::warn!(%error, "the number of open files stays limited to {current:?}");
    }
}
