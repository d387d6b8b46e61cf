//! What a kubeconfig says about its current context.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::access::{Access, ApiCredentials, Identity, Pem};
use super::program::Program;
use crate::files::read_text_file;

/// A file, with the folder that paths in it are relative to.
struct File {
    value: Value,
    folder: PathBuf,
}

/// Reads kubeconfigs; `endpoint` takes the place of the server. Of several the first that has an
/// entry counts, as with kubectl. `programs`: one that gives credentials is taken. A fault is told
/// in a sentence.
pub(super) fn read(
    paths: &[PathBuf],
    endpoint: Option<&str>,
    programs: bool,
) -> Result<Access, String> {
    let file = |path: &PathBuf| -> Result<File, String> {
        let text = read_text_file(path).map_err(|error| format!("cannot be read: {error}"))?;
        let value =
            serde_saphyr::from_str(&text).map_err(|error| format!("is not YAML: {error}"))?;
        let folder = path.parent().unwrap_or_else(|| Path::new("")).to_owned();
        Ok(File { value, folder })
    };
    let named = |path: &PathBuf| {
        let of_one = |reason: String| match paths {
            [_] => reason,
            _ => format!("{} {reason}", path.display()),
        };
        file(path).map_err(of_one)
    };
    let files: Vec<File> = paths.iter().map(named).collect::<Result<_, _>>()?;
    parse(&files, endpoint, programs)
}

fn parse(files: &[File], endpoint: Option<&str>, programs: bool) -> Result<Access, String> {
    let mut contexts = files
        .iter()
        .filter_map(|f| text(&f.value, "current-context"));
    let current = contexts.next().ok_or("it has no current-context")?;
    let (context, _) = named(files, "contexts", "context", current)?;
    let wanted = |field: &str| {
        text(context, field).ok_or_else(|| format!("its context {current:?} names no {field}"))
    };
    let cluster_name = wanted("cluster")?;
    let (cluster, folder) = named(files, "clusters", "cluster", cluster_name)?;
    let nobody = Value::Null;
    let (user_name, (user, users_folder)) = match text(context, "user") {
        Some(name) => (name, named(files, "users", "user", name)?),
        None => ("", (&nobody, folder)),
    };
    if text(cluster, "proxy-url").is_some() {
        return Err(format!(
            "cluster {cluster_name:?} is reached through a proxy (proxy-url), which is not supported"
        ));
    }
    let server = endpoint.or_else(|| text(cluster, "server"));
    let server = server.ok_or_else(|| format!("its cluster {cluster_name:?} names no server"))?;
    let mut access = Access::to(server)?;
    access.authorities = pem(cluster, "certificate-authority", folder)?;
    access.server_name = text(cluster, "tls-server-name").map(str::to_owned);
    access.any_server = cluster["insecure-skip-tls-verify"] == true;
    let of_user = |reason: String| format!("user {user_name:?} {reason}");
    (access.identity, access.credentials) = account(user, users_folder).map_err(of_user)?;
    // As with kubectl, a token goes first.
    if access.credentials == ApiCredentials::None && !user["exec"].is_null() {
        access.credentials = match programs {
            true => Program::parse(&user["exec"], cluster, users_folder)
                .map(ApiCredentials::Program)
                .map_err(of_user)?,
            false => return Err(of_user(NO_PROGRAMS.to_owned())),
        };
    }
    Ok(access)
}

/// A kubeconfig with the way to a server and a token. JSON is YAML, too. The certificates of the
/// CA are within, as who reads it sees none of our files.
pub(super) fn written(access: &Access, token: &str) -> Result<String, String> {
    let mut cluster = json!({"server": access.server()});
    if let Some(authorities) = &access.authorities {
        cluster["certificate-authority-data"] = STANDARD.encode(authorities.read()?).into();
    }
    if let Some(name) = &access.server_name {
        cluster["tls-server-name"] = name.as_str().into();
    }
    if access.any_server {
        cluster["insecure-skip-tls-verify"] = true.into();
    }
    let name = "caracal";
    let file = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": name,
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    });
    Ok(format!("{file:#}\n"))
}

/// What is said of a user whose credentials come from a program that is not to be started.
const NO_PROGRAMS: &str = "gets its credentials from another program, which only commands start; give it a token or \
                           a client certificate";

/// Identity of a user of the file: a client certificate, and the credentials of each request.
fn account(user: &Value, folder: &Path) -> Result<(Option<Identity>, ApiCredentials), String> {
    if !user["auth-provider"].is_null() {
        return Err(
            "gets its credentials by an auth-provider, which is not supported; give it a token or a client certificate"
                .to_owned(),
        );
    }
    if let Some(key) = ["as", "as-uid", "as-groups", "as-user-extra"]
        .into_iter()
        .find(|key| !user[*key].is_null())
    {
        return Err(format!(
            "acts for another one ({key}), which is not supported"
        ));
    }
    let certificate = pem(user, "client-certificate", folder)?;
    let key = pem(user, "client-key", folder)?;
    let identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Some(Identity { certificate, key }),
        (None, None) => None,
        (Some(_), None) => return Err("has a client certificate and no key".to_owned()),
        (None, Some(_)) => return Err("has a client's key and no certificate".to_owned()),
    };
    let credentials = match (text(user, "token"), text(user, "tokenFile")) {
        (Some(token), _) => ApiCredentials::Token(token.to_owned()),
        (None, Some(file)) => ApiCredentials::TokenFile(folder.join(file)),
        (None, None) => match (text(user, "username"), text(user, "password")) {
            (Some(name), Some(password)) => {
                ApiCredentials::Basic(STANDARD.encode(format!("{name}:{password}")))
            }
            _ => ApiCredentials::None,
        },
    };
    Ok((identity, credentials))
}

/// The entry of that name in one of the lists, of the first file that has it, and that file's
/// folder.
fn named<'a>(
    files: &'a [File],
    list: &str,
    field: &str,
    name: &str,
) -> Result<(&'a Value, &'a Path), String> {
    let found = files.iter().find_map(|file| {
        let mut entries = file.value[list].as_array()?.iter();
        let entry = entries.find(|entry| entry["name"] == name)?;
        Some((&entry[field], &*file.folder))
    });
    found.ok_or_else(|| format!("its {list} have none of the name {name:?}"))
}

/// Reads `FIELD-data` in base64, or the file at the path `FIELD`.
fn pem(object: &Value, field: &str, folder: &Path) -> Result<Option<Pem>, String> {
    let data = format!("{field}-data");
    if let Some(encoded) = text(object, &data) {
        let octets = STANDARD.decode(encoded.trim());
        let octets = octets.map_err(|error| format!("{data} is not base64: {error}"))?;
        return Ok(Some(Pem::Text(octets)));
    }
    Ok(text(object, field).map(|path| Pem::File(folder.join(PathBuf::from(path)))))
}

fn text<'a>(object: &'a Value, field: &str) -> Option<&'a str> {
    object[field].as_str().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::TestFolder;

    fn file(cluster: &Value, user: &Value) -> Value {
        json!({
            "current-context": "here",
            "contexts": [
                {"name": "elsewhere", "context": {"cluster": "x", "user": "x"}},
                {"name": "here", "context": {"cluster": "lab", "user": "node"}},
            ],
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": "node", "user": user}],
        })
    }

    fn parsed(cluster: &Value, user: &Value) -> Result<Access, String> {
        parse(&[in_folder("/etc/k", file(cluster, user))], None, false)
    }

    fn in_folder(folder: &str, value: Value) -> File {
        let folder = folder.into();
        File { value, folder }
    }

    #[test]
    fn of_several_the_first_counts() {
        let users = file(
            &json!({"server": "https://b"}),
            &json!({"tokenFile": "token"}),
        );
        let clusters = json!({"current-context": "here", "users": null, "clusters": [
            {"name": "lab", "cluster": {"server": "https://a:1", "certificate-authority": "ca"}}]});
        let files = [in_folder("/etc/a", clusters), in_folder("/etc/b", users)];
        let access = parse(&files, None, false).unwrap();
        assert_eq!(access.host(), ("a".to_owned(), 1));
        assert_eq!(access.authorities, Some(Pem::File("/etc/a/ca".into())));
        let token = ApiCredentials::TokenFile("/etc/b/token".into());
        assert_eq!(access.credentials, token);
    }

    #[test]
    fn what_is_no_regular_file_is_refused_at_once() {
        let folder = TestFolder::new("kubeconfig");
        let fifo = folder.join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        assert!(made.unwrap().success());
        for path in [&fifo, Path::new("/dev/zero"), &*folder] {
            let refused = read(&[path.to_owned()], None, false).unwrap_err();
            assert!(refused.contains("expected a regular file"), "{refused}");
            let token = ApiCredentials::TokenFile(path.to_owned())
                .header()
                .unwrap_err();
            assert!(token.contains("expected a regular file"), "{token}");
            let pem = Pem::File(path.to_owned()).read().unwrap_err();
            assert!(pem.contains("expected a regular file"), "{pem}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_current_context_is_read_and_paths_are_relative_to_the_file() {
        let cluster = json!({"server": "https://10.0.0.1:6443/", "certificate-authority": "ca.crt",
            "tls-server-name": "kubernetes"});
        let user =
            json!({"tokenFile": "token", "client-certificate-data": "Yw==", "client-key": "/k"});
        let access = parsed(&cluster, &user).unwrap();
        assert_eq!(access.url("/apis"), "https://10.0.0.1:6443/apis");
        assert_eq!(access.authorities, Some(Pem::File("/etc/k/ca.crt".into())));
        assert_eq!(access.server_name.as_deref(), Some("kubernetes"));
        let token = ApiCredentials::TokenFile("/etc/k/token".into());
        assert_eq!(access.credentials, token);
        let identity = access.identity.unwrap();
        assert_eq!(identity.certificate, Pem::Text(b"c".to_vec()));
        assert_eq!(identity.key, Pem::File("/k".into()));
        assert!(!access.any_server);
    }

    #[test]
    fn a_token_goes_before_its_file_and_an_endpoint_before_the_server() {
        let cluster = json!({"server": "https://10.0.0.1:6443"});
        let user = json!({"tokenFile": "token", "token": "secret"});
        let files = [in_folder("", file(&cluster, &user))];
        let access = parse(&files, Some("http://[::1]:1/api"), false);
        let access = access.unwrap();
        assert_eq!(
            access.credentials,
            ApiCredentials::Token("secret".to_owned())
        );
        assert_eq!(access.url("/x?y"), "http://[::1]:1/api/x?y");
        assert_eq!(access.host(), ("::1".to_owned(), 1));
    }

    #[test]
    fn a_program_is_taken_where_programs_are_started_and_nothing_else_is_given() {
        let cluster = json!({"server": "https://10.0.0.1:6443"});
        let exec = json!({"command": "./login", "apiVersion": "client.authentication.k8s.io/v1"});
        let parsed = |user: &Value| {
            let files = [in_folder("/etc/k", file(&cluster, user))];
            parse(&files, None, true).map(|access| access.credentials)
        };
        let program = Program::parse(&exec, &cluster, Path::new("/etc/k")).unwrap();
        let credentials = parsed(&json!({"exec": exec})).unwrap();
        assert_eq!(credentials, ApiCredentials::Program(program));
        let credentials = parsed(&json!({"exec": exec, "token": "secret"})).unwrap();
        assert_eq!(credentials, ApiCredentials::Token("secret".to_owned()));
        let wrong = parsed(&json!({"exec": {"command": "x"}})).unwrap_err();
        assert!(
            wrong.starts_with("user \"node\" has exec of apiVersion"),
            "{wrong}"
        );
    }

    #[test]
    fn what_is_written_is_read_again() {
        let cluster = json!({"server": "https://10.0.0.1:6443/", "insecure-skip-tls-verify": true,
            "certificate-authority-data": "Y2E=", "tls-server-name": "kubernetes"});
        let access = parsed(&cluster, &json!({"token": "ours"})).unwrap();
        let text = written(&access, "theirs").unwrap();
        let files = [in_folder("", serde_json::from_str(&text).unwrap())];
        let again = parse(&files, None, false).unwrap();
        assert_eq!(
            again.credentials,
            ApiCredentials::Token("theirs".to_owned())
        );
        let same = Access {
            credentials: ApiCredentials::Token("theirs".to_owned()),
            ..access
        };
        assert_eq!(again, same);
        let mut lost = same;
        lost.authorities = Some(Pem::File("/nonexistent/ca".into()));
        assert!(
            written(&lost, "x")
                .unwrap_err()
                .starts_with("/nonexistent/ca cannot")
        );
    }

    #[test]
    fn every_refusal_says_what_is_wrong() {
        let good = json!({"server": "https://10.0.0.1:6443"});
        let said = |cluster: &Value, user: &Value| parsed(cluster, user).unwrap_err();
        for (user, fault) in [
            (json!({"exec": {"command": "aws"}}), "from another program"),
            (
                json!({"auth-provider": {"name": "gcp"}}),
                "by an auth-provider",
            ),
            (json!({"as": "admin"}), "acts for another one (as)"),
            (json!({"client-certificate": "/c"}), "no key"),
            (
                json!({"client-key-data": "?"}),
                "client-key-data is not base64",
            ),
        ] {
            let said = said(&good, &user);
            assert!(said.starts_with("user \"node\" "), "{said}");
            assert!(said.contains(fault), "{said}");
        }
        let user = json!({});
        assert!(said(&json!({}), &user).contains("\"lab\" names no server"));
        assert!(said(&json!({"server": "ftp://x"}), &user).contains("http"));
        let proxy = json!({"server": "https://x", "proxy-url": "socks5://y"});
        assert!(said(&proxy, &user).contains("proxy"));
        let nothing = parse(&[in_folder("", json!({}))], None, false).unwrap_err();
        assert_eq!(nothing, "it has no current-context");
        let mut lost = file(&good, &user);
        lost["users"] = json!([]);
        let lost = parse(&[in_folder("", lost)], None, false).unwrap_err();
        assert_eq!(lost, "its users have none of the name \"node\"");
    }
}
