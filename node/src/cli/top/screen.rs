//! The terminal of `caracal top`: raw while the screen is there, and as it was before from then on,
//! also after an error or a panic. Keys come as octets, and a frame goes as one text.

use std::io::{self, IsTerminal, Read, Write};
use std::sync::{Mutex, PoisonError};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

use super::frame::{Line, Look};

/// Another screen, without a cursor; what stood on the terminal stays on its own.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";
/// Keys that wait for a frame.
const WAITING: usize = 16;

/// How the terminal was; a panic restores it too.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// A key that means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Left,
    Right,
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    Reverse,
}

/// The screen, one in a process; the terminal is restored when it goes.
pub(super) struct Screen;

/// Standard input and output are a person's.
pub(super) fn is_terminal() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// It refuses.
    pub(super) fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        let screen = Self;
        let told = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            told(panic);
        }));
        // What was typed before is no key of ours.
        tcsetattr(io::stdin(), OptionalActions::Flush, &raw)?;
        put(ENTER)?;
        Ok(screen)
    }

    /// Columns and rows.
    pub(super) fn size(&self) -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (usize::from(size.ws_col), usize::from(size.ws_row))
            }
            _ => (80, 24),
        }
    }

    /// Shows a frame in the place of the last one.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn show(&self, lines: &[Line]) -> io::Result<()> {
        put(&painted(lines))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// A terminal that is gone needs nothing any more.
fn restore() {
    let mut before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(before) = before.take() {
        let _gone = put(LEAVE);
        let _gone = tcsetattr(io::stdin(), OptionalActions::Now, &before);
    }
}

fn put(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// A frame as a terminal takes it (ECMA-48): each line in its place, and nothing behind it.
fn painted(lines: &[Line]) -> String {
    let mut text = String::from("\x1b[H");
    for (row, line) in lines.iter().enumerate() {
        text.push_str(&format!("\x1b[{};1H", row + 1));
        for span in line {
            text.push_str(match span.look {
                Look::Plain => "\x1b[0m",
                Look::Bold => "\x1b[0;1m",
                Look::Quiet => "\x1b[0;2m",
                Look::Good => "\x1b[0;32m",
                Look::Warning => "\x1b[0;33m",
                Look::Bad => "\x1b[0;31m",
                Look::Reverse => "\x1b[0;7m",
            });
            text.push_str(&span.text);
        }
        text.push_str("\x1b[0m\x1b[K");
    }
    text.push_str("\x1b[J");
    text
}

/// The keys that are pressed; none any more when the terminal is gone. The thread ends with the
/// process: nothing else ends a read.
pub(super) fn keys() -> mpsc::Receiver<Key> {
    let (sender, receiver) = mpsc::channel(WAITING);
    std::thread::spawn(move || {
        let (mut reader, mut octets) = (KeyReader::default(), [0; 64]);
        let mut input = io::stdin().lock();
        while let Ok(read @ 1..) = input.read(&mut octets) {
            for octet in &octets[..read] {
                let key = reader.take(*octet);
                if key.is_some_and(|key| sender.blocking_send(key).is_err()) {
                    return;
                }
            }
        }
    });
    receiver
}

/// Octets as keys; a sequence may come in parts.
#[derive(Debug, Default)]
enum KeyReader {
    #[default]
    Plain,
    Escaped,
    /// Within a sequence, with its parameter.
    Sequence(u8),
}

impl KeyReader {
    fn take(&mut self, octet: u8) -> Option<Key> {
        match (std::mem::take(self), octet) {
            (_, 0x1b) => *self = Self::Escaped,
            (Self::Escaped, b'[' | b'O') => *self = Self::Sequence(0),
            (Self::Sequence(_), digit @ b'0'..=b'9') => *self = Self::Sequence(digit),
            (Self::Sequence(digit), b';') => *self = Self::Sequence(digit),
            (Self::Sequence(digit), last) => {
                return match (last, digit) {
                    (b'A', _) => Some(Key::Up),
                    (b'B', _) => Some(Key::Down),
                    (b'C', _) => Some(Key::Right),
                    (b'D', _) => Some(Key::Left),
                    (b'H', _) | (b'~', b'1' | b'7') => Some(Key::First),
                    (b'F', _) | (b'~', b'4' | b'8') => Some(Key::Last),
                    (b'~', b'5') => Some(Key::PageUp),
                    (b'~', b'6') => Some(Key::PageDown),
                    _ => None,
                };
            }
            // Raw, a terminal sends what is an interrupt otherwise.
            (_, b'q' | b'Q' | 0x03 | 0x04) => return Some(Key::Quit),
            (_, b'h') => return Some(Key::Left),
            (_, b'l') => return Some(Key::Right),
            (_, b'k') => return Some(Key::Up),
            (_, b'j') => return Some(Key::Down),
            (_, b'g') => return Some(Key::First),
            (_, b'G') => return Some(Key::Last),
            (_, b'r') => return Some(Key::Reverse),
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::Span;
    use super::*;

    #[test]
    fn keys_are_read_from_sequences_and_from_parts_of_them() {
        let mut reader = KeyReader::default();
        let mut keys = |text: &[u8]| -> Vec<Key> {
            text.iter()
                .filter_map(|octet| reader.take(*octet))
                .collect()
        };
        assert_eq!(
            keys(b"\x1b[A\x1bOB\x1b[C"),
            [Key::Up, Key::Down, Key::Right]
        );
        assert_eq!(keys(b"\x1b["), []);
        assert_eq!(keys(b"6~"), [Key::PageDown], "the rest of it");
        assert_eq!(keys(b"\x1b[1;5D"), [Key::Left], "with a modifier");
        assert_eq!(keys(b"xyz\x1b[Zq"), [Key::Quit]);
        assert_eq!(keys(b"\x03"), [Key::Quit]);
        assert_eq!(keys(b"\x1bq"), [Key::Quit], "after the escape key");
    }

    #[test]
    fn a_frame_leaves_nothing_of_the_last_one() {
        let text = |text: &str, look| Span {
            look,
            text: text.to_owned(),
        };
        let lines = [vec![text("a", Look::Bold), text("b", Look::Plain)], vec![]];
        assert_eq!(
            painted(&lines),
            "\x1b[H\x1b[1;1H\x1b[0;1ma\x1b[0mb\x1b[0m\x1b[K\x1b[2;1H\x1b[0m\x1b[K\x1b[J"
        );
    }
}
