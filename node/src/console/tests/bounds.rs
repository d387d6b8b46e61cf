//! What the owners see of questions, however many are asked: so many at a time and no more.

use std::sync::atomic::AtomicBool;

use tokio::sync::{Notify, mpsc};

use super::*;

/// An owner that answers when it is let, and counts who waits for it.
#[derive(Clone, Default)]
struct SlowOwner(Arc<Inside>);

#[derive(Default)]
struct Inside {
    now: AtomicUsize,
    most: AtomicUsize,
    answers: AtomicBool,
    go: Notify,
}

impl AnswerRequests for SlowOwner {
    async fn answer(&self, _: Order) -> Result<Answered, String> {
        let inside = &self.0;
        let now = inside.now.fetch_add(1, Ordering::SeqCst) + 1;
        inside.most.fetch_max(now, Ordering::SeqCst);
        let go = inside.go.notified();
        if !inside.answers.load(Ordering::SeqCst) {
            go.await;
        }
        inside.now.fetch_sub(1, Ordering::SeqCst);
        Ok(Answered::Value(json!({"node": "n1", "peers": []})))
    }
}

impl AskOthers for SlowOwner {
    fn own_name(&self) -> &'static str {
        "n1"
    }

    async fn ask_other(&self, node: &str, _: &str) -> Result<Bytes, NoAnswer> {
        Err(NoAnswer::NoSuchNode(node.to_owned()))
    }
}

/// Who waits in vain is told so, and costs the owners nothing.
#[tokio::test]
async fn the_owners_hear_so_many_questions_at_a_time() {
    const ASKED: usize = 20;
    let owner = SlowOwner::default();
    let inside = Arc::clone(&owner.0);
    let address = serve_at(None, owner).await;
    let (tell, mut told) = mpsc::channel(ASKED);
    for _ in 0..ASKED {
        let tell = tell.clone();
        tokio::spawn(async move {
            let text = get(address, "/api/v1/status", LOCAL).await;
            tell.send(text).await.unwrap();
        });
    }
    let mut next = async || {
        let text = tokio::time::timeout(Duration::from_secs(20), told.recv()).await;
        text.unwrap().unwrap()
    };
    // The owners answer nobody before the others have been told to ask again.
    for _ in TURNS..ASKED {
        let text = next().await;
        assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
        assert!(text.contains("the node answers other questions"), "{text}");
    }
    assert_eq!(inside.now.load(Ordering::SeqCst), TURNS);
    inside.answers.store(true, Ordering::SeqCst);
    inside.go.notify_waiters();
    for _ in 0..TURNS {
        let text = next().await;
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    }
    assert_eq!(inside.most.load(Ordering::SeqCst), TURNS);
    let text = get(address, "/api/v1/status", LOCAL).await;
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
}
