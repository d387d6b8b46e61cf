//! Chains of networks that are not Calico's, by iptables: where `nft` cannot be used, and what is
//! left of them where it can.

use caracal_model::Family;

use super::programs::{CommandError, Iptables, run, unless_refused};
use crate::nat::iptables::chain::IptablesChain;

/// Others may hold the lock of legacy iptables for some seconds, as kube-proxy does.
const RESTORE: [&str; 2] = ["--noflush", "--wait=5"];

/// Why a chain is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum IptablesError {
    /// Neither form of iptables works.
    #[error("the chain {chain} cannot be written: {reasons}")]
    NoForm {
        /// Its name.
        chain: &'static str,
        /// What each program says.
        reasons: String,
    },
    /// A program does not end, or does not remove what it shows.
    #[error("the chain {chain} cannot be {done}")]
    Refused {
        /// Its name.
        chain: &'static str,
        /// `written` or `removed`.
        done: &'static str,
        /// What went wrong.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

fn refused(
    chain: &IptablesChain,
    done: &'static str,
) -> impl FnOnce(CommandError) -> IptablesError {
    let chain = chain.name;
    move |source| IptablesError::Refused {
        chain,
        done,
        source: source.into(),
    }
}

/// Writes a chain of a family and the jump to it, unless all of it is there, by the form of
/// iptables that works: the one on top of nftables, else the legacy one. What the other form has of
/// it goes. True when it was written.
///
/// # Errors
/// [`IptablesError`].
pub async fn put_iptables_chain(
    family: Family,
    chain: &IptablesChain,
) -> Result<bool, IptablesError> {
    let forms = Iptables::forms(family);
    let mut reasons = Vec::new();
    for (place, form) in forms.iter().enumerate() {
        match put(form, chain).await {
            Ok(written) => {
                let others = forms
                    .iter()
                    .enumerate()
                    .filter(|(other, _)| *other != place);
                for (_, other) in others {
                    remove(other, chain)
                        .await
                        .map_err(refused(chain, "removed"))?;
                }
                return Ok(written);
            }
            // One that hangs is there, and will be again.
            Err(error) if error.is_timeout() => return Err(refused(chain, "written")(error)),
            Err(error) => reasons.push(crate::dataplane::chain(&error)),
        }
    }
    Err(IptablesError::NoForm {
        chain: chain.name,
        reasons: reasons.join("; "),
    })
}

async fn put(form: &Iptables, chain: &IptablesChain) -> Result<bool, CommandError> {
    let saved = run(form.save, &["-t", chain.table], "").await?;
    match chain.restore(&saved) {
        None => Ok(false),
        Some(script) => {
            run(form.restore, &RESTORE, &script).await?;
            Ok(true)
        }
    }
}

/// Removes a chain of a family, and what jumps to it, whichever form of iptables has it. True when
/// it was there.
///
/// # Errors
/// [`IptablesError::Refused`].
pub async fn remove_iptables_chain(
    family: Family,
    chain: &IptablesChain,
) -> Result<bool, IptablesError> {
    let mut removed = false;
    for form in Iptables::forms(family) {
        let was_there = remove(&form, chain).await;
        removed |= was_there.map_err(refused(chain, "removed"))?;
    }
    Ok(removed)
}

async fn remove(form: &Iptables, chain: &IptablesChain) -> Result<bool, CommandError> {
    if !form.has_table(chain.table) {
        return Ok(false);
    }
    // Where the program is not installed, nothing of it is there to be removed.
    let saved = unless_refused(run(form.save, &["-t", chain.table], "").await)?;
    match saved.and_then(|saved| chain.removal(&saved)) {
        None => Ok(false),
        Some(script) => {
            run(form.restore, &RESTORE, &script).await?;
            Ok(true)
        }
    }
}
