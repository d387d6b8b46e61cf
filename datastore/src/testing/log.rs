//! Log lines of a test.

use std::cell::RefCell;
use std::io;
use std::sync::Once;

use tracing::Level;

thread_local! {
    static LINES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The log lines of this thread, of level INFO and above. There is one subscriber for all tests,
/// because what tracing remembers of each log statement is shared by all threads.
#[derive(Debug)]
pub struct TestLog(());

struct Sink;

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.with_borrow_mut(|lines| lines.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TestLog {
    /// Collects from now on.
    ///
    /// # Panics
    /// The test program has another subscriber.
    #[must_use]
    pub fn capture() -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            tracing_subscriber::fmt()
                .with_ansi(false)
                .with_max_level(Level::INFO)
                .with_writer(|| Sink)
                .init();
        });
        LINES.with_borrow_mut(Vec::clear);
        Self(())
    }

    /// The lines since then that contain a text.
    #[must_use]
    pub fn lines(&self, text: &str) -> Vec<String> {
        LINES.with_borrow(|lines| {
            let lines = String::from_utf8_lossy(lines);
            let found = lines.lines().filter(|line| line.contains(text));
            found.map(str::to_owned).collect()
        })
    }

    /// Their number.
    #[must_use]
    pub fn count(&self, text: &str) -> usize {
        self.lines(text).len()
    }
}
