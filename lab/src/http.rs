//! One question over HTTP to a port of a namespace's loopback address.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::netns;
use crate::wait::scaled;

/// The answer to a GET, its head included.
pub(crate) fn get(netns: &str, port: u16, path: &str, patience: Duration) -> io::Result<String> {
    let patience = scaled(patience);
    let ask = || {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    netns::run(netns, ask).map_err(io::Error::other)?
}
