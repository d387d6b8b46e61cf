//! Log lines on their way to standard error: a bounded queue and the thread that writes. Whoever
//! logs never waits for a reader and never hears of a write that failed; what cannot be kept or
//! written is dropped and counted.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Octets of lines that may wait: some thousand lines, more than a start logs in a large cluster.
pub(super) const ROOM: usize = 1024 * 1024;

/// Interval at which a file descriptor that does not block is tried again.
const RETRY: Duration = Duration::from_millis(10);

/// The queue. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct LogQueue {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    room: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    /// Octets of these lines and of the one that is being written.
    octets: usize,
    /// Lines that were dropped since the start.
    dropped: u64,
    /// The part of them that the log says nothing of yet.
    untold: u64,
}

impl Waiting {
    fn drop_line(&mut self) {
        self.dropped += 1;
        self.untold += 1;
    }
}

impl LogQueue {
    /// An empty queue for so many octets.
    pub(super) fn new(room: usize) -> Self {
        let shared = Shared {
            waiting: Mutex::default(),
            changed: Condvar::new(),
            room,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // A panic elsewhere does not make a queue of whole lines inconsistent.
        let waiting = self.shared.waiting.lock();
        waiting.unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a line behind the others, or drops it when there is no room.
    pub(super) fn push(&self, line: &[u8]) {
        let mut waiting = self.lock();
        if waiting.octets + line.len() > self.shared.room {
            waiting.drop_line();
            return;
        }
        waiting.octets += line.len();
        waiting.lines.push_back(line.to_vec());
        drop(waiting);
        self.shared.changed.notify_all();
    }

    /// Lines that were dropped since the start.
    pub(super) fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// Waits until all lines are written, or for so long.
    pub(super) fn flush(&self, patience: Duration) {
        let until = Instant::now() + patience;
        let mut waiting = self.lock();
        while waiting.octets > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let woken = self.shared.changed.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Writes lines for ever. `tell` gets the number of lines that were dropped when they can be
    /// told of: something has been written, and there is room again.
    pub(super) fn write_to(&self, mut out: impl Write, tell: impl Fn(u64)) -> ! {
        loop {
            let line = self.next();
            let written = write_line(&mut out, &line);
            if let Some(untold) = self.done(line.len(), written.is_ok()) {
                tell(untold);
            }
        }
    }

    fn next(&self) -> Vec<u8> {
        let mut waiting = self.lock();
        loop {
            if let Some(line) = waiting.lines.pop_front() {
                return line;
            }
            let woken = self.shared.changed.wait(waiting);
            waiting = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notes what became of a line. The result: dropped lines to tell of now.
    fn done(&self, octets: usize, is_written: bool) -> Option<u64> {
        let mut waiting = self.lock();
        waiting.octets -= octets;
        if !is_written {
            waiting.drop_line();
        }
        let tells = is_written && waiting.untold > 0 && waiting.octets <= self.shared.room / 2;
        let untold = tells.then(|| std::mem::take(&mut waiting.untold));
        drop(waiting);
        self.shared.changed.notify_all();
        untold
    }
}

/// Each write is one event: the formatter makes a whole line of it first.
impl Write for LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a whole line, however long that takes.
fn write_line(out: &mut impl Write, line: &[u8]) -> io::Result<()> {
    let mut rest = line;
    while !rest.is_empty() {
        match out.write(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => rest = &rest[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // Whoever gave us the descriptor has made it so.
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(RETRY),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::{BufRead, BufReader};
    use std::sync::mpsc::{SyncSender, sync_channel};
    use std::thread;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn start(queue: &LogQueue, out: impl Write + Send + 'static, told: SyncSender<u64>) {
        let queue = queue.clone();
        thread::spawn(move || {
            queue.write_to(out, |lines| told.send(lines).unwrap());
        });
    }

    /// More than the queue and the pipe hold, before anybody reads: nobody who logs waits. What
    /// is not read later was counted, and each is told of once.
    #[test]
    fn a_reader_that_hangs_costs_lines_and_no_time() {
        const LINES: u64 = 20_000;
        let (reader, writer) = std::io::pipe().unwrap();
        let (told, heard) = sync_channel(20_000);
        let queue = LogQueue::new(64 * 1024);
        start(&queue, writer, told);
        for n in 0..LINES {
            queue.push(format!("line {n} of many, each as long as lines are\n").as_bytes());
        }
        let dropped = queue.dropped();
        assert!(dropped > 0 && dropped < LINES, "{dropped}");
        queue.flush(Duration::from_millis(1));
        let mut lines = BufReader::new(reader).lines().map(Result::unwrap);
        for _ in 0..LINES - dropped {
            assert!(lines.next().unwrap().starts_with("line "));
        }
        // The writer may have caught up for a moment in between, and told of the first ones then.
        let mut told_of = 0;
        while told_of < dropped {
            told_of += heard.recv_timeout(PATIENCE).unwrap();
        }
        assert_eq!(told_of, dropped);
        queue.push(b"the last\n");
        assert_eq!(lines.next().unwrap(), "the last");
        queue.flush(PATIENCE);
        assert_eq!(queue.dropped(), dropped);
    }

    /// Fails as a full disk does, until there is room.
    struct Disk(Arc<Mutex<Option<Vec<u8>>>>);

    impl Write for Disk {
        fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
            match &mut *self.0.lock().unwrap() {
                Some(file) => file.write(octets),
                None => Err(ErrorKind::StorageFull.into()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_costs_lines_until_there_is_room() {
        let file = Arc::new(Mutex::new(None));
        let (told, heard) = sync_channel(8);
        let queue = LogQueue::new(ROOM);
        start(&queue, Disk(file.clone()), told);
        for line in ["one\n", "two\n", "three\n"] {
            queue.push(line.as_bytes());
        }
        queue.flush(PATIENCE);
        assert_eq!(queue.dropped(), 3);
        *file.lock().unwrap() = Some(Vec::new());
        queue.push(b"four\n");
        assert_eq!(heard.recv_timeout(PATIENCE).unwrap(), 3);
        assert_eq!(file.lock().unwrap().as_deref().unwrap(), b"four\n");
    }
}
