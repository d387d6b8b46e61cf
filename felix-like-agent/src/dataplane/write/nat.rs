//! Puts NAT rules into the kernel: one transaction of nftables, or `iptables-legacy-restore` where
//! the kernel has no nf_tables for IP. Which it is, is found by trying. These are the only programs
//! the agent starts. One that does not end in time is an error: nothing follows from its silence.

use std::sync::Arc;

use super::forward::ClosedForwards;
use super::programs::{
    CommandError, IP6TABLES, IP6TABLES_NFT, IPTABLES, IPTABLES_NFT, Iptables, run, unless_refused,
};
use super::tables::TableWriter;
use crate::dataplane::read::hints::OwnChanges;
use crate::nat::nft::blockers::Blocker;
use crate::nat::nft::written::Written;
use crate::nat::{FamilyRules, Nat, iptables, nft};
use crate::nft::{Listing, Transaction};
use crate::settings::NatBackend;

/// Stands in the place of a fingerprint when the rules are not as they were written.
pub(in crate::dataplane) const CHANGED: &str = "changed by others";

/// Most tries to write our table when others change it before it is marked.
const TRIES: u32 = 3;

/// Why rules are not in the kernel.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NatError {
    /// Neither backend works.
    #[error("NAT rules cannot be written: with nftables {nft}; with iptables {iptables}")]
    NoBackend {
        /// Why not nftables.
        nft: String,
        /// Why not iptables.
        iptables: String,
    },
    /// The backend that worked before refuses.
    #[error("NAT rules cannot be written")]
    Refused(#[source] CommandError),
}

/// Tool that writes the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dataplane) enum Backend {
    Nft,
    IptablesLegacy,
}

impl Backend {
    pub(in crate::dataplane) const fn as_str(self) -> &'static str {
        match self {
            Self::Nft => "nft",
            Self::IptablesLegacy => "iptables-legacy",
        }
    }
}

impl Default for NatWriter {
    fn default() -> Self {
        Self::telling(OwnChanges::default())
    }
}

/// Writes and reads back rules.
#[derive(Debug)]
pub(in crate::dataplane) struct NatWriter {
    pub(in crate::dataplane) backend: Option<Backend>,
    /// Chains of others that drop forwarded packets by policy and that take no rules from us.
    pub(in crate::dataplane) blockers: Vec<Blocker>,
    /// Our table as it is in the kernel. `None` = not known, or written by iptables.
    written: Option<Written>,
    table: TableWriter,
    /// Beside nftables: iptables drops by policy what is forwarded, as far as is known.
    may_be_closed: bool,
}

impl NatWriter {
    /// A writer whose changes of our table are known as ours to whoever listens.
    pub(in crate::dataplane) fn telling(changes: OwnChanges) -> Self {
        Self {
            backend: None,
            blockers: Vec::new(),
            written: None,
            table: TableWriter::new(nft::TABLE, changes),
            may_be_closed: false,
        }
    }

    /// The fingerprint of the rules in the kernel: that of `wanted` when they are just these;
    /// `None` = none are there.
    ///
    /// # Errors
    /// [`NatError::Refused`] when a program does not answer in time: nothing is known then.
    pub(in crate::dataplane) async fn read(
        &mut self,
        wanted: Option<&Arc<Nat>>,
    ) -> Result<Option<String>, NatError> {
        self.read_all(wanted).await.map_err(NatError::Refused)
    }

    async fn read_all(
        &mut self,
        wanted: Option<&Arc<Nat>>,
    ) -> Result<Option<String>, CommandError> {
        let Some(found) = self.read_rules(wanted).await? else {
            return Ok(None);
        };
        self.may_be_closed = match wanted {
            Some(nat) if self.backend == Some(Backend::Nft) => !self.forwards_are_open(nat).await?,
            _ => false,
        };
        Ok(Some(match self.may_be_closed {
            true => "iptables drops what is forwarded".to_owned(),
            false => found,
        }))
    }

    /// Takes the backend that is asked for, even if the other one works; what that one wrote goes.
    /// True when it is another than before.
    ///
    /// # Errors
    /// [`NatError::Refused`] when a program does not end in time; what is in the kernel is not
    /// known then.
    pub(in crate::dataplane) async fn choose(
        &mut self,
        asked: NatBackend,
    ) -> Result<bool, NatError> {
        let asked = match asked {
            NatBackend::Auto => return Ok(false),
            NatBackend::Nft => Backend::Nft,
            NatBackend::Iptables => Backend::IptablesLegacy,
        };
        if self.backend == Some(asked) {
            return Ok(false);
        }
        if self.backend.is_some() || asked == Backend::IptablesLegacy {
            // Where there is nothing to remove it may well refuse.
            if let Err(error) = self.remove().await {
                if matches!(&error, NatError::Refused(source) if source.is_timeout()) {
                    return Err(error);
                }
                tracing::debug!(
                    reason = crate::dataplane::chain(&error),
                    "rules of the other backend"
                );
            }
        }
        self.backend = Some(asked);
        Ok(true)
    }

    async fn read_rules(
        &mut self,
        wanted: Option<&Arc<Nat>>,
    ) -> Result<Option<String>, CommandError> {
        match self.backend {
            Some(Backend::Nft) => self.read_nft(wanted).await,
            Some(Backend::IptablesLegacy) => read_iptables(wanted.map(Arc::as_ref)).await,
            None => {
                if let Some(found) = self.read_nft(wanted).await? {
                    self.backend = Some(Backend::Nft);
                    return Ok(Some(found));
                }
                let found = read_iptables(wanted.map(Arc::as_ref)).await?;
                if found.is_some() {
                    self.backend = Some(Backend::IptablesLegacy);
                }
                Ok(found)
            }
        }
    }

    async fn read_nft(
        &mut self,
        wanted: Option<&Arc<Nat>>,
    ) -> Result<Option<String>, CommandError> {
        let before = self.written.take();
        let listing = run("nft", &["-f", "-"], &nft::listing()).await;
        let Some(listing) = unless_refused(listing)? else {
            return Ok(None);
        };
        let listing = Listing::parse(&listing);
        if !listing.is_untouched() {
            return Ok(Some(CHANGED.to_owned()));
        }
        let known = wanted.into_iter().chain(before.as_ref().map(Written::nat));
        let mut found = known.filter_map(|nat| Written::found(&listing, nat));
        self.written = found.next();
        Ok(Some(match &self.written {
            Some(written) => written.nat().fingerprint(),
            None => listing.fingerprint().unwrap_or_default().to_owned(),
        }))
    }

    /// Chains that drop and belong to somebody else are remembered as blockers.
    async fn closed_forwards(&mut self) -> Result<Vec<(Iptables, String)>, CommandError> {
        let found = ClosedForwards::read().await?;
        self.blockers = found.blockers;
        Ok(found.iptables)
    }

    /// Beside nftables: accepts in iptables where it drops by policy, as Docker makes it.
    async fn open_forwards(&mut self, nat: &Nat) -> Result<(), CommandError> {
        for (tool, saved) in self.closed_forwards().await? {
            if iptables::compare_forward(nat, &saved) != iptables::RulesComparison::Wanted {
                let script = iptables::restore_forward(nat, &saved);
                run(tool.restore, &["--noflush"], &script).await?;
            }
        }
        Ok(())
    }

    async fn forwards_are_open(&mut self, nat: &Nat) -> Result<bool, CommandError> {
        let closed = self.closed_forwards().await?;
        let opened = |(_, saved): &(Iptables, String)| {
            iptables::compare_forward(nat, saved) == iptables::RulesComparison::Wanted
        };
        Ok(closed.iter().all(opened))
    }

    /// Puts rules in the place of those before.
    pub(in crate::dataplane) async fn write(&mut self, nat: &Arc<Nat>) -> Result<(), NatError> {
        match self.backend {
            Some(Backend::Nft) => self.write_nft(nat).await.map_err(NatError::Refused),
            Some(Backend::IptablesLegacy) => write_iptables(nat).await.map_err(NatError::Refused),
            None => self.find_backend(nat).await,
        }
    }

    async fn find_backend(&mut self, nat: &Arc<Nat>) -> Result<(), NatError> {
        let mut written = self.write_nft(nat).await;
        if written.as_ref().is_err_and(|error| !error.is_timeout()) {
            // Somebody may have taken the table away meanwhile: no reason for iptables for good.
            written = self.write_nft(nat).await;
        }
        let Err(nft) = written else {
            self.backend = Some(Backend::Nft);
            return Ok(());
        };
        if nft.is_timeout() {
            // One that hangs is there, and will be again.
            return Err(NatError::Refused(nft));
        }
        let Err(iptables) = write_iptables(nat).await else {
            self.backend = Some(Backend::IptablesLegacy);
            return Ok(());
        };
        Err(NatError::NoBackend {
            nft: crate::dataplane::chain(&nft),
            iptables: crate::dataplane::chain(&iptables),
        })
    }

    async fn write_nft(&mut self, nat: &Arc<Nat>) -> Result<(), CommandError> {
        if !self.change_elements(nat).await? {
            self.write_table(nat).await?;
            self.may_be_closed = true;
        }
        if self.may_be_closed {
            self.open_forwards(nat).await?;
            self.may_be_closed = false;
        }
        Ok(())
    }

    /// Makes our table that of `nat` by changing elements of sets. False: it has to be written.
    async fn change_elements(&mut self, nat: &Arc<Nat>) -> Result<bool, CommandError> {
        let change = self.written.take().and_then(|written| written.change(nat));
        let Some((transaction, written)) = change else {
            return Ok(false);
        };
        if let Err(error) = self.table.write(transaction).await {
            if error.is_timeout() {
                return Err(error);
            }
            tracing::info!(
                reason = crate::dataplane::chain(&error),
                "our nftables table is not changed by element; it is written anew"
            );
            return Ok(false);
        }
        self.written = Some(written);
        Ok(true)
    }

    async fn write_table(&mut self, nat: &Arc<Nat>) -> Result<(), CommandError> {
        let mut tries_left = TRIES;
        let (written, mark) = loop {
            let script = Transaction::from(nft::script(nat));
            self.table.write(script).await?;
            let listing = run("nft", &["-f", "-"], &nft::listing()).await?;
            let (written, mark) = Written::just_now(&Listing::parse(&listing), nat);
            tries_left -= 1;
            if written.has_all_elements() || tries_left == 0 {
                break (written, mark);
            }
            tracing::info!(
                "our nftables table was changed while it was written; it is written again"
            );
        };
        self.table.write(mark).await?;
        self.written = Some(written);
        Ok(())
    }

    /// Removes the rules of both backends.
    pub(in crate::dataplane) async fn remove(&mut self) -> Result<(), NatError> {
        self.written = None;
        let nft = run("nft", &["-f", "-"], &nft::removal()).await;
        let mut iptables = Ok(());
        for tool in [IPTABLES, IP6TABLES, IPTABLES_NFT, IP6TABLES_NFT] {
            let Ok(saved) = run(tool.save, &[], "").await else {
                continue;
            };
            let removal = iptables::removal(&saved);
            if !removal.is_empty() {
                iptables =
                    iptables.and(run(tool.restore, &["--noflush"], &removal).await.map(drop));
            }
        }
        match self.backend {
            Some(Backend::Nft) => nft.map(drop).map_err(NatError::Refused),
            _ => iptables.map_err(NatError::Refused),
        }
    }
}

/// The tool and the rules of each family that needs rules: IPv4 always, for the forwarding rules.
fn per_family(nat: &Nat) -> impl Iterator<Item = (Iptables, &FamilyRules)> {
    let v6 = (nat.ipv6 != FamilyRules::default()).then_some((IP6TABLES, &nat.ipv6));
    std::iter::once((IPTABLES, &nat.ipv4)).chain(v6)
}

async fn write_iptables(nat: &Nat) -> Result<(), CommandError> {
    for (tool, rules) in per_family(nat) {
        let saved = run(tool.save, &[], "").await?;
        let script = iptables::restore(nat, rules, &saved);
        run(tool.restore, &["--noflush"], &script).await?;
    }
    Ok(())
}

async fn read_iptables(wanted: Option<&Nat>) -> Result<Option<String>, CommandError> {
    let nothing = Nat::default();
    let nat = wanted.unwrap_or(&nothing);
    let mut seen = Vec::new();
    for (tool, rules) in per_family(nat) {
        let Some(saved) = unless_refused(run(tool.save, &[], "").await)? else {
            return Ok(None);
        };
        seen.push(iptables::compare(nat, rules, &saved));
    }
    Ok(
        if seen
            .iter()
            .all(|s| *s == iptables::RulesComparison::Nothing)
        {
            None
        } else if seen.iter().all(|s| *s == iptables::RulesComparison::Wanted) {
            Some(nat.fingerprint())
        } else {
            Some("other rules".to_owned())
        },
    )
}
