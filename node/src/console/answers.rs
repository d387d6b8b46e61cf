//! Answers of the API, made of those of the admin socket: the same values, with the remedy beside
//! each problem and a sentence beside each path.

use std::time::{Duration, Instant};

use caracal_bgp::{Explanation, RouteInfo};
use caracal_console::{Question, RouteQuestion, Table};
use caracal_model::find_code;
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::admin::routes::Rows;
use crate::admin::{AnswerRequests, Answered, AskMode, AskTopology, Request, RouteFilter};
use crate::exit::NOT_FOUND;

/// An answer's text, or why there is none.
pub(super) type Outcome = Result<String, (StatusCode, String)>;

/// How long an answer is kept that is read from the datastore or from the whole kernel.
const KEPT: Duration = Duration::from_secs(1);

/// The owners, as they are asked.
pub(super) struct Asked<'a, A>(pub(super) &'a A);

fn unavailable(reason: impl std::fmt::Display) -> (StatusCode, String) {
    (StatusCode::SERVICE_UNAVAILABLE, reason.to_string())
}

impl<A: AnswerRequests> Asked<'_, A> {
    pub(super) async fn answer(&self, question: Question) -> Outcome {
        let value = match question {
            Question::Status => with_remedies(self.value(Request::Status).await?),
            Question::Sessions => self.part("sessions", "peers").await?,
            Question::Blocks => self.part("blocks", "blocks").await?,
            Question::Kernel => self.part("kernel", "kernel").await?,
            Question::Session { peer } => {
                let about = peer.clone();
                match self.value(Request::Peer { peer }).await? {
                    Value::Null => {
                        let reason = format!("no peer {about}; /api/v1/sessions lists them");
                        return Err((StatusCode::NOT_FOUND, reason));
                    }
                    session => session,
                }
            }
            Question::Routes(routes) => return self.routes(routes).await,
            Question::Pools => self.value(Request::Pools).await?,
            Question::Nodes => self.value(Request::Nodes).await?,
            Question::Audit => self.value(Request::Audit).await?,
            Question::Explain { destination } => {
                let request = Request::ExplainPath {
                    prefix: destination,
                };
                with_sentences(with_remedies(self.value(request).await?))
            }
            Question::PlanMode { pool, ipip, vxlan } => {
                let question = AskMode { pool, ipip, vxlan };
                self.value(Request::PlanMode(question)).await?
            }
            Question::PlanTopology(question) => {
                let question = AskTopology {
                    auto: question.auto,
                    limit: question.limit,
                    reflectors: question.reflectors,
                    levels: question.levels,
                };
                self.value(Request::PlanTopology(question)).await?
            }
            // A text of the program, what goes on, and what another node is asked.
            Question::Description | Question::Events | Question::OfNode { .. } => Value::Null,
        };
        Ok(value.to_string())
    }

    async fn ask(&self, request: Request) -> Result<Answered, (StatusCode, String)> {
        match self.0.answer(request).await.map_err(unavailable)? {
            Answered::Refused(refused) => {
                let status = match refused.code {
                    NOT_FOUND => StatusCode::NOT_FOUND,
                    _ => StatusCode::CONFLICT,
                };
                Err((status, refused.reason))
            }
            answered => Ok(answered),
        }
    }

    async fn value(&self, request: Request) -> Result<Value, (StatusCode, String)> {
        match self.ask(request).await? {
            Answered::Value(value) => Ok(value),
            _ => Err(unavailable("the answer is not a value")),
        }
    }

    /// A part of the status under a name.
    async fn part(&self, name: &str, key: &str) -> Result<Value, (StatusCode, String)> {
        let mut status = self.value(Request::Status).await?;
        Ok(json!({ "node": status["node"].take(), name: status[key].take() }))
    }

    async fn routes(&self, question: RouteQuestion) -> Outcome {
        let RouteQuestion { limit, table, .. } = question;
        let mut filter = RouteFilter {
            prefix: question.prefix,
            longer: question.longer,
            best: question.best,
            after: question.after,
            ..RouteFilter::default()
        };
        let request = match (table, question.peer) {
            (Table::Received, Some(peer)) => Request::Received { peer, filter },
            (Table::Advertised, Some(peer)) => Request::Advertised { peer, filter },
            (_, peer) => {
                filter.peer = peer;
                Request::Routes { filter }
            }
        };
        match self.ask(request).await? {
            Answered::Rows(rows) => page(*rows, limit).await.map_err(unavailable),
            _ => Err(unavailable("the answer is not a list of routes")),
        }
    }
}

/// A page of routes. It ends with a whole prefix, so that the next one begins behind it.
async fn page(mut rows: Rows, limit: usize) -> Result<String, String> {
    let mut text = String::from("{\"routes\":[");
    let (mut count, mut last, mut next) = (0, String::new(), None);
    'pages: while let Some(lines) = rows.next().await? {
        let lines = String::from_utf8(lines).map_err(|error| error.to_string())?;
        for line in lines.lines() {
            let prefix = prefix_of(line).ok_or("a route without a prefix")?;
            if prefix != last {
                if count >= limit {
                    next = Some(last);
                    break 'pages;
                }
                prefix.clone_into(&mut last);
            }
            if count > 0 {
                text.push(',');
            }
            text.push_str(line);
            count += 1;
        }
    }
    let next = next.map(|prefix| format!(",\"next\":\"{prefix}\""));
    Ok(format!(
        "{text}],\"count\":{count}{}}}",
        next.unwrap_or_default()
    ))
}

fn prefix_of(line: &str) -> Option<&str> {
    let (prefix, _) = line.strip_prefix("{\"prefix\":\"")?.split_once('"')?;
    Some(prefix)
}

/// What to do about each problem, beside it.
fn with_remedies(mut value: Value) -> Value {
    for problem in value["problems"].as_array_mut().into_iter().flatten() {
        let entry = problem["code"].as_str().and_then(find_code);
        if let Some(entry) = entry {
            problem["severity"] = entry.severity.as_str().into();
            problem["remedy"] = entry.remedy.into();
        }
    }
    value
}

/// Why each path is used or not, in words.
fn with_sentences(mut value: Value) -> Value {
    let explained = serde_json::from_value::<Explanation>(value["bgp"].clone());
    let Ok(Explanation { paths, .. }) = explained else {
        return value;
    };
    let told = paths.iter().map(|path: &RouteInfo| path.status.sentence());
    let shown = value["bgp"]["paths"].as_array_mut().into_iter().flatten();
    for (path, sentence) in shown.zip(told) {
        path["sentence"] = sentence.into();
    }
    value
}

/// The last answer to a question that costs much, for whoever asks soon after: while it is young,
/// and no event has come since.
#[derive(Default)]
pub(super) struct Kept(Mutex<Option<(Instant, u64, String)>>);

impl Kept {
    /// One question at a time is asked. `events`: how many there were.
    pub(super) async fn answer(
        &self,
        asked: &Asked<'_, impl AnswerRequests>,
        question: Question,
        events: u64,
    ) -> Outcome {
        let mut kept = self.0.lock().await;
        if let Some((at, number, text)) = &*kept
            && *number == events
            && at.elapsed() < KEPT
        {
            return Ok(text.clone());
        }
        let text = asked.answer(question).await?;
        *kept = Some((Instant::now(), events, text.clone()));
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_have_their_remedies() {
        let status = json!({"problems": [
            {"code": "node.run_dir", "subject": "s", "reason": "r"},
            {"code": "of.another.version", "subject": "s", "reason": "r"},
        ]});
        let told = with_remedies(status);
        assert_eq!(told["problems"][0]["severity"], "warning");
        let remedy = told["problems"][0]["remedy"].as_str();
        assert!(remedy.is_some_and(|text| text.contains("CARACAL_RUN_DIR")));
        assert_eq!(told["problems"][1].get("remedy"), None);
    }
}
