#![allow(clippy::unwrap_used)]

use caracal_datastore::TestFolder;

use super::*;

#[derive(Clone)]
struct Echo;

impl AnswerRequests for Echo {
    async fn answer(&self, request: Request) -> Result<Answered, String> {
        match request {
            Request::Status => Ok(Value::from("fine").into()),
            Request::Received { peer, .. } => Err(format!("no peer {peer}")),
            // Never ready; what moves is told.
            Request::Reload => std::future::pending().await,
            other => Ok(serde_json::to_value(other).expect("valid").into()),
        }
    }

    async fn progress(&self) -> Option<String> {
        Some("half of it".to_owned())
    }
}

#[tokio::test]
async fn who_waits_is_told_how_far_it_is() {
    let (mut client, server) = UnixStream::pair().unwrap();
    let server = tokio::spawn(converse(server, Echo));
    let question = b"{\"request\":\"reload\"}\n";
    client.write_all(question).await.unwrap();
    let mut lines = tokio::io::BufReader::new(&mut client).lines();
    let first = lines.next_line().await.unwrap().unwrap();
    assert_eq!(first, "{\"progress\":\"half of it\"}");
    server.abort();
}

#[test]
fn an_old_question_without_a_filter_is_understood() {
    let request = serde_json::from_str(r#"{"request":"routes"}"#).unwrap();
    let Request::Routes { filter } = request else {
        panic!("{request:?}")
    };
    assert_eq!(filter, RouteFilter::default());
}

#[tokio::test]
async fn a_socket_that_a_killed_process_leaves_open_for_a_moment_is_replaced() {
    let dir = TestFolder::new("admin-left");
    let left = std::os::unix::net::UnixListener::bind(socket_path(&dir)).unwrap();
    let closed_after_a_look = tokio::task::spawn_blocking(move || left.accept().map(drop));
    listen(&dir, None).await.unwrap();
    closed_after_a_look.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_socket_that_a_cleaner_removed_is_noticed() {
    let dir = TestFolder::new("admin-swept");
    let listener = listen(&dir, None).await.unwrap();
    let server = tokio::spawn(serve(listener, dir.to_path_buf(), Echo));
    std::fs::remove_dir_all(&dir).unwrap();
    let noticed = tokio::time::timeout(Duration::from_secs(60), server).await;
    noticed
        .expect("it ends, so that the socket is made again")
        .unwrap();
    let listener = listen(&dir, None).await.unwrap();
    let server = tokio::spawn(serve(listener, dir.to_path_buf(), Echo));
    let answer = tokio::task::spawn_blocking({
        let dir = dir.to_path_buf();
        move || ask(&dir, &Request::Status).map_err(|e| e.to_string())
    });
    assert_eq!(answer.await.unwrap().unwrap(), "fine");
    server.abort();
}

#[tokio::test]
async fn questions_and_answers() {
    let dir = TestFolder::new("admin");
    let listener = listen(&dir, None).await.unwrap();
    let server = tokio::spawn(serve(listener, dir.to_path_buf(), Echo));
    let answers = tokio::task::spawn_blocking({
        let dir = dir.to_path_buf();
        move || {
            let ask = |request| ask(&dir, &request).map_err(|e| e.to_string());
            let prefix = "10.0.0.0/26".parse().unwrap();
            (
                ask(Request::Status),
                ask(Request::Received {
                    peer: "x".into(),
                    filter: RouteFilter::default(),
                }),
                ask(Request::Explain { prefix }),
            )
        }
    });
    let (status, received, explain) = answers.await.unwrap();
    assert_eq!(status.unwrap(), "fine");
    assert_eq!(received.unwrap_err(), "no peer x");
    assert_eq!(explain.unwrap()["prefix"], "10.0.0.0/26");
    let again = listen(&dir, None).await.unwrap_err().to_string();
    assert!(again.contains("another caracal answers"), "{again}");
    server.abort();
    std::fs::remove_dir_all(&dir).unwrap();
    let gone = ask(&dir, &Request::Status).unwrap_err().to_string();
    assert!(gone.contains("is it running"), "{gone}");
}
