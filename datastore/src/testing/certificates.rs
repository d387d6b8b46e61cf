//! A CA with certificates for a test's etcd and its client, made by the program `openssl`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files with PEM certificates and keys.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// The CA's certificate.
    pub ca_cert: PathBuf,
    /// The server's certificate, for 127.0.0.1.
    pub server_cert: PathBuf,
    /// The server's key.
    pub server_key: PathBuf,
    /// A client's certificate.
    pub client_cert: PathBuf,
    /// The client's key.
    pub client_key: PathBuf,
}

impl Certificates {
    /// Makes a CA, a server's and a client's certificate in `dir`.
    ///
    /// # Panics
    /// `openssl` fails.
    #[must_use]
    pub fn generate(dir: &Path) -> Self {
        fs::create_dir_all(dir).expect("the directory can be created");
        let make = |name: &str, extensions: &[&str], signed: bool| {
            let cert = dir.join(format!("{name}.crt"));
            let key = dir.join(format!("{name}.key"));
            let mut command = Command::new("openssl");
            command
                .args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"])
                .args(["-pkeyopt", "ec_paramgen_curve:P-256"])
                .args(["-subj", &format!("/CN=caracal-test-{name}")])
                .arg("-keyout")
                .arg(&key)
                .arg("-out")
                .arg(&cert);
            for extension in extensions {
                command.args(["-addext", extension]);
            }
            if signed {
                command
                    .arg("-CA")
                    .arg(dir.join("ca.crt"))
                    .arg("-CAkey")
                    .arg(dir.join("ca.key"));
            }
            let output = command.output().expect("openssl can be started");
            assert!(
                output.status.success(),
                "openssl req for {name}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            (cert, key)
        };
        let leaf = "basicConstraints=critical,CA:FALSE";
        let (ca_cert, _) = make("ca", &["keyUsage=critical,keyCertSign"], false);
        let (server_cert, server_key) = make(
            "server",
            // etcd's own gateway dials the server with the server's certificate, so it is a
            // client's too.
            &[
                leaf,
                "subjectAltName=IP:127.0.0.1,DNS:localhost",
                "extendedKeyUsage=serverAuth,clientAuth",
            ],
            true,
        );
        let (client_cert, client_key) =
            make("client", &[leaf, "extendedKeyUsage=clientAuth"], true);
        Self {
            ca_cert,
            server_cert,
            server_key,
            client_cert,
            client_key,
        }
    }
}
