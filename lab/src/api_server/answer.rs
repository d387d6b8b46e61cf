//! Answers: objects in the form that was asked for, errors as `Status`, streams.

use std::io;
use std::time::SystemTime;

use bytes::Bytes;
use caracal_model::Timestamp;
use futures_util::stream::{self, StreamExt as _};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, Full, StreamBody};
use hyper::body::Frame;
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::kinds::Kind;
use super::request::Form;
use super::status::Failure;

/// A body. Its error cuts the connection.
pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Answer to a request.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) code: StatusCode,
    pub(super) body: Value,
    pub(super) warnings: Vec<String>,
}

impl Answer {
    pub(super) const fn ok(body: Value) -> Self {
        Self {
            code: StatusCode::OK,
            body,
            warnings: Vec::new(),
        }
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let mut response = json_response(self.code, &self.body);
        for warning in self.warnings {
            let text = warning.replace('\\', "\\\\").replace('"', "\\\"");
            if let Ok(value) = format!("299 - \"{text}\"").parse() {
                response.headers_mut().append("warning", value);
            }
        }
        response
    }
}

/// An answer with a JSON body.
pub(super) fn json_response(code: StatusCode, value: &Value) -> Response<Body> {
    let mut text = value.to_string();
    text.push('\n');
    let mut response = text_response(code, text);
    set(&mut response, "content-type", "application/json");
    response
}

/// An answer with a plain text body.
pub(super) fn text_response(code: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let body = Full::new(text.into()).map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = code;
    set(&mut response, "content-type", "text/plain; charset=utf-8");
    set(&mut response, "x-content-type-options", "nosniff");
    response
}

fn set(response: &mut Response<Body>, name: &'static str, value: &'static str) {
    let value = hyper::header::HeaderValue::from_static(value);
    response.headers_mut().insert(name, value);
}

/// An answer with the failure's code and `Status`.
pub(super) fn failure_response(failure: &Failure) -> Response<Body> {
    let mut response = if failure.is_plain {
        text_response(failure.code, format!("{}\n", failure.message))
    } else {
        json_response(failure.code, &failure.status())
    };
    if let Some(seconds) = failure.retry_after() {
        response.headers_mut().insert("retry-after", seconds.into());
    }
    response
}

/// Streams lines of the channel as they come. An error cuts the connection.
pub(super) fn stream_response(lines: mpsc::Receiver<io::Result<Bytes>>) -> Response<Body> {
    let frames = stream::unfold(lines, |mut lines| async move {
        let line = lines.recv().await?;
        Some((line.map(Frame::data), lines))
    });
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    set(&mut response, "content-type", "application/json");
    response
}

/// The same answer, cut after so many lines.
pub(super) fn shortened_response(whole: Response<Body>, lines: usize) -> Response<Body> {
    let frames = BodyStream::new(whole.into_body()).take(lines);
    let cut = stream::once(async { Err(io::Error::other("cut on demand")) });
    let mut response = Response::new(StreamBody::new(frames.chain(cut)).boxed_unsync());
    set(&mut response, "content-type", "application/json");
    response
}

/// One object in the form that was asked for.
pub(super) fn object(kind: &Kind, value: &Value, form: Form) -> Value {
    match form {
        Form::Whole => served(kind, value),
        Form::Metadata => json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
            "metadata": value["metadata"],
        }),
        Form::Table => table(kind, &[value], &value["metadata"]),
    }
}

/// A list in the form that was asked for.
pub(super) fn list(kind: &Kind, values: &[&Value], metadata: &Value, form: Form) -> Value {
    match form {
        Form::Whole => {
            let items: Vec<_> = values.iter().map(|v| served(kind, v)).collect();
            json!({"kind": kind.list_kind, "apiVersion": kind.api_version(),
                "metadata": metadata, "items": items})
        }
        Form::Metadata => {
            let items: Vec<_> = values.iter().map(|v| object(kind, v, form)).collect();
            json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata, "items": items})
        }
        Form::Table => table(kind, values, metadata),
    }
}

/// In the version of the request.
fn served(kind: &Kind, value: &Value) -> Value {
    let mut value = value.clone();
    value["apiVersion"] = kind.api_version().into();
    value
}

/// Table for `kubectl get`: the name, the columns of the definition, the age.
fn table(kind: &Kind, values: &[&Value], metadata: &Value) -> Value {
    let column = |name: &str, kind: &str, format: &str| json!({"name": name, "type": kind, "format": format, "description": "", "priority": 0});
    let mut columns = vec![column("Name", "string", "name")];
    for defined in &kind.columns {
        let text = |key: &str| defined[key].as_str().unwrap_or_default();
        columns.push(column(text("name"), text("type"), text("format")));
    }
    columns.push(column("Age", "string", ""));
    let now = Timestamp::from(SystemTime::now());
    let cells = |value: &Value| {
        let mut cells = vec![value["metadata"]["name"].clone()];
        for defined in &kind.columns {
            let path = defined["jsonPath"].as_str().unwrap_or_default();
            let mut at = value;
            for part in path.split('.').filter(|p| !p.is_empty()) {
                at = at.get(part).unwrap_or(&Value::Null);
            }
            cells.push(at.clone());
        }
        let created = value["metadata"]["creationTimestamp"].as_str();
        let created = created.and_then(Timestamp::parse_rfc3339);
        cells.push(created.map_or(Value::Null, |at| age(now.since(at).as_secs()).into()));
        cells
    };
    let row = |value: &&Value| json!({"cells": cells(value), "object": object(kind, value, Form::Metadata)});
    let rows: Vec<_> = values.iter().map(row).collect();
    let mut version = json!({});
    for key in ["resourceVersion", "continue", "remainingItemCount"] {
        if let Some(value) = metadata.get(key) {
            version[key] = value.clone();
        }
    }
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": version,
        "columnDefinitions": columns, "rows": rows})
}

/// As kubectl writes it, roughly.
fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}
