#![allow(clippy::unwrap_used)]
//! What a program is told, what is read of what it prints, and when it is asked.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::super::KubernetesConfig;
use super::super::access::Access;
use super::super::api::Api;
use super::*;
use crate::testing::TestFolder;

const V1: &str = VERSIONS[0];

fn program(exec: Value) -> Result<Program, String> {
    let settings = json!({"audience": "lab"});
    let cluster = json!({"extensions": [{"name": EXTENSION, "extension": settings}]});
    let mut whole = json!({"command": "./login", "apiVersion": V1, "interactiveMode": "Never"});
    for (field, value) in exec.as_object().into_iter().flatten() {
        whole[field] = value.clone();
    }
    Program::parse(&whole, &cluster, Path::new("/etc/k"))
}

/// A program that is a shell's script.
fn shell(script: &str) -> ProgramCredential {
    let exec = json!({"command": "/bin/sh", "args": ["-c", script],
        "env": [{"name": "SAID", "value": "secret"}], "installHint": "install a shell"});
    ProgramCredential::new(program(exec).unwrap())
}

fn access() -> Access {
    Access::to("https://10.0.0.1:6443").unwrap()
}

fn printed(status: &Value) -> Vec<u8> {
    let credential = json!({"apiVersion": V1, "kind": "ExecCredential", "status": status});
    credential.to_string().into_bytes()
}

#[test]
fn a_program_is_told_of_its_cluster_where_it_wants_to_be() {
    let told = |exec: Value| {
        let told = program(exec).unwrap().told(&access(), false).unwrap();
        serde_json::from_str::<Value>(&told).unwrap()
    };
    let mut expected = json!({
        "apiVersion": V1, "kind": "ExecCredential", "spec": {"interactive": false}});
    assert_eq!(told(json!({})), expected);
    expected["spec"]["cluster"] = json!({
        "server": "https://10.0.0.1:6443/", "config": {"audience": "lab"}});
    assert_eq!(told(json!({"provideClusterInfo": true})), expected);
}

#[test]
fn a_path_is_relative_to_the_kubeconfig_and_a_name_is_not() {
    for (command, expected) in [("./login", "/etc/k/./login"), ("aws", "aws"), ("/b", "/b")] {
        let program = program(json!({"command": command})).unwrap();
        assert_eq!(program.command, Path::new(expected));
    }
}

#[test]
fn what_is_wrong_in_a_kubeconfig_is_said() {
    for (exec, said) in [
        (json!({"command": ""}), "names no command"),
        (
            json!({"apiVersion": "client.authentication.k8s.io/v1alpha1"}),
            "v1alpha1",
        ),
        (json!({"interactiveMode": "Perhaps"}), "Perhaps"),
        (json!({"args": [1]}), "args"),
        (json!({"env": [{"name": "A=B", "value": ""}]}), "env"),
    ] {
        let wrong = program(exec).unwrap_err();
        assert!(wrong.contains(said), "{wrong}");
    }
}

#[test]
fn tokens_and_certificates_are_read_and_halves_are_not() {
    let read = |status: Value| Credential::parse(&printed(&status), V1);
    let whole = read(
        json!({"token": "t", "clientCertificateData": "c", "clientKeyData": "k",
        "expirationTimestamp": "2026-01-05T10:12:00Z"}),
    );
    let expected = Credential {
        token: Some("t".to_owned()),
        identity: Some((b"c".to_vec(), b"k".to_vec())),
        ends: Timestamp::parse_rfc3339("2026-01-05T10:12:00Z"),
    };
    assert_eq!(whole, Ok(expected));
    for wrong in [
        json!({}),
        json!({"clientKeyData": "k"}),
        json!({"token": "t", "expirationTimestamp": "soon"}),
    ] {
        assert!(read(wrong.clone()).is_err(), "{wrong}");
    }
    let other = Credential::parse(&printed(&json!({"token": "t"})), VERSIONS[1]);
    assert!(other.is_err());
}

#[tokio::test]
async fn a_program_is_asked_when_there_is_no_credential_that_is_taken() {
    let print =
        r#"printf '{"apiVersion": "%s", "kind": "ExecCredential", "status": {"token": "%s"%s}}'"#;
    let lasting = shell(&format!("{print} {V1} \"$SAID\""));
    assert_eq!(lasting.get(), None);
    assert_eq!(lasting.ready(&access(), None).await, Ok(1));
    assert_eq!(lasting.get().unwrap().token.as_deref(), Some("secret"));
    assert_eq!(lasting.ready(&access(), None).await, Ok(1));
    // Two were refused the same one.
    assert_eq!(lasting.ready(&access(), Some(1)).await, Ok(2));
    assert_eq!(lasting.ready(&access(), Some(1)).await, Ok(2));
    let ended = r#"', "expirationTimestamp": "2020-01-01T00:00:00Z"'"#;
    let ended = shell(&format!("{print} {V1} t {ended}"));
    assert_eq!(ended.ready(&access(), None).await, Ok(1));
    assert_eq!(ended.ready(&access(), None).await, Ok(2));
}

#[tokio::test]
async fn a_program_that_fails_is_named() {
    let failed = shell("exit 3").ready(&access(), None).await.unwrap_err();
    assert!(failed.starts_with("/bin/sh, which gives"), "{failed}");
    assert!(failed.contains('3'), "{failed}");
    let exec = json!({"command": "/nonexistent/login", "installHint": "install it"});
    let absent = ProgramCredential::new(program(exec).unwrap());
    let said = absent.ready(&access(), None).await.unwrap_err();
    assert!(said.contains("cannot be started"), "{said}");
    assert!(said.ends_with("; install it"), "{said}");
}

/// Answers 401 to all but one token; how many requests it had.
async fn serve(listener: TcpListener, taken: &str) -> usize {
    for asked in 1.. {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let wanted = format!("authorization: Bearer {taken}\r\n");
        let is_taken = String::from_utf8(head).unwrap().contains(&wanted);
        let status = match is_taken {
            true => "200 OK",
            false => "401 Unauthorized",
        };
        let answer =
            format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}");
        stream.write_all(answer.as_bytes()).await.unwrap();
        if is_taken {
            return asked;
        }
    }
    0
}

#[tokio::test]
async fn a_request_whose_token_is_not_taken_is_sent_once_more_with_another_one() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let folder = TestFolder::new("exec");
    let count = folder.join("count").display().to_string();
    let script = r#"echo >> "$0"
printf '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "t%s"}}' $(wc -l < "$0")"#;
    let exec = json!({"command": "/bin/sh", "args": ["-c", script, count], "apiVersion": V1});
    let file = json!({
        "current-context": "lab",
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me"}}],
        "clusters": [{"name": "lab", "cluster": {"server": server}}],
        "users": [{"name": "me", "user": {"exec": exec}}],
    });
    let path = folder.join("kubeconfig");
    std::fs::write(&path, file.to_string()).unwrap();
    let config = KubernetesConfig {
        kubeconfig: Some(path.into_os_string()),
        programs: true,
        ..KubernetesConfig::default()
    };
    let served = tokio::spawn(serve(listener, "t2"));
    let api = Api::new(config);
    let order = json!({});
    let answer = api.call(http::Method::POST, "/x", "application/json", Some(&order));
    assert_eq!(answer.await.unwrap(), json!({}));
    assert_eq!(served.await.unwrap(), 2);
    std::fs::remove_dir_all(folder).unwrap();
}
