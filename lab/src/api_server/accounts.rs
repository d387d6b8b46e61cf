//! Authentication and authorisation: tokens from a file, tokens of service accounts, and the rights
//! that roles and their bindings give.

use std::path::Path;

use hyper::HeaderMap;
use hyper::header::USER_AGENT;
use serde_json::{Value, json};

use super::Api;
use super::cache::StoredObject;
use super::kinds::{ROOT, Registry};
use super::metadata::Birth;
use super::request::Request;
use super::status::{Cause, Failure, Named};

/// Group that may do everything.
const MASTERS: &str = "system:masters";
const RBAC: &str = "rbac.authorization.k8s.io";
/// Tokens of service accounts are stored below.
const TOKENS: &str = "test.tokens/";
/// A token lasts at least ten minutes, and an hour when nothing is said.
const LEAST_SECONDS: i64 = 600;
const USUAL_SECONDS: i64 = 3_600;

/// User of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    name: String,
    groups: Vec<String>,
}

/// The accounts of the token file. Without one, everybody may do everything.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    tokens: Option<Vec<(String, User)>>,
}

impl Accounts {
    /// Reads `TOKEN,USER,UID,"GROUP,GROUP"` lines. The error says what is wrong.
    pub(super) fn read(path: Option<&Path>) -> Result<Self, String> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let tokens: Result<Vec<_>, String> = lines
            .map(|line| {
                parse_line(line).ok_or_else(|| format!("not TOKEN,USER,UID,GROUPS: {line}"))
            })
            .collect();
        Ok(Self {
            tokens: Some(tokens?),
        })
    }

    fn are_checked(&self) -> bool {
        self.tokens.is_some()
    }

    fn find(&self, token: &str) -> Option<User> {
        let tokens = self.tokens.as_ref()?;
        let found = tokens.iter().find(|(known, _)| known == token);
        found.map(|(_, user)| user.clone())
    }
}

fn parse_line(line: &str) -> Option<(String, User)> {
    let mut parts = line.splitn(4, ',').map(str::trim);
    let (token, name, _uid) = (parts.next()?, parts.next()?, parts.next()?);
    let groups = parts.next().unwrap_or_default().trim_matches('"');
    let mut groups: Vec<String> = groups
        .split(',')
        .map(|g| g.trim().to_owned())
        .filter(|g| !g.is_empty())
        .collect();
    groups.push("system:authenticated".to_owned());
    (!token.is_empty() && !name.is_empty()).then(|| {
        let name = name.to_owned();
        (token.to_owned(), User { name, groups })
    })
}

impl User {
    fn of_account(namespace: &str, name: &str) -> Self {
        Self {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ],
        }
    }

    fn is_subject(&self, subject: &Value, namespace: &str) -> bool {
        let name = subject["name"].as_str().unwrap_or_default();
        match subject["kind"].as_str() {
            Some("User") => self.name == name,
            Some("Group") => self.groups.iter().any(|g| g == name),
            Some("ServiceAccount") => {
                let namespace = subject["namespace"].as_str().unwrap_or(namespace);
                self.name == format!("system:serviceaccount:{namespace}:{name}")
            }
            _ => false,
        }
    }
}

/// Attributes of a request, in the words of a rule.
#[derive(Debug)]
struct Attributes<'a> {
    verb: &'a str,
    group: &'a str,
    /// With the subresource: `pods/status`.
    resource: String,
    name: &'a str,
}

impl Attributes<'_> {
    fn are_allowed(&self, rule: &Value) -> bool {
        let has = |key: &str, fits: &dyn Fn(&str) -> bool| {
            let list = rule[key].as_array();
            list.into_iter()
                .flatten()
                .any(|v| v.as_str().is_some_and(fits))
        };
        let resource = |wanted: &str| {
            let sub = self.resource.split_once('/').map(|(_, sub)| sub);
            wanted == "*"
                || wanted == self.resource
                || wanted.strip_prefix("*/").is_some_and(|w| Some(w) == sub)
        };
        let is_named = rule["resourceNames"]
            .as_array()
            .is_some_and(|n| !n.is_empty());
        has("verbs", &|v| v == "*" || v == self.verb)
            && has("apiGroups", &|g| g == "*" || g == self.group)
            && has("resources", &resource)
            && (!is_named || has("resourceNames", &|n| n == self.name))
    }
}

impl Api {
    /// User of a request. An unknown token is an error, none is nobody.
    pub(super) async fn authenticate(&self, headers: &HeaderMap) -> Result<User, Failure> {
        let nobody = || User {
            name: "system:anonymous".to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
        };
        if !self.accounts.are_checked() {
            let groups = vec![MASTERS.to_owned()];
            return Ok(User { groups, ..nobody() });
        }
        let Some(header) = headers.get("authorization") else {
            return Ok(nobody());
        };
        let token = header.to_str().ok().and_then(|h| h.strip_prefix("Bearer "));
        let token = token.ok_or_else(Failure::unauthorized)?.trim();
        if let Some(user) = self.accounts.find(token) {
            return Ok(user);
        }
        self.account_of(token)
            .await
            .ok_or_else(Failure::unauthorized)
    }

    /// The service account of a token that was given out, has not expired, and whose account is
    /// still the same.
    async fn account_of(&self, token: &str) -> Option<User> {
        let token = self.cache.get(&format!("{ROOT}{TOKENS}{token}"), 0).await?;
        let spec = &token.object["spec"];
        let text = |key: &str| spec[key].as_str().unwrap_or_default();
        if text("expirationTimestamp") <= &*self.now() {
            return None;
        }
        let (namespace, name) = (text("namespace"), text("name"));
        let kind = self.cache.registry().find("", "v1", "serviceaccounts")?;
        let account = self.cache.get(&kind.key(Some(namespace), name), 0).await?;
        let is_same = account.object["metadata"]["uid"] == spec["uid"];
        is_same.then(|| User::of_account(namespace, name))
    }

    /// May the user do that?
    pub(super) async fn authorize(
        &self,
        user: &User,
        request: &Request,
        headers: &HeaderMap,
    ) -> Result<(), Failure> {
        if user.groups.iter().any(|g| g == MASTERS) {
            return Ok(());
        }
        let plural = &request.kind.plural;
        let resource = match &request.subresource {
            Some(sub) => format!("{plural}/{sub}"),
            None => plural.clone(),
        };
        let name = request.object_name().unwrap_or_default();
        let attributes = Attributes {
            verb: request.verb,
            group: &request.kind.group,
            resource,
            name,
        };
        let allowed = self.is_allowed(user, request, &attributes).await;
        let agent = headers.get(USER_AGENT);
        self.audit.write(&json!({
            "user": user.name, "verb": attributes.verb, "group": attributes.group,
            "resource": attributes.resource, "namespace": request.namespace, "name": name,
            "allowed": allowed, "userAgent": agent.and_then(|agent| agent.to_str().ok()),
        }));
        if allowed {
            return Ok(());
        }
        let scope = match request.namespace.as_deref() {
            None => "at the cluster scope".to_owned(),
            Some(namespace) => format!("in the namespace \"{namespace}\""),
        };
        let why = format!(
            "User \"{}\" cannot {} resource \"{}\" in API group \"{}\" {scope}",
            user.name, request.verb, attributes.resource, attributes.group
        );
        Err(Failure::forbidden(&request.named(name), &why))
    }

    async fn is_allowed(&self, user: &User, request: &Request, wants: &Attributes<'_>) -> bool {
        let registry = self.cache.registry();
        let mut rules = self.rules(&registry, user, None).await;
        if let Some(namespace) = request.namespace.as_deref() {
            rules.extend(self.rules(&registry, user, Some(namespace)).await);
        }
        rules.iter().any(|rule| wants.are_allowed(rule))
    }

    /// The rules that bindings give to a user, in the whole cluster or in one namespace.
    async fn rules(&self, registry: &Registry, user: &User, namespace: Option<&str>) -> Vec<Value> {
        let bindings = match namespace {
            None => "clusterrolebindings",
            Some(_) => "rolebindings",
        };
        let mut rules = Vec::new();
        for binding in self.all(registry, bindings, namespace).await {
            let subjects = binding.object["subjects"].as_array();
            let mut subjects = subjects.into_iter().flatten();
            if !subjects.any(|s| user.is_subject(s, namespace.unwrap_or_default())) {
                continue;
            }
            let role = &binding.object["roleRef"];
            let (plural, place) = match role["kind"].as_str() {
                Some("Role") => ("roles", namespace),
                _ => ("clusterroles", None),
            };
            let Some(kind) = registry.find(RBAC, "v1", plural) else {
                continue;
            };
            let key = kind.key(place, role["name"].as_str().unwrap_or_default());
            if let Some(role) = self.cache.get(&key, 0).await {
                rules.extend(
                    role.object["rules"]
                        .as_array()
                        .into_iter()
                        .flatten()
                        .cloned(),
                );
            }
        }
        rules
    }

    async fn all(
        &self,
        registry: &Registry,
        plural: &str,
        namespace: Option<&str>,
    ) -> Vec<StoredObject> {
        let Some(kind) = registry.find(RBAC, "v1", plural) else {
            return Vec::new();
        };
        let listing = self.cache.list(&kind.prefix(namespace), 0, None).await;
        listing.map_or_else(|_| Vec::new(), |listing| listing.entries)
    }

    /// `serviceaccounts/token`: a new token.
    pub(super) async fn create_token(
        &self,
        request: &Request,
        body: &Value,
    ) -> Result<Value, Failure> {
        let name = request.name.as_deref().unwrap_or_default();
        let account = self.current(&request.key(name)).await?;
        let account = account.ok_or_else(|| Failure::not_found(&request.named(name)))?;
        let seconds = body["spec"]["expirationSeconds"].as_i64();
        let seconds = seconds.unwrap_or(USUAL_SECONDS);
        if seconds < LEAST_SECONDS {
            let what = Named {
                group: "authentication.k8s.io",
                kind: "TokenRequest",
                name: "",
            };
            let why = "may not specify a duration less than 10 minutes";
            let cause = Cause::invalid("spec.expirationSeconds", &seconds.into(), why);
            return Err(Failure::invalid(&what, &[cause]));
        }
        let seconds = self.faults.token_lifetime(seconds);
        let birth = Birth::now(&self.now());
        let token = format!("sa.{}{}", birth.uid, Birth::now(&birth.now).uid).replace('-', "");
        let expires = self.later(Some(seconds));
        let stored = json!({
            "metadata": {"name": token},
            "spec": {"namespace": request.namespace, "name": name,
                "uid": account.object["metadata"]["uid"], "expirationTimestamp": expires},
        });
        self.create_raw(&format!("{ROOT}{TOKENS}{token}"), &stored)
            .await?;
        let mut spec = body["spec"].clone();
        spec["expirationSeconds"] = seconds.into();
        Ok(json!({
            "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": name, "namespace": request.namespace,
                "creationTimestamp": birth.now},
            "spec": spec, "status": {"token": token, "expirationTimestamp": expires},
        }))
    }

    /// Paths that are not of objects.
    pub(super) fn authorize_path(&self, user: &User, path: &str) -> Result<(), Failure> {
        const OPEN: [&str; 4] = ["/healthz", "/livez", "/readyz", "/version"];
        let is_open = OPEN.iter().any(|open| path.starts_with(open));
        if is_open
            || user
                .groups
                .iter()
                .any(|g| g == MASTERS || g == "system:authenticated")
        {
            return Ok(());
        }
        let mut failure = Failure::forbidden(&Named::default(), "");
        failure.message = format!(
            "forbidden: User \"{}\" cannot get path \"{path}\"",
            user.name
        );
        failure.details = json!({});
        Err(failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wants<'a>(verb: &'a str, group: &'a str, resource: &str, name: &'a str) -> Attributes<'a> {
        let resource = resource.to_owned();
        Attributes {
            verb,
            group,
            resource,
            name,
        }
    }

    #[test]
    fn a_rule_allows_what_it_names() {
        let rule = json!({"apiGroups": [""], "resources": ["nodes", "pods/status"],
            "verbs": ["get", "patch"]});
        assert!(wants("get", "", "nodes", "a").are_allowed(&rule));
        assert!(wants("patch", "", "pods/status", "a").are_allowed(&rule));
        assert!(!wants("patch", "", "pods", "a").are_allowed(&rule));
        // A right on the object is none on its status.
        assert!(!wants("patch", "", "nodes/status", "a").are_allowed(&rule));
        assert!(!wants("list", "", "nodes", "").are_allowed(&rule));
        assert!(!wants("get", "apps", "nodes", "a").are_allowed(&rule));
        let one = json!({"apiGroups": ["*"], "resources": ["*/token"], "verbs": ["*"],
            "resourceNames": ["x"]});
        assert!(wants("create", "", "serviceaccounts/token", "x").are_allowed(&one));
        assert!(!wants("create", "", "serviceaccounts/token", "y").are_allowed(&one));
        assert!(!wants("create", "", "serviceaccounts", "x").are_allowed(&one));
    }

    #[test]
    fn subjects_are_users_groups_and_accounts() {
        let user = User::of_account("kube-system", "caracal");
        let subject = |kind: &str, name: &str, namespace: &str| {
            let subject = json!({"kind": kind, "name": name, "namespace": namespace});
            user.is_subject(&subject, "")
        };
        assert!(subject("ServiceAccount", "caracal", "kube-system"));
        assert!(!subject("ServiceAccount", "caracal", "default"));
        assert!(subject(
            "User",
            "system:serviceaccount:kube-system:caracal",
            ""
        ));
        assert!(subject("Group", "system:serviceaccounts:kube-system", ""));
        assert!(!subject("Group", "system:masters", ""));
    }

    #[test]
    fn lines_of_the_token_file_are_users() {
        let (token, user) = parse_line("abc,admin,1,\"system:masters,ops\"").expect("a line");
        assert_eq!((&*token, &*user.name), ("abc", "admin"));
        assert_eq!(
            user.groups,
            ["system:masters", "ops", "system:authenticated"]
        );
        assert_eq!(parse_line("abc"), None);
    }
}
