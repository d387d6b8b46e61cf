//! Cutting a pool into equal parts: [`Split`]. One transaction creates the parts and deletes the
//! whole, so there is no moment at which an address has two pools or none. Blocks and addresses
//! stay as they are.

use caracal_model::{IpPool, Key, Kind, PoolName, Prefix, Timestamp, Txn};

use crate::step::{Input, Machine, Step};
use crate::view::{self, IpamData};

/// Most parts: one transaction writes them all, and etcd takes 128 operations in one.
pub const MAX_PARTS: u32 = 64;

/// How the operator names the pool that is to be split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolChoice {
    /// `metadata.name`.
    Name(String),
    /// `spec.cidr`.
    Cidr(Prefix),
}

/// Why a pool is not cut.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// No such pool.
    #[error("there is no IP pool {}; there are {}", text(.0), .1.join(", "))]
    Unknown(PoolChoice, Vec<String>),
    /// Prefixes are halved, never cut in three.
    #[error("{0} parts are not possible: take a power of two from 2 to {MAX_PARTS}")]
    Parts(u32),
    /// The parts would not hold a block.
    #[error(
        "{parts} parts of {cidr} would be /{len}, smaller than one block (/{block_len}); take at most {most}"
    )]
    Small {
        /// The pool.
        cidr: Prefix,
        /// Parts asked for.
        parts: u32,
        /// Length of their prefixes.
        len: u8,
        /// Length of a block.
        block_len: u8,
        /// Most parts of this pool.
        most: u128,
    },
    /// A part's name is taken.
    #[error("there is already an IP pool {0}; rename or remove it first")]
    NameTaken(String),
}

fn text(which: &PoolChoice) -> String {
    match which {
        PoolChoice::Name(name) => name.clone(),
        PoolChoice::Cidr(cidr) => cidr.to_string(),
    }
}

/// Replaces a pool by several smaller ones with the same settings.
#[derive(Clone, Debug)]
pub struct Split {
    which: PoolChoice,
    parts: u32,
    uids: Vec<String>,
    now: Timestamp,
    state: SplitState,
}

#[derive(Clone, Debug)]
enum SplitState {
    Idle,
    Reading,
    Splitting(Vec<IpPool>),
}

impl Split {
    /// Cuts a pool into so many parts. `uids` are for the new resources, one each.
    #[must_use]
    pub const fn new(which: PoolChoice, parts: u32, uids: Vec<String>, now: Timestamp) -> Self {
        Self {
            which,
            parts,
            uids,
            now,
            state: SplitState::Idle,
        }
    }

    fn cut(&self, view: &IpamData) -> Result<(PoolName, Vec<IpPool>), SplitError> {
        let found = view.pools.iter().find(|(name, pool)| match &self.which {
            PoolChoice::Name(wanted) => name.as_str() == wanted,
            PoolChoice::Cidr(cidr) => pool.spec.prefix() == *cidr,
        });
        let known = || {
            view.pools
                .iter()
                .map(|(n, p)| format!("{n} ({})", p.spec.cidr))
        };
        let Some((name, pool)) = found else {
            return Err(SplitError::Unknown(self.which.clone(), known().collect()));
        };
        if !self.parts.is_power_of_two() || !(2..=MAX_PARTS).contains(&self.parts) {
            return Err(SplitError::Parts(self.parts));
        }
        let cidr = pool.spec.prefix();
        let bits = u8::try_from(self.parts.trailing_zeros()).unwrap_or(u8::MAX);
        let (len, block_len) = (cidr.len().saturating_add(bits), pool.spec.block_len());
        if len > block_len {
            return Err(SplitError::Small {
                cidr,
                parts: self.parts,
                len,
                block_len,
                most: 1 << (block_len - cidr.len()),
            });
        }
        let size = cidr.size() / u128::from(self.parts);
        let mut parts = Vec::new();
        for index in 0..self.parts {
            let child = format!("split-{name}-{index}");
            if view.pools.contains_key(child.as_str()) {
                return Err(SplitError::NameTaken(child));
            }
            let mut part = pool.clone();
            let at = cidr
                .nth(size * u128::from(index))
                .expect("parts lie inside the pool");
            part.spec.cidr = Prefix::truncated(at, len).to_string();
            part.metadata.name = child;
            part.metadata.uid = self.uids.get(parts.len()).cloned();
            part.metadata.creation_timestamp = Some(self.now.rfc3339());
            part.metadata.extra.remove("resourceVersion");
            parts.push(part);
        }
        Ok((name.clone(), parts))
    }
}

impl Machine for Split {
    /// The parts.
    type Output = Vec<IpPool>;
    type Error = SplitError;

    fn step(&mut self, seen: Input) -> Step<Vec<IpPool>, SplitError> {
        match (std::mem::replace(&mut self.state, SplitState::Idle), seen) {
            (SplitState::Reading, Input::Read(reading)) => {
                let stored = reading.ranges.clone();
                let mut view = IpamData::default();
                view.absorb(&[view::kind(Kind::IpPool)], reading);
                let (name, parts) = match self.cut(&view) {
                    Ok(cut) => cut,
                    Err(error) => return Step::Failed(error),
                };
                let path = |name: &str| Key::resource(Kind::IpPool, name).to_path();
                let whole = path(name.as_str());
                let found = stored.iter().flatten().find(|kv| kv.key == whole);
                let mut txn = Txn::new();
                txn = txn.delete(whole, found.map_or(0, |kv| kv.mod_revision));
                for part in &parts {
                    txn = txn.create(path(&part.metadata.name), part.to_json());
                }
                self.state = SplitState::Splitting(parts);
                Step::Commit(txn)
            }
            (SplitState::Splitting(parts), Input::Committed(_)) => Step::Done(parts),
            _ => {
                self.state = SplitState::Reading;
                Step::Read(vec![view::kind(Kind::IpPool)])
            }
        }
    }
}
