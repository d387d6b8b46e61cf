//! Standard output, in one place: a reader that closes early (`caracal … | head`) never makes a panic.
//!
//! The `println!` of this crate goes through [`write()`]. A command that only reads ends with exit
//! code 0 when nobody reads on; one that changes something goes on to its end, and what it would
//! have printed is dropped.

use std::fmt;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// True while the command only reads: it may end in the middle.
static MAY_END: AtomicBool = AtomicBool::new(false);

/// Says that the command changes nothing, so that it ends when its reader is gone.
pub(crate) fn may_end_early() {
    MAY_END.store(true, Ordering::Relaxed);
}

/// Writes to standard output.
///
/// # Panics
/// When standard output fails for another reason than a reader that is gone, as `println!` does.
pub(crate) fn write(text: fmt::Arguments<'_>) {
    let mut stdout = io::stdout().lock();
    match stdout.write_fmt(text) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {
            if MAY_END.load(Ordering::Relaxed) {
                std::process::exit(0);
            }
        }
        Err(error) => panic!("cannot write to standard output: {error}"),
    }
}

/// True when the error is a reader that is gone.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>();
        io.is_some_and(|e| e.kind() == ErrorKind::BrokenPipe)
    })
}

/// Columns of the terminal that standard output is, or of `COLUMNS`. `None` for a file or a pipe:
/// their lines are for programs and stay whole.
pub(crate) fn columns() -> Option<u16> {
    let columns = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    let stdout = io::stdout();
    if columns.is_some() || !stdout.is_terminal() {
        return columns;
    }
    let size = rustix::termios::tcgetwinsize(&stdout).ok()?;
    (size.ws_col > 0).then_some(size.ws_col)
}

/// The crate's own, over the standard library's: that one panics when the reader is gone.
macro_rules! println {
    () => { $crate::out::write(format_args!("\n")) };
    ($($arguments:tt)*) => { $crate::out::write(format_args!("{}\n", format_args!($($arguments)*))) };
}

/// As [`println!`], without the end of the line.
macro_rules! print {
    ($($arguments:tt)*) => { $crate::out::write(format_args!($($arguments)*)) };
}
