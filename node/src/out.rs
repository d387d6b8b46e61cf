//! Standard output and standard error, in one place: neither a reader that closes early
//! (`caracal … | head`) nor a full disk makes a panic.
//!
//! The `println!` of this crate goes through [`write()`]. A command that only reads ends with exit
//! code 0 when nobody reads on, and with 1 when its output cannot be written; one that changes
//! something goes on to its end, and what it would have printed is dropped ([`finish()`] says so).
//! What `eprintln!` cannot write is lost.
//!
//! Messages and log lines name the datastore's things in its own words ([`in_its_words`]).

use std::borrow::Cow;
use std::fmt;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use caracal_datastore::Datastore;
use caracal_model::Key;

/// True while the command only reads: it may end in the middle.
static MAY_END: AtomicBool = AtomicBool::new(false);

/// True when something of the output could not be written, and the process went on.
static FAILED: AtomicBool = AtomicBool::new(false);

/// Says that the command changes nothing, so that it ends when its reader is gone.
pub(crate) fn may_end_early() {
    MAY_END.store(true, Ordering::Relaxed);
}

/// Writes to standard output.
pub(crate) fn write(text: fmt::Arguments<'_>) {
    let written = io::stdout().lock().write_fmt(text);
    if let Err(error) = written {
        failed(&error);
    }
}

/// Standard output for whoever needs a writer: what it does not take is told as [`write()`] tells
/// it, and then dropped.
#[derive(Debug)]
pub(crate) struct Printer;

impl Write for Printer {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        if let Err(error) = io::stdout().lock().write_all(octets) {
            failed(&error);
        }
        Ok(octets.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Err(error) = io::stdout().lock().flush() {
            failed(&error);
        }
        Ok(())
    }
}

/// Writes to standard error, as far as it takes something.
pub(crate) fn write_aside(text: fmt::Arguments<'_>) {
    let text = text.to_string();
    let _lost = io::stderr()
        .lock()
        .write_all(in_its_words(&text).as_bytes());
}

/// True where the datastore of this process has objects and no keys.
static HAS_OBJECTS: AtomicBool = AtomicBool::new(false);

/// Says which datastore messages are about from now on.
pub(crate) fn speak_of(store: &Datastore) {
    HAS_OBJECTS.store(store.has_nodes_of_kubernetes(), Ordering::Relaxed);
}

/// A message in the words of this process's datastore: with Kubernetes' API the kind and name of an
/// object stand in the place of each key.
pub(crate) fn in_its_words(text: &str) -> Cow<'_, str> {
    match HAS_OBJECTS.load(Ordering::Relaxed) {
        true => Cow::Owned(Key::spoken_in(text)),
        false => Cow::Borrowed(text),
    }
}

fn failed(error: &io::Error) {
    let is_gone = error.kind() == ErrorKind::BrokenPipe;
    if !is_gone && !FAILED.swap(true, Ordering::Relaxed) {
        write_aside(format_args!(
            "caracal: cannot write to standard output: {error}\n"
        ));
    }
    if MAY_END.load(Ordering::Relaxed) {
        std::process::exit(i32::from(!is_gone));
    }
}

/// Ends the output: the exit code is 1 when some of it could not be written.
pub(crate) fn finish(code: ExitCode) -> ExitCode {
    if let Err(error) = io::stdout().flush() {
        failed(&error);
    }
    match FAILED.load(Ordering::Relaxed) {
        true => ExitCode::FAILURE,
        false => code,
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

/// As [`println!`], on standard error: the standard library's panics when it cannot be written.
macro_rules! eprintln {
    ($($arguments:tt)*) => { $crate::out::write_aside(format_args!("{}\n", format_args!($($arguments)*))) };
}

/// As [`eprintln!`], without the end of the line.
macro_rules! eprint {
    ($($arguments:tt)*) => { $crate::out::write_aside(format_args!($($arguments)*)) };
}
