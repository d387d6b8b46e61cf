//! Standard error, of which the plugin waits for nothing: whoever started it may not read it before
//! the answer is there, or never.

use std::io::{self, Write};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Octets that a pipe takes as a whole when it takes any (`PIPE_BUF`).
const AT_ONCE: usize = 4096;

/// Standard error. What it does not take at once is lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StandardError;

impl Write for StandardError {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut error = io::stderr();
        for part in line.chunks(AT_ONCE) {
            if !takes_some(&error) {
                break;
            }
            error.write_all(part)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// True when a write does not wait. One that fails does not either.
fn takes_some(error: &io::Stderr) -> bool {
    let mut asked = [PollFd::new(error.as_fd(), PollFlags::POLLOUT)];
    poll(&mut asked, PollTimeout::ZERO) != Ok(0)
}
