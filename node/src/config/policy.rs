//! `CARACAL_POLICY`: whether this node enforces network policy.

use super::{ConfigError, Env};

/// Reads `CARACAL_POLICY`; absent is off.
pub(super) fn enforces_policy(env: &Env<'_>) -> Result<bool, ConfigError> {
    let enforces = env.parse("CARACAL_POLICY", |text| match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected on or off".to_owned()),
    })?;
    Ok(enforces.unwrap_or_default())
}
