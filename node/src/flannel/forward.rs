//! `--iptables-forward-rules`: packets of the network pass where iptables drops by policy what is
//! forwarded.

use std::sync::Arc;
use std::time::Duration;

use caracal_agent::ForwardRules;
use caracal_flannel::{FORWARD_CHAIN, FORWARD_COMMENT, FlannelState};
use tokio::sync::watch;

use super::args::FlannelArgs;

/// Looks at the rules from time to time until the caller is gone, as nobody tells of changes of
/// iptables. Without the flag it waits for ever.
pub(super) async fn keep_forwarding(
    args: &FlannelArgs,
    states: watch::Receiver<Arc<FlannelState>>,
) {
    if !args.iptables_forward_rules {
        return std::future::pending().await;
    }
    let pause: Duration = args.iptables_resync();
    let mut told = String::new();
    loop {
        let networks = {
            let config = &states.borrow().network.config;
            config.networks().collect()
        };
        let rules = ForwardRules::new(FORWARD_CHAIN, FORWARD_COMMENT, networks);
        match rules.put().await {
            Ok(written) => {
                if written {
                    tracing::info!("iptables drops what is forwarded; {FORWARD_CHAIN} is written");
                }
                told.clear();
            }
            // Each reason once.
            Err(error) => {
                let reason = format!("{:#}", anyhow::Error::from(error));
                if reason != told {
                    tracing::error!("--iptables-forward-rules: {reason}");
                    told = reason;
                }
            }
        }
        tokio::time::sleep(pause).await;
    }
}
