//! The strict API server of the tests, as a program: `caracal_lab::run_api_server`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use caracal_lab::{ApiServerOptions, error_chain, run_api_server};
use clap::Parser;

/// A strict Kubernetes API server for tests, over a real etcd. Not for anything else.
#[derive(Debug, Parser)]
struct Args {
    /// Where to listen. Port 0 takes a free one; the address is printed.
    #[arg(long, default_value = "127.0.0.1:6443")]
    listen: SocketAddr,
    /// Where etcd is, several separated by commas.
    #[arg(long, default_value = "http://127.0.0.1:2379", value_delimiter = ',')]
    etcd: Vec<String>,
    /// PEM file with the certificate. Without it the server speaks plain HTTP.
    #[arg(long, requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// PEM file with the key of the certificate.
    #[arg(long, requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Tokens and their users: TOKEN,USER,UID,"GROUP,GROUP". Without it everybody may do all.
    #[arg(long)]
    token_auth_file: Option<PathBuf>,
    /// File to which a line of JSON is added for each right that an account asks for.
    #[arg(long)]
    audit_log_path: Option<PathBuf>,
    /// Apply the definitions of deploy/crds at the start.
    #[arg(long)]
    calico_definitions: bool,
    /// A JSON list of objects that are made at the start, where they are not there already.
    #[arg(long)]
    objects: Option<PathBuf>,
    /// How many requests other than watches are answered at once; more get 429.
    #[arg(long, default_value_t = 400)]
    max_requests_inflight: usize,
    /// How many events are remembered for watches and lists at old revisions.
    #[arg(long, default_value_t = 10_000)]
    history: usize,
    /// Seconds between two bookmarks of a watch.
    #[arg(long, default_value_t = 60)]
    bookmark_seconds: u64,
    /// For so many milliseconds after the start custom resources answer 429.
    #[arg(long, default_value_t = 300)]
    initializing_milliseconds: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let options = ApiServerOptions {
        listen: args.listen,
        etcd: args.etcd,
        tls: args.tls_certificate.zip(args.tls_key),
        tokens: args.token_auth_file,
        audit_log: args.audit_log_path,
        has_definitions: args.calico_definitions,
        objects: args.objects,
        in_flight: args.max_requests_inflight,
        history: args.history,
        bookmarks: Duration::from_secs(args.bookmark_seconds),
        initializing: Duration::from_millis(args.initializing_milliseconds),
    };
    match run_api_server(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("caracal-test-api-server: {}", error_chain(&error));
            ExitCode::FAILURE
        }
    }
}
