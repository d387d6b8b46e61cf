//! The kubeconfig of the CNI plugin: this process's way to the API server, with a token of the
//! plugin's account that is asked for in its place.

use std::time::Duration;

use http::Method;
use serde_json::json;

use super::api::{Api, ApiFailure};
use super::mapping::NAMESPACE;
use crate::store::PluginAccess;

/// Lifetime that is asked for; the server may give another.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The shortest lifetime that a server gives.
const SHORTEST: Duration = Duration::from_secs(600);

/// Asks for a token of a service account in Caracal's namespace.
pub(super) async fn issue(api: &Api, account: &str) -> Result<PluginAccess, ApiFailure> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token");
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"expirationSeconds": LIFETIME.as_secs()},
    });
    let answer = api
        .call(Method::POST, &path, "application/json", Some(&request))
        .await?;
    let token = answer["status"]["token"].as_str();
    let token = token.filter(|token| !token.is_empty()).ok_or_else(|| {
        ApiFailure::Unavailable("the answer to a request for a token has none".to_owned())
    })?;
    let lasts = answer["spec"]["expirationSeconds"].as_u64();
    Ok(PluginAccess {
        kubeconfig: api.kubeconfig(token).await?,
        lasts: lasts.map_or(SHORTEST, Duration::from_secs),
    })
}
