//! Parts of a request: the verb, the kind, the name, the parameters.

use std::collections::BTreeMap;
use std::sync::Arc;

use hyper::{HeaderMap, Method, Uri};

use super::kinds::{Kind, Registry};
use super::objects::FieldValidation;
use super::status::{Failure, Named};

/// In which form an object is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Whole,
    /// `PartialObjectMetadata`, or a list of them.
    Metadata,
    Table,
}

/// A request for objects.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) kind: Arc<Kind>,
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) subresource: Option<String>,
    /// As rights name it.
    pub(super) verb: &'static str,
    pub(super) query: Query,
}

/// The parameters of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Query {
    values: BTreeMap<String, String>,
}

impl Query {
    pub(super) fn parse(uri: &Uri) -> Self {
        let pairs = uri.query().unwrap_or_default().split('&');
        let pair = |pair: &str| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (unescape(key), unescape(value))
        };
        let pairs = pairs.filter(|p| !p.is_empty()).map(pair);
        Self {
            values: pairs.collect(),
        }
    }

    /// Empty when it is not there.
    pub(super) fn text(&self, key: &str) -> &str {
        self.values.get(key).map_or("", String::as_str)
    }

    pub(super) fn is(&self, key: &str) -> bool {
        ["true", "1"].contains(&self.text(key))
    }

    /// A revision. An empty one is none.
    pub(super) fn revision(&self) -> Result<Option<i64>, Failure> {
        let text = self.text("resourceVersion");
        if text.is_empty() {
            return Ok(None);
        }
        let number = text.parse().ok().filter(|n| *n >= 0);
        number.map(Some).ok_or_else(|| {
            Failure::bad(format!(
                "resourceVersion: Invalid value: \"{text}\": strconv.ParseUint: parsing \
                 \"{text}\": invalid syntax"
            ))
        })
    }

    pub(super) fn field_validation(&self) -> Result<FieldValidation, Failure> {
        FieldValidation::parse(self.text("fieldValidation"))
    }

    pub(super) fn is_dry_run(&self) -> bool {
        self.text("dryRun") == "All"
    }
}

impl Request {
    /// From method and path; `None` when the path is not one of objects.
    pub(super) fn parse(
        registry: &Registry,
        method: &Method,
        uri: &Uri,
    ) -> Option<Result<Self, Failure>> {
        let path: Vec<String> = uri.path().split('/').map(unescape).collect();
        let path: Vec<&str> = path
            .iter()
            .map(String::as_str)
            .filter(|p| !p.is_empty())
            .collect();
        let (group, version, rest) = match &path[..] {
            ["api", version, rest @ ..] if !rest.is_empty() => ("", *version, rest),
            ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, *version, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, plural, more @ ..]
                if !["status", "finalize"].contains(plural) || !more.is_empty() =>
            {
                (Some(*namespace), &rest[2..])
            }
            _ => (None, rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, None, None),
            [plural, name] => (*plural, Some(*name), None),
            [plural, name, subresource] => (*plural, Some(*name), Some(*subresource)),
            _ => return Some(Err(Failure::no_such_path())),
        };
        let Some(kind) = registry.find(group, version, plural) else {
            return Some(Err(Failure::no_such_path()));
        };
        if kind.is_namespaced != namespace.is_some() && (namespace.is_some() || name.is_some()) {
            return Some(Err(Failure::no_such_path()));
        }
        let query = Query::parse(uri);
        let verb = match (method, name.is_some()) {
            (&Method::GET | &Method::HEAD, _) if query.is("watch") => "watch",
            (&Method::GET | &Method::HEAD, true) => "get",
            (&Method::GET | &Method::HEAD, false) => "list",
            (&Method::POST, _) => "create",
            (&Method::PUT, true) => "update",
            (&Method::PATCH, true) => "patch",
            (&Method::DELETE, true) => "delete",
            (&Method::DELETE, false) => "deletecollection",
            _ => return Some(Err(Failure::method())),
        };
        Some(Ok(Self {
            kind,
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
            subresource: subresource.map(str::to_owned),
            verb,
            query,
        }))
    }

    /// The one object that a request is about: of a list or watch, by the field `metadata.name`.
    pub(super) fn object_name(&self) -> Option<&str> {
        let fields = self.query.text("fieldSelector").split(',');
        let mut fields = fields.filter_map(|term| term.trim().split_once('='));
        let selected = fields.find(|(field, _)| *field == "metadata.name");
        let selected = selected.map(|(_, name)| name.trim_start_matches('='));
        self.name.as_deref().or(selected)
    }

    /// The object by its plural, for errors.
    pub(super) fn named<'a>(&'a self, name: &'a str) -> Named<'a> {
        Named {
            group: &self.kind.group,
            kind: &self.kind.plural,
            name,
        }
    }

    /// Where the object of this name is stored.
    pub(super) fn key(&self, name: &str) -> String {
        self.kind.key(self.namespace.as_deref(), name)
    }
}

/// The first form that is accepted and can be given.
pub(super) fn form(headers: &HeaderMap, is_list: bool) -> Result<Form, Failure> {
    let accept = headers.get_all("accept").iter();
    let accept: Vec<_> = accept.filter_map(|v| v.to_str().ok()).collect();
    if accept.is_empty() {
        return Ok(Form::Whole);
    }
    let metadata = if is_list {
        "PartialObjectMetadataList"
    } else {
        "PartialObjectMetadata"
    };
    for range in accept.iter().flat_map(|a| a.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        if !["application/json", "application/*", "*/*"].contains(&parts.next().unwrap_or_default())
        {
            continue;
        }
        let value = |key: &str| {
            let mut parts = range.split(';').filter_map(|p| p.trim().split_once('='));
            parts.find(|(k, _)| *k == key).map(|(_, v)| v)
        };
        let fits = value("g") == Some("meta.k8s.io") && value("v") == Some("v1");
        match value("as") {
            None => return Ok(Form::Whole),
            Some(word) if word == metadata && fits => return Ok(Form::Metadata),
            Some("Table") if fits => return Ok(Form::Table),
            Some(_) => {}
        }
    }
    Err(Failure::not_acceptable())
}

/// `%2F` and `+` of a URL.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        let hex = (*first == b'%').then(|| more.get(..2)).flatten();
        let hex = hex.and_then(|h| std::str::from_utf8(h).ok());
        match hex.and_then(|h| u8::from_str_radix(h, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &more[2..];
            }
            None => {
                bytes.push(if *first == b'+' { b' ' } else { *first });
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Parsed = (String, Option<String>, &'static str);

    fn parsed(method: &Method, uri: &str) -> Option<Result<Parsed, u16>> {
        let uri: Uri = uri.parse().expect("a URI");
        let request = Request::parse(&Registry::built_in(), method, &uri)?;
        let request = request.map(|r| (r.kind.plural.clone(), r.name, r.verb));
        Some(request.map_err(|f| f.code.as_u16()))
    }

    #[test]
    fn rights_are_asked_for_the_object_that_a_field_names() {
        let name = |uri: &str| {
            let uri: Uri = uri.parse().expect("a URI");
            let request = Request::parse(&Registry::built_in(), &Method::GET, &uri);
            let request = request.and_then(Result::ok).expect("a request");
            request.object_name().map(str::to_owned)
        };
        let list = "/api/v1/namespaces/a/secrets";
        assert_eq!(name(list), None);
        assert_eq!(name(&format!("{list}/b")).as_deref(), Some("b"));
        let by_field = format!("{list}?watch=true&fieldSelector=type%3Dx,metadata.name%3Db");
        assert_eq!(name(&by_field).as_deref(), Some("b"));
        let not = format!("{list}?fieldSelector=metadata.name!%3Db");
        assert_eq!(name(&not), None);
    }

    #[test]
    fn paths_name_kinds_and_objects() {
        let get = Method::GET;
        let is = |uri: &str, plural: &str, name: Option<&str>, verb: &'static str| {
            let expected = (plural.to_owned(), name.map(str::to_owned), verb);
            assert_eq!(parsed(&get, uri), Some(Ok(expected)), "{uri}");
        };
        is("/api/v1/nodes", "nodes", None, "list");
        is("/api/v1/nodes/n1", "nodes", Some("n1"), "get");
        is("/api/v1/nodes/n1/status", "nodes", Some("n1"), "get");
        is("/api/v1/pods?watch=true", "pods", None, "watch");
        is("/api/v1/namespaces/a", "namespaces", Some("a"), "get");
        is(
            "/api/v1/namespaces/a/status",
            "namespaces",
            Some("a"),
            "get",
        );
        is("/api/v1/namespaces/a/pods/b", "pods", Some("b"), "get");
        is(
            "/apis/apps/v1/namespaces/a/daemonsets",
            "daemonsets",
            None,
            "list",
        );
        assert_eq!(parsed(&get, "/api/v1"), None);
        assert_eq!(parsed(&get, "/api/v1/unknowns"), Some(Err(404)));
        assert_eq!(parsed(&get, "/api/v1/namespaces/a/nodes"), Some(Err(404)));
        assert_eq!(parsed(&get, "/api/v1/pods/b"), Some(Err(404)));
        assert_eq!(parsed(&Method::PUT, "/api/v1/nodes"), Some(Err(405)));
    }

    #[test]
    fn the_first_acceptable_form_is_given() {
        let of = |accept: &'static str, is_list: bool| {
            let mut headers = HeaderMap::new();
            headers.insert("accept", accept.parse().expect("a value"));
            form(&headers, is_list).map_err(|f| f.code.as_u16())
        };
        assert_eq!(of("application/json", true), Ok(Form::Whole));
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        assert_eq!(of(table, true), Ok(Form::Table));
        let metadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        assert_eq!(of(metadata, false), Ok(Form::Metadata));
        assert_eq!(of(metadata, true), Err(406));
        assert_eq!(of("application/vnd.kubernetes.protobuf", false), Err(406));
    }

    #[test]
    fn parameters_are_unescaped() {
        let uri: Uri = "/x?labelSelector=a+in+%28b%2Cc%29&limit=5"
            .parse()
            .expect("a URI");
        let query = Query::parse(&uri);
        assert_eq!(query.text("labelSelector"), "a in (b,c)");
        assert_eq!(query.text("limit"), "5");
    }
}
