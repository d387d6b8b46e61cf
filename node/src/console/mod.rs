//! The console of a node: its API of questions as JSON over HTTP, its events, and its page. It
//! reads only. It asks through the same requests as the admin socket ([`crate::admin::Request`]),
//! so that both say the same, and it is bounded: questions a second, questions at a time, clients
//! of events, octets of an answer. What is asked, and by whom, is judged by `caracal-console`.

mod answers;
mod stream;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use caracal_console::{
    Access, Caller, Denial, NO_SUCH_PATH, Pacer, Question, QuestionError, SECURITY_HEADERS,
    description, page_file,
};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use serde_json::json;
use tokio::sync::{Semaphore, watch};

use crate::admin::AnswerRequests;
use crate::http::body::ReplyBody;
use crate::http::connection::Connection;
use crate::http::{self, Handler, Reply, Speaks, respond};
use crate::others::AskOthers;
use answers::{Asked, Kept, Outcome};
use stream::EventHub;
pub(crate) use stream::dated;

/// Questions that are answered at a time.
const TURNS: usize = 4;
/// Questions that other nodes are asked at a time. They have turns of their own: who waits for
/// another node keeps nobody waiting here.
const TURNS_ELSEWHERE: usize = 8;
/// Longest wait for a turn.
const WAIT: Duration = Duration::from_secs(2);
/// Longest wait for a plan of all nodes.
const PLANNING: Duration = Duration::from_secs(20);
const JSON: &str = "application/json";

/// Who may ask, as it is now, or why nobody may.
pub(crate) type Accesses = watch::Receiver<Result<Access, String>>;

struct Console<A> {
    answers: A,
    accesses: Accesses,
    /// For questions, and for those that are refused for who asks them.
    pacers: Mutex<[Pacer; 2]>,
    turns: Semaphore,
    turns_elsewhere: Semaphore,
    nodes: Kept,
    audit: Kept,
    events: Arc<EventHub>,
}

/// Serves for ever; takes the port as soon as it is free.
pub(crate) async fn serve(
    address: SocketAddr,
    speaks: Speaks,
    accesses: Accesses,
    answers: impl AnswerRequests + AskOthers,
) {
    let events = Arc::new(EventHub::default());
    let handler = handler(accesses, answers.clone(), Arc::clone(&events));
    tokio::select! {
        () = http::serve_with(address, "console", speaks, handler) => {}
        () = events.run(answers) => {}
    }
}

fn handler(
    accesses: Accesses,
    answers: impl AnswerRequests + AskOthers,
    events: Arc<EventHub>,
) -> Handler {
    let now = Instant::now();
    let console = Arc::new(Console {
        answers,
        accesses,
        pacers: Mutex::new([Pacer::new(now), Pacer::new(now)]),
        turns: Semaphore::new(TURNS),
        turns_elsewhere: Semaphore::new(TURNS_ELSEWHERE),
        nodes: Kept::default(),
        audit: Kept::default(),
        events,
    });
    Arc::new(move |request| {
        let console = Arc::clone(&console);
        Box::pin(async move {
            let mut reply = console.answer(&request).await;
            for (name, value) in SECURITY_HEADERS {
                let name = HeaderName::from_static(name);
                let value = HeaderValue::from_static(value);
                reply.headers_mut().insert(name, value);
            }
            reply
        })
    })
}

impl<A: AnswerRequests + AskOthers> Console<A> {
    async fn answer(&self, request: &Request<Incoming>) -> Reply {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return refusal(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD");
        }
        let path = request.uri().path();
        let page = page_file(path);
        if let Some(refused) = self.refuses(request, page.is_some()) {
            return refused;
        }
        if let Some(file) = page {
            return respond(StatusCode::OK, file.content, file.text());
        }
        let question = match Question::parse(path, request.uri().query()) {
            Ok(question) => question,
            Err(QuestionError::NoSuchPath) => {
                return refusal(StatusCode::NOT_FOUND, NO_SUCH_PATH);
            }
            Err(QuestionError::Invalid(reason)) => {
                return refusal(StatusCode::BAD_REQUEST, &reason);
            }
        };
        let question = match question {
            Question::OfNode {
                node,
                question,
                path,
            } => match node == self.answers.own_name() {
                true => *question,
                false => {
                    return match self.ask_other(&node, &path).await {
                        Ok(text) => respond(StatusCode::OK, JSON, text),
                        Err((status, reason)) => refusal(status, &reason),
                    };
                }
            },
            question => question,
        };
        match question {
            Question::Description => respond(StatusCode::OK, JSON, description()),
            Question::Events => self.events(request),
            question => match self.ask(question).await {
                Ok(text) => respond(StatusCode::OK, JSON, text),
                Err((status, reason)) => refusal(status, &reason),
            },
        }
    }

    /// The answer to who may not ask, or asks too much.
    fn refuses(&self, request: &Request<Incoming>, is_public: bool) -> Option<Reply> {
        let headers = request.headers();
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let connection = request.extensions().get::<Connection>();
        let caller = Caller {
            host: text(HOST),
            authorization: text(AUTHORIZATION),
            is_certified: connection.is_some_and(|connection| connection.is_certified),
        };
        let checked = match &*self.accesses.borrow() {
            Ok(access) => access.check(caller, is_public),
            Err(reason) => return Some(refusal(StatusCode::SERVICE_UNAVAILABLE, reason)),
        };
        if !self.may_answer(checked.is_err()) {
            let mut reply = refusal(
                StatusCode::TOO_MANY_REQUESTS,
                "the console answers 25 questions a second; ask again in a second",
            );
            let retry = HeaderName::from_static("retry-after");
            reply
                .headers_mut()
                .insert(retry, HeaderValue::from_static("1"));
            return Some(reply);
        }
        let denial = checked.err()?;
        let status = match denial {
            Denial::Host(_) => StatusCode::MISDIRECTED_REQUEST,
            Denial::Token | Denial::Neither => StatusCode::UNAUTHORIZED,
            Denial::Certificate => StatusCode::FORBIDDEN,
        };
        let mut reply = refusal(status, &denial.to_string());
        if status == StatusCode::UNAUTHORIZED {
            let name = HeaderName::from_static("www-authenticate");
            let value = HeaderValue::from_static("Bearer realm=\"caracal\"");
            reply.headers_mut().insert(name, value);
        }
        Some(reply)
    }

    fn may_answer(&self, is_denied: bool) -> bool {
        let mut pacers = self.pacers.lock().unwrap_or_else(PoisonError::into_inner);
        pacers[usize::from(is_denied)].take(Instant::now())
    }

    /// Asks another node, when it is this question's turn. It answers with its own rights, and its
    /// time and its size are bounded there and in [`crate::others`].
    async fn ask_other(&self, node: &str, path: &str) -> Outcome {
        let turn = tokio::time::timeout(WAIT, self.turns_elsewhere.acquire()).await;
        let _turn = turn.map_err(|_| busy())?.map_err(|_| busy())?;
        let answer = self.answers.ask_other(node, path).await;
        let answer = answer.map_err(|error| (error.status(), error.to_string()))?;
        String::from_utf8(answer.into()).map_err(|_| {
            let reason = format!("the answer of node {node} is no text");
            (StatusCode::BAD_GATEWAY, reason)
        })
    }

    /// Asks the owners, when it is this question's turn.
    async fn ask(&self, question: Question) -> Outcome {
        // The whole kernel is read for it, or all nodes are planned.
        let is_plan = matches!(
            question,
            Question::PlanMode { .. } | Question::PlanTopology(_)
        );
        let is_large = is_plan || matches!(question, Question::Explain { .. });
        let turns = if is_large { 2 } else { 1 };
        let turn = tokio::time::timeout(WAIT, self.turns.acquire_many(turns)).await;
        let _turn = turn.map_err(|_| busy())?.map_err(|_| busy())?;
        let (asked, events) = (Asked(&self.answers), self.events.number());
        let answer = async {
            match question {
                Question::Nodes => self.nodes.answer(&asked, question, events).await,
                Question::Audit => self.audit.answer(&asked, question, events).await,
                question => asked.answer(question).await,
            }
        };
        let answer = match is_plan {
            true => http::within(PLANNING, answer).await,
            false => http::in_time(answer).await,
        };
        answer.unwrap_or_else(|reason| Err((StatusCode::SERVICE_UNAVAILABLE, reason)))
    }

    fn events(&self, request: &Request<Incoming>) -> Reply {
        let connection = request.extensions().get::<Connection>();
        let joined = match (request.method(), connection) {
            (&Method::GET, Some(connection)) => self.events.join(connection.clone()),
            _ => return refusal(StatusCode::METHOD_NOT_ALLOWED, "only GET"),
        };
        let Some(parts) = joined else {
            let reason = "as many clients as may follow events do so already";
            return refusal(StatusCode::SERVICE_UNAVAILABLE, reason);
        };
        let mut reply = Reply::new(ReplyBody::Parts(parts));
        let headers = reply.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        reply
    }
}

fn busy() -> (StatusCode, String) {
    let reason = "the node answers other questions; ask again".to_owned();
    (StatusCode::SERVICE_UNAVAILABLE, reason)
}

fn refusal(status: StatusCode, reason: &str) -> Reply {
    respond(status, JSON, json!({ "error": reason }).to_string())
}
