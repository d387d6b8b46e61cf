//! Two must not translate services at once: looks for kube-proxy's rules, and remembers whether
//! this node has taken over from it (`CARACAL_SERVICES=auto`).

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use caracal_agent::{ForeignRules, RuleOwner};
use caracal_datastore::{PUBLIC_MODE, Rarely, put_file};
use caracal_model::{Problem, ProblemCode};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::services::ServicesMode;

/// Pause between two looks.
const LOOK: Duration = Duration::from_secs(30);
/// The file in the library directory that says that this node has taken over.
const FILE: &str = "services-taken-over";

/// Orders to take services over from kube-proxy and to give them back.
#[derive(Clone, Debug)]
pub(crate) struct Takeover {
    mode: ServicesMode,
    file: PathBuf,
    taken_over: watch::Sender<bool>,
}

impl Takeover {
    /// As the last process has left it.
    pub(crate) fn recall(mode: ServicesMode, lib_dir: &Path) -> Self {
        let file = lib_dir.join(FILE);
        Self {
            mode,
            taken_over: watch::Sender::new(file.exists()),
            file,
        }
    }

    /// Carries an order out; the table follows. `over`: from kube-proxy to this node.
    pub(crate) fn order(&self, over: bool) -> Result<(), String> {
        match (self.mode, over) {
            (ServicesMode::On, true) => return Ok(()),
            (ServicesMode::Off, _) => {
                return Err(
                    "CARACAL_SERVICES is off: set it to auto and restart the node".to_owned(),
                );
            }
            (ServicesMode::On, false) => {
                return Err(
                    "CARACAL_SERVICES is on: set it to auto and restart the node".to_owned(),
                );
            }
            (ServicesMode::Auto, _) => {}
        }
        let written = match over {
            true => put_file(
                &self.file,
                b"by caracal migrate services apply\n",
                PUBLIC_MODE,
            ),
            false => forget(&self.file),
        };
        written.map_err(|error| format!("{}: {error}", self.file.display()))?;
        self.taken_over.send_replace(over);
        Ok(())
    }

    /// Looks for kube-proxy's rules from now on.
    pub(crate) fn watch(&self) -> KubeProxyWatch {
        KubeProxyWatch {
            is_auto: self.mode == ServicesMode::Auto,
            taken_over: self.taken_over.subscribe(),
            found: None,
            next: Instant::now(),
            told: Rarely::default(),
        }
    }
}

/// Forgets that a node had taken over.
pub(crate) fn forget_takeover(lib_dir: &Path) -> io::Result<()> {
    forget(&lib_dir.join(FILE))
}

fn forget(file: &Path) -> io::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether this node translates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It does.
    Ours,
    /// It does not, for this reason: its table goes.
    KubeProxys(String),
    /// Whether kube-proxy has rules is not known: what is in the kernel stays as it is.
    Unknown,
}

/// Whether kube-proxy has rules.
#[derive(Debug)]
pub(crate) struct KubeProxyWatch {
    is_auto: bool,
    taken_over: watch::Receiver<bool>,
    /// `None` = not known.
    found: Option<ForeignRules>,
    next: Instant,
    told: Rarely,
}

impl KubeProxyWatch {
    /// Looks, when it is time to. What was found stays known where nothing can be found out.
    pub(crate) async fn look(&mut self) {
        let is_new = self.taken_over.has_changed().unwrap_or_default();
        if Instant::now() < self.next && !is_new {
            return;
        }
        match ForeignRules::find(RuleOwner::KubeProxy).await {
            Ok(rules) => {
                self.found = Some(rules);
                self.told.over();
            }
            Err(error) => {
                let reason = format!("{:#}", anyhow::Error::new(error));
                if self.told.is_due(Instant::now(), &reason) {
                    tracing::warn!(reason, "kube-proxy's rules");
                }
            }
        }
        self.next = Instant::now() + LOOK;
    }

    /// Whether this node translates, as far as was seen.
    pub(crate) fn turn(&mut self) -> Turn {
        let taken_over = *self.taken_over.borrow_and_update();
        if !self.is_auto || taken_over {
            return Turn::Ours;
        }
        match &self.found {
            Some(rules) if rules.is_empty() => Turn::Ours,
            Some(rules) => Turn::KubeProxys(format!(
                "kube-proxy has rules ({rules}); `caracal migrate services apply` takes over"
            )),
            None => Turn::Unknown,
        }
    }

    /// Rules of kube-proxy beside ours.
    pub(crate) fn problem(&self) -> Option<Problem> {
        let rules = self.found.as_ref().filter(|rules| !rules.is_empty())?;
        Some(Problem {
            code: ProblemCode::ServicesKubeProxy,
            subject: "kube-proxy".to_owned(),
            reason: format!("it has rules, too ({rules}); this node's are asked first"),
        })
    }

    /// Resolves when something is known otherwise than before, or is ordered.
    pub(crate) async fn changed(&mut self) {
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(self.next) => {}
                Ok(()) = self.taken_over.changed() => {
                    self.next = Instant::now();
                    return;
                }
            }
            let before = self.found.clone();
            self.look().await;
            if self.found != before {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use caracal_datastore::TestFolder;

    use super::*;

    #[test]
    fn a_takeover_is_remembered_and_only_auto_has_one() {
        let folder = TestFolder::new("takeover");
        let auto = Takeover::recall(ServicesMode::Auto, &folder);
        let taken_over = || {
            *Takeover::recall(ServicesMode::Auto, &folder)
                .taken_over
                .borrow()
        };
        assert!(!taken_over());
        auto.order(true).unwrap();
        assert!(taken_over() && *auto.taken_over.borrow());
        auto.order(false).unwrap();
        auto.order(false).unwrap();
        assert!(!taken_over());
        let order = |mode, over| Takeover::recall(mode, &folder).order(over);
        assert!(order(ServicesMode::Off, true).unwrap_err().contains("off"));
        assert!(order(ServicesMode::On, false).unwrap_err().contains("auto"));
        assert_eq!(order(ServicesMode::On, true), Ok(()));
        assert!(!taken_over());
    }

    /// What is not known is waited for; who has taken over, or is told to, translates.
    #[test]
    fn kube_proxys_rules_are_left_alone_unless_they_were_taken_over() {
        let folder = TestFolder::new("takeover");
        let takeover = Takeover::recall(ServicesMode::Auto, &folder);
        let mut watch = takeover.watch();
        assert_eq!(watch.turn(), Turn::Unknown);
        watch.found = Some(ForeignRules::none(RuleOwner::KubeProxy));
        assert_eq!(watch.turn(), Turn::Ours);
        watch.found = None;
        takeover.order(true).unwrap();
        assert_eq!(watch.turn(), Turn::Ours);
        assert_eq!(watch.problem(), None);
        let mut on = Takeover::recall(ServicesMode::On, &folder).watch();
        assert_eq!(on.turn(), Turn::Ours);
    }
}
