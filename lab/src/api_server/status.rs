//! Errors as the API server tells them: a `Status` object with a code, a reason and details.

use hyper::StatusCode;
use serde_json::{Value, json};

/// Fault of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cause {
    /// Such as `FieldValueInvalid`.
    pub(super) reason: &'static str,
    pub(super) field: String,
    pub(super) message: String,
}

impl Cause {
    pub(super) fn new(reason: &'static str, field: &str, message: impl Into<String>) -> Self {
        Self {
            reason,
            field: field.to_owned(),
            message: message.into(),
        }
    }

    pub(super) fn invalid(field: &str, value: &Value, why: &str) -> Self {
        let message = format!("Invalid value: {value}: {why}");
        Self::new("FieldValueInvalid", field, message)
    }

    pub(super) fn required(field: &str) -> Self {
        Self::new("FieldValueRequired", field, "Required value")
    }

    pub(super) fn forbidden(field: &str, why: &str) -> Self {
        Self::new("FieldValueForbidden", field, format!("Forbidden: {why}"))
    }
}

/// A group and a name in it: `ippools.crd.projectcalico.org`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Named<'a> {
    pub(super) group: &'a str,
    /// The plural or the kind, as the error wants it.
    pub(super) kind: &'a str,
    pub(super) name: &'a str,
}

impl Named<'_> {
    fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.kind.to_owned()
        } else {
            format!("{}.{}", self.kind, self.group)
        }
    }

    fn details(&self) -> Value {
        let mut details = json!({});
        for (key, value) in [
            ("name", self.name),
            ("group", self.group),
            ("kind", self.kind),
        ] {
            if !value.is_empty() {
                details[key] = value.into();
            }
        }
        details
    }
}

/// An answer that is not what was asked for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Failure {
    pub(super) code: StatusCode,
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) details: Value,
    /// Not a Status but this text, as the filter before the API does.
    pub(super) is_plain: bool,
}

impl Failure {
    fn new(code: StatusCode, reason: &'static str, message: String, details: Value) -> Self {
        Self {
            code,
            reason,
            message,
            details,
            is_plain: false,
        }
    }

    /// 400.
    pub(super) fn bad(message: impl Into<String>) -> Self {
        let code = StatusCode::BAD_REQUEST;
        Self::new(code, "BadRequest", message.into(), Value::Null)
    }

    /// 422, as servers answer that list nothing as a stream.
    pub(super) fn no_initial_events() -> Self {
        let what = Named {
            group: "meta.k8s.io",
            kind: "ListOptions",
            name: "",
        };
        let why = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is \
                   enabled";
        Self::invalid(&what, &[Cause::forbidden("sendInitialEvents", why)])
    }

    /// 401.
    pub(super) fn unauthorized() -> Self {
        let code = StatusCode::UNAUTHORIZED;
        Self::new(code, "Unauthorized", "Unauthorized".into(), Value::Null)
    }

    /// 403.
    pub(super) fn forbidden(what: &Named<'_>, why: &str) -> Self {
        let name = match what.name {
            "" => String::new(),
            name => format!(" \"{name}\""),
        };
        let message = format!("{}{name} is forbidden: {why}", what.qualified());
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message, what.details())
    }

    /// 404 of an object.
    pub(super) fn not_found(what: &Named<'_>) -> Self {
        let message = format!("{} \"{}\" not found", what.qualified(), what.name);
        Self::new(StatusCode::NOT_FOUND, "NotFound", message, what.details())
    }

    /// 404 of a path.
    pub(super) fn no_such_path() -> Self {
        let message = "the server could not find the requested resource";
        Self::new(StatusCode::NOT_FOUND, "NotFound", message.into(), json!({}))
    }

    /// 405.
    pub(super) fn method() -> Self {
        let message = "the server does not allow this method on the requested resource";
        let code = StatusCode::METHOD_NOT_ALLOWED;
        Self::new(code, "MethodNotAllowed", message.into(), json!({}))
    }

    /// 406.
    pub(super) fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json";
        let code = StatusCode::NOT_ACCEPTABLE;
        Self::new(code, "NotAcceptable", message.into(), json!({}))
    }

    /// 409: the object exists.
    pub(super) fn exists(what: &Named<'_>) -> Self {
        let message = format!("{} \"{}\" already exists", what.qualified(), what.name);
        let code = StatusCode::CONFLICT;
        Self::new(code, "AlreadyExists", message, what.details())
    }

    /// 409: it is not as the client thinks.
    pub(super) fn conflict(what: &Named<'_>, why: &str) -> Self {
        let qualified = what.qualified();
        let message = format!(
            "Operation cannot be fulfilled on {qualified} \"{}\": {why}",
            what.name
        );
        let code = StatusCode::CONFLICT;
        Self::new(code, "Conflict", message, what.details())
    }

    /// 409: changed meanwhile.
    pub(super) fn modified(what: &Named<'_>) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version \
                   and try again";
        Self::conflict(what, why)
    }

    /// 410.
    pub(super) fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message.into(), Value::Null)
    }

    /// 413.
    pub(super) fn too_large(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit}");
        let code = StatusCode::PAYLOAD_TOO_LARGE;
        Self::new(code, "RequestEntityTooLarge", message, json!({}))
    }

    /// 415.
    pub(super) fn media_type(accepted: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: \
             {accepted}"
        );
        let code = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Self::new(code, "UnsupportedMediaType", message, json!({}))
    }

    /// 422.
    pub(super) fn invalid(what: &Named<'_>, causes: &[Cause]) -> Self {
        let texts: Vec<_> = causes
            .iter()
            .map(|c| format!("{}: {}", c.field, c.message))
            .collect();
        let text = match &texts[..] {
            [one] => one.clone(),
            all => format!("[{}]", all.join(", ")),
        };
        let message = format!("{} \"{}\" is invalid: {text}", what.qualified(), what.name);
        let mut details = what.details();
        let causes = causes
            .iter()
            .map(|c| json!({"reason": c.reason, "message": c.message, "field": c.field}));
        details["causes"] = causes.collect();
        let code = StatusCode::UNPROCESSABLE_ENTITY;
        Self::new(code, "Invalid", message, details)
    }

    /// 429 of the storage.
    pub(super) fn initializing() -> Self {
        let message = "storage is (re)initializing".to_owned();
        let details = json!({"retryAfterSeconds": 1});
        let code = StatusCode::TOO_MANY_REQUESTS;
        Self::new(code, "TooManyRequests", message, details)
    }

    /// 429 of the filter before the API: plain text.
    pub(super) fn too_many() -> Self {
        let message = "Too many requests, please try again later.".to_owned();
        let code = StatusCode::TOO_MANY_REQUESTS;
        let mut failure = Self::new(code, "TooManyRequests", message, Value::Null);
        failure.is_plain = true;
        failure
    }

    /// 500.
    pub(super) fn internal(message: impl std::fmt::Display) -> Self {
        let message = message.to_string();
        let details = json!({"causes": [{"message": message}]});
        let code = StatusCode::INTERNAL_SERVER_ERROR;
        let message = format!("Internal error occurred: {message}");
        Self::new(code, "InternalError", message, details)
    }

    /// 504: a revision of the future.
    pub(super) fn too_new(asked: i64, newest: i64) -> Self {
        let message = format!("Too large resource version: {asked}, current: {newest}");
        let message = format!("Timeout: {message}");
        let causes =
            json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]);
        let details = json!({"causes": causes, "retryAfterSeconds": 1});
        Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message, details)
    }

    /// The `Status` object.
    pub(super) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason,
        });
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status["code"] = self.code.as_u16().into();
        status
    }

    /// After how many seconds to try again.
    pub(super) fn retry_after(&self) -> Option<u64> {
        if self.code == StatusCode::TOO_MANY_REQUESTS {
            return Some(1);
        }
        self.details["retryAfterSeconds"].as_u64()
    }
}
