//! Changes of the global IPAM configuration, with calicoctl's rules. The stored object always gets
//! `auto_allocate_blocks`, because readers take its absence for false.

use caracal_model::{IpamConfig, Key, KeyRange, Txn};

use crate::error::Unreadable;
use crate::step::{Input, Machine, Step};
use crate::view::IpamData;

/// Whether a KubeVirt virtual machine keeps its addresses when its pod goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// It keeps them: Calico's default.
    Enabled,
    /// They go with the pod.
    Disabled,
}

impl Persistence {
    /// As it is stored.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enabled => "Enabled",
            Self::Disabled => "Disabled",
        }
    }
}

/// Settings to change; `None` leaves a setting as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettingsChange {
    /// Never take addresses from other hosts' blocks.
    pub strict_affinity: Option<bool>,
    /// Claim new blocks when needed.
    pub auto_allocate_blocks: Option<bool>,
    /// Most blocks of a host and family; zero = the default.
    pub max_blocks_per_host: Option<u32>,
    /// Whether virtual machines keep their addresses.
    pub kubevirt_ip_persistence: Option<Persistence>,
    /// Seconds for which a released address is kept back.
    pub ip_cooldown_seconds: Option<u32>,
}

/// Why the configuration stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Nobody could get an address.
    #[error(
        "strict affinity and automatic allocation of blocks cannot both be off: a node without a block would \
         only ever borrow; turn one of them on"
    )]
    NothingAllowed,
    /// A limit that borrowing would go around.
    #[error(
        "a limit of {0} blocks per host needs strict affinity, or hosts at the limit would borrow; add \
         --strictaffinity=true, or take --max-blocks-per-host=0"
    )]
    LimitWithoutStrict(u32),
    /// The stored value does not parse.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
}

impl SettingsChange {
    /// The configuration after the change.
    ///
    /// # Errors
    /// [`SettingsError`] when it would make no sense.
    pub fn apply(&self, before: &IpamConfig) -> Result<IpamConfig, SettingsError> {
        let mut config = before.clone();
        let set = |slot: &mut bool, value: Option<bool>| *slot = value.unwrap_or(*slot);
        set(&mut config.strict_affinity, self.strict_affinity);
        set(&mut config.auto_allocate_blocks, self.auto_allocate_blocks);
        let set = |slot: &mut u32, value: Option<u32>| *slot = value.unwrap_or(*slot);
        set(&mut config.max_blocks_per_host, self.max_blocks_per_host);
        set(&mut config.ip_cooldown_seconds, self.ip_cooldown_seconds);
        if let Some(persistence) = self.kubevirt_ip_persistence {
            config.kube_virt_vm_address_persistence = Some(persistence.as_str().to_owned());
        }
        if !config.strict_affinity && !config.auto_allocate_blocks {
            return Err(SettingsError::NothingAllowed);
        }
        if config.max_blocks_per_host > 0 && !config.strict_affinity {
            return Err(SettingsError::LimitWithoutStrict(
                config.max_blocks_per_host,
            ));
        }
        Ok(config)
    }
}

/// Changes the stored configuration. Returns it as it is afterwards.
#[derive(Clone, Debug)]
pub struct Configure {
    change: SettingsChange,
    wanted: Option<IpamConfig>,
    asked: bool,
}

impl Configure {
    /// Reads the configuration, applies `change`, writes it back.
    #[must_use]
    pub const fn new(change: SettingsChange) -> Self {
        Self {
            change,
            wanted: None,
            asked: false,
        }
    }
}

impl Machine for Configure {
    type Output = IpamConfig;
    type Error = SettingsError;

    fn step(&mut self, seen: Input) -> Step<IpamConfig, SettingsError> {
        let range = KeyRange::Key(Key::IpamConfig.to_path());
        match (seen, self.wanted.take()) {
            (Input::Committed(_), Some(wanted)) => Step::Done(wanted),
            (Input::Read(reading), _) if std::mem::take(&mut self.asked) => {
                let stored = reading.ranges.first().and_then(|r| r.first());
                let revision = stored.map(|kv| kv.mod_revision);
                let value = stored.map(|kv| kv.value.clone());
                let mut view = IpamData::default();
                view.absorb(&[range], reading);
                if let Err(fault) = view.readable(&[Key::IpamConfig]) {
                    return Step::Failed(fault.into());
                }
                let wanted = match self.change.apply(&view.config()) {
                    Ok(wanted) => wanted,
                    Err(error) => return Step::Failed(error),
                };
                let json = wanted.to_json();
                if value.as_deref() == Some(json.as_slice()) {
                    return Step::Done(wanted);
                }
                self.wanted = Some(wanted);
                let path = Key::IpamConfig.to_path();
                Step::Commit(match revision {
                    Some(revision) => Txn::new().update(path, revision, json),
                    None => Txn::new().create(path, json),
                })
            }
            _ => {
                self.asked = true;
                Step::Read(vec![range])
            }
        }
    }
}
