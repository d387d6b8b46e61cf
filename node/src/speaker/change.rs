//! Changes made by a reload, for users and for scripts.

use std::collections::BTreeMap;
use std::fmt;

use caracal_bgp::{ConfigChange, PeerChange, PeerName};
use caracal_model::{InsertEach, Prefix};
use serde::{Deserialize, Serialize};

/// The difference between the configuration before and after. Empty when the file says the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ReloadChange {
    /// The listening socket is another one.
    pub(crate) listen: bool,
    /// Our AS or BGP Identifier is another one.
    pub(crate) speaker: bool,
    /// The kernel's tables are others, or written otherwise.
    pub(crate) kernel: bool,
    /// Subnets of other interfaces are announced, or otherwise.
    pub(crate) direct: bool,
    /// The table is dumped to other files, or at other times.
    pub(crate) dumps: bool,
    /// Other RPKI caches are asked, or asked otherwise.
    pub(crate) caches: bool,
    /// New peers.
    pub(crate) added: Vec<PeerName>,
    /// Peers that are gone.
    pub(crate) removed: Vec<PeerName>,
    /// Peers that differ, and what happens to them. All others are not touched.
    pub(crate) changed: BTreeMap<PeerName, Vec<Effect>>,
    /// Routes that are announced now, or differently.
    pub(crate) originated: Vec<Prefix>,
    /// Routes that are announced no more.
    pub(crate) withdrawn: Vec<Prefix>,
}

/// Effect of a reload on a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Effect {
    /// It is another peer: session and routes go.
    Replaced,
    /// A new session is negotiated; the routes are kept over it where graceful restart allows.
    SessionReset,
    /// The running session takes it over.
    SessionUpdated,
    /// Received routes go through the filters again.
    ImportRerun,
    /// Announced routes are compared with the new rules, and the difference is sent.
    ExportRerun,
    /// The session ends, and none starts.
    Disabled,
    /// Sessions may run again.
    Enabled,
}

impl Effect {
    const fn sentence(self) -> &'static str {
        match self {
            Self::Replaced => "replaced: session and routes go",
            Self::SessionReset => "a new session is negotiated",
            Self::SessionUpdated => "the running session takes it over",
            Self::ImportRerun => "received routes go through the filters again",
            Self::ExportRerun => "the difference of announced routes is sent",
            Self::Disabled => "disabled: the session ends, and none starts",
            Self::Enabled => "enabled",
        }
    }
}

fn effects(change: PeerChange) -> Vec<Effect> {
    [
        (change.replaced, Effect::Replaced),
        (change.reset && !change.replaced, Effect::SessionReset),
        (change.session, Effect::SessionUpdated),
        (change.import, Effect::ImportRerun),
        (change.export, Effect::ExportRerun),
        (change.disabled == Some(true), Effect::Disabled),
        (change.disabled == Some(false), Effect::Enabled),
    ]
    .into_iter()
    .filter_map(|(holds, effect)| holds.then_some(effect))
    .collect()
}

impl From<ConfigChange> for ReloadChange {
    fn from(change: ConfigChange) -> Self {
        Self {
            listen: change.listen,
            speaker: change.speaker,
            kernel: false,
            direct: false,
            dumps: false,
            caches: false,
            added: change.added.into_iter().collect(),
            removed: change.removed.into_iter().collect(),
            changed: change
                .peers
                .into_iter()
                .map(|(name, change)| (name, effects(change)))
                .insert_each(),
            originated: change.originated.into_iter().collect(),
            withdrawn: change.withdrawn.into_iter().collect(),
        }
    }
}

impl fmt::Display for ReloadChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return writeln!(f, "nothing has changed");
        }
        if self.listen {
            writeln!(f, "listening socket: opened anew")?;
        }
        if self.speaker {
            writeln!(f, "AS or router id: changed")?;
        }
        if self.kernel {
            writeln!(f, "kernel tables: changed")?;
        }
        if self.direct {
            writeln!(f, "routes of interfaces: changed")?;
        }
        if self.dumps {
            writeln!(f, "table dumps: changed")?;
        }
        if self.caches {
            writeln!(f, "RPKI caches: changed")?;
        }
        for peer in &self.added {
            writeln!(f, "peer {peer}: added")?;
        }
        for peer in &self.removed {
            writeln!(f, "peer {peer}: removed")?;
        }
        for (peer, effects) in &self.changed {
            for effect in effects {
                writeln!(f, "peer {peer}: {}", effect.sentence())?;
            }
        }
        for prefix in &self.originated {
            writeln!(f, "route {prefix}: announced")?;
        }
        for prefix in &self.withdrawn {
            writeln!(f, "route {prefix}: withdrawn")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use caracal_bgp::{Asn, PeerConfig, SpeakerConfig, compare_configs};

    use super::*;

    fn config() -> SpeakerConfig {
        caracal_templates::parse(
            "router id 10.0.0.1;\n\
             protocol bgp a { local as 64512; neighbor 10.0.0.2 as 64512; ipv4; }\n\
             protocol bgp b { local as 64512; neighbor 10.0.0.3 as 64512; ipv4; }\n",
        )
        .unwrap()
    }

    #[test]
    fn equal_files_change_nothing() {
        let change = ReloadChange::from(compare_configs(&config(), &config()));
        assert_eq!(change.to_string(), "nothing has changed\n");
    }

    #[test]
    fn a_change_names_what_moves() {
        let mut new = config();
        let b = new.peers.get_mut(&"b".into()).unwrap();
        b.hold_time = std::time::Duration::from_secs(9);
        b.allow_own_as = 1;
        new.peers.remove(&"a".into());
        new.peers
            .insert("c".into(), PeerConfig::new([10, 0, 0, 4].into(), Asn(1)));
        let change = ReloadChange::from(compare_configs(&config(), &new));
        assert_eq!(
            change.to_string(),
            "peer c: added\npeer a: removed\npeer b: a new session is negotiated\n\
             peer b: received routes go through the filters again\n"
        );
        let json = serde_json::to_value(&change).unwrap();
        assert_eq!(
            json["changed"]["b"],
            serde_json::json!(["session-reset", "import-rerun"])
        );
        assert_eq!(
            serde_json::from_value::<ReloadChange>(json).unwrap(),
            change
        );
    }
}
