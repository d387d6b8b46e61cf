//! Consoles with TLS, asked as one node asks another: who is believed, and who is refused.

use std::path::{Path, PathBuf};

use caracal_datastore::TestFolder;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::config::console::ConsoleFiles;
use crate::others::{self, NoAnswer, Place};
use crate::tls::Material;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tls/certificates")
}

/// The files of an identity with the authority that it believes.
fn files(identity: &str, authorities: &str) -> ConsoleFiles {
    let file = |name: String| Some(folder().join(name));
    ConsoleFiles {
        token: None,
        certificate: file(format!("{identity}.pem")),
        key: file(format!("{identity}.key")),
        authorities: file(format!("{authorities}.pem")),
    }
}

fn acceptor(files: &ConsoleFiles) -> Result<TlsAcceptor, String> {
    Material::read(files)?.acceptor()
}

/// A console of a node with these files; what it speaks can be replaced.
async fn start_tls(
    files: &ConsoleFiles,
    access: Access,
) -> (Place, watch::Sender<Option<TlsAcceptor>>) {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let (now, acceptors) = watch::channel(Some(acceptor(files).unwrap()));
    let (_, accesses) = watch::channel(Ok(access));
    let subject = Subject::default();
    tokio::spawn(serve(address, Speaks::Tls(acceptors), accesses, subject));
    while TcpStream::connect(address).await.is_err() {
        tokio::task::yield_now().await;
    }
    let place = Place {
        node: "n1".to_owned(),
        has_tls: true,
        address,
        version: "0.0.9".to_owned(),
    };
    (place, now)
}

#[tokio::test]
async fn a_certificate_of_the_authority_is_asked_and_answered() {
    let server = files("n1", "authority");
    let (place, now) = start_tls(&server, Access::Certificate(None)).await;
    let us = files("local", "authority");
    let asked = others::ask(&place, "status", &us).await.unwrap();
    let status: serde_json::Value = serde_json::from_slice(&asked).unwrap();
    assert_eq!(status["node"], "n1");

    // Its name is not that of the node that is meant, and its address is.
    now.send_replace(Some(acceptor(&files("local", "authority")).unwrap()));
    let other = Place {
        node: "n7".to_owned(),
        ..place.clone()
    };
    assert!(others::ask(&other, "status", &us).await.is_ok());
    now.send_replace(Some(acceptor(&server).unwrap()));
    let refused = others::ask(&other, "status", &us).await;
    assert!(
        matches!(refused, Err(NoAnswer::Untrusted { .. })),
        "{refused:?}"
    );

    let unknown = others::ask(&place, "weather", &us).await.unwrap_err();
    let text = "node n1 runs caracal 0.0.9, whose console does not know this question";
    assert_eq!(unknown.to_string(), text);
    let nobody = others::ask(&place, "sessions/nobody", &us).await;
    assert!(nobody.is_err_and(|e| e.status() == 404 && e.to_string().contains("no peer nobody")));
}

#[tokio::test]
async fn who_is_not_of_the_authority_is_refused_on_either_side() {
    let server = files("n1", "authority");
    let (place, now) = start_tls(&server, Access::Certificate(None)).await;
    for (what, us, part) in [
        (
            "no certificate",
            ConsoleFiles {
                certificate: None,
                key: None,
                ..files("local", "authority")
            },
            "refuses us",
        ),
        // Nobody of theirs has signed it, and its holder believes them.
        ("a stranger's", both_authorities(), "refuses us"),
        (
            "another authority",
            files("stranger", "other-authority"),
            "not believed",
        ),
        (
            "none of ours",
            ConsoleFiles::default(),
            "set CARACAL_CONSOLE_CA_CERT_FILE",
        ),
    ] {
        let error = others::ask(&place, "status", &us).await.unwrap_err();
        assert!(error.to_string().contains(part), "{what}: {error}");
    }
    // The authority has changed on the other side.
    let other = files("stranger", "other-authority");
    now.send_replace(Some(acceptor(&other).unwrap()));
    let us = files("local", "authority");
    let error = others::ask(&place, "status", &us).await.unwrap_err();
    assert!(error.to_string().contains("not believed"), "{error}");
    let answered = others::ask(&place, "status", &other).await;
    assert!(answered.is_ok(), "{answered:?}");
    // There is no certificate just now.
    now.send_replace(None);
    let error = others::ask(&place, "status", &other).await.unwrap_err();
    assert!(matches!(error, NoAnswer::Unreachable { .. }), "{error}");
}

/// A certificate of the other authority, whose holder believes both.
fn both_authorities() -> ConsoleFiles {
    files("stranger", "both-authorities")
}

#[tokio::test]
async fn the_token_goes_to_who_is_believed_and_never_in_the_clear() {
    let server = ConsoleFiles {
        authorities: None,
        ..files("n1", "authority")
    };
    let access = Token::parse(TOKEN).map(Access::Token).unwrap();
    let (place, _now) = start_tls(&server, access).await;
    let kept = TestFolder::new("token");
    let token = kept.join("token");
    let us = ConsoleFiles {
        token: Some(token.clone()),
        ..files("local", "authority")
    };
    std::fs::write(&token, "another-token-of-a-node\n").unwrap();
    let wrong = others::ask(&place, "status", &us).await.unwrap_err();
    assert!(matches!(wrong, NoAnswer::Refused { .. }), "{wrong}");
    std::fs::write(&token, TOKEN).unwrap();
    assert!(others::ask(&place, "status", &us).await.is_ok());

    let plain = Place {
        has_tls: false,
        address: start(Some(TOKEN)).await,
        ..place
    };
    let kept_back = others::ask(&plain, "status", &us).await.unwrap_err();
    assert!(
        kept_back.to_string().contains("in the clear"),
        "{kept_back}"
    );
    let us = ConsoleFiles {
        token: us.token,
        ..ConsoleFiles::default()
    };
    assert!(others::ask(&plain, "status", &us).await.is_ok());
}

#[test]
fn what_cannot_be_served_is_said() {
    let of = |certificate: &str, key: &str, authorities: Option<&str>| ConsoleFiles {
        token: None,
        certificate: Some(folder().join(certificate)),
        key: Some(folder().join(key)),
        authorities: authorities.map(|name| folder().join(name)),
    };
    for (files, part) in [
        (of("n1.pem", "n1.key", None), ""),
        (of("n1.pem", "n1.key", Some("authority.pem")), ""),
        (of("n1.pem", "local.key", None), "belongs to another"),
        (of("expired.pem", "expired.key", None), "it expired "),
        (
            of("expired.pem", "expired.key", Some("authority.pem")),
            "it expired ",
        ),
        (
            of("n1.pem", "n1.key", Some("other-authority.pem")),
            "is not signed by an authority",
        ),
        (of("n1.key", "n1.key", None), "has no certificate in PEM"),
        (of("n1.pem", "n1.pem", None), "CARACAL_CONSOLE_KEY_FILE"),
        (of("gone.pem", "n1.key", None), "gone.pem"),
        (
            ConsoleFiles {
                key: None,
                ..of("n1.pem", "", None)
            },
            "CARACAL_CONSOLE_KEY_FILE is not",
        ),
        (
            ConsoleFiles {
                certificate: None,
                key: None,
                ..of("", "", Some("authority.pem"))
            },
            "set CARACAL_CONSOLE_CERT_FILE",
        ),
    ] {
        match acceptor(&files) {
            Ok(_) => assert_eq!(part, "", "{files:?}"),
            Err(reason) => assert!(!part.is_empty() && reason.contains(part), "{reason}"),
        }
    }
}
