//! `caracal top`: a node live in a terminal, or once as text. It asks the daemon of this machine
//! each second, as `caracal events` does, and changes nothing.

mod frame;
mod screen;
#[cfg(test)]
mod tests;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::run_dir;
use super::status::is_healthy;
use crate::admin::{Request, ask_quietly};
use crate::exit::DEGRADED;
use crate::out;
use frame::{Column, Seen, View};
use screen::{Key, Screen};

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Columns of a frame that no terminal shows.
const FILE_WIDTH: usize = 200;

/// `caracal top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Print one frame as text, and end. Exit code 4 if something is wrong.
    #[arg(long)]
    once: bool,
}

pub(crate) fn run(args: &TopArgs) -> anyhow::Result<ExitCode> {
    if args.once {
        return once();
    }
    if !screen::is_terminal() {
        eprintln!("standard input or output is no terminal: this is one frame, as with --once");
        return once();
    }
    // What cannot be asked at all is told before the terminal changes.
    let first = look()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let screen = Screen::enter()?;
    runtime.block_on(follow(&screen, first))?;
    Ok(ExitCode::SUCCESS)
}

/// The node as it is now.
fn look() -> anyhow::Result<Seen> {
    let folder = run_dir();
    let begin = Instant::now();
    let status = ask_quietly(&folder, &Request::Status)?;
    let took = begin.elapsed();
    let status = serde_json::from_value(status)?;
    // A node of an older version does not know the question.
    let figures = ask_quietly(&folder, &Request::Figures).ok();
    Ok(Seen {
        at: Instant::now(),
        took,
        status,
        figures: figures.and_then(|value| serde_json::from_value(value).ok()),
    })
}

/// Two looks, since a rate has two ends.
fn once() -> anyhow::Result<ExitCode> {
    let before = look()?;
    std::thread::sleep(INTERVAL);
    let view = View {
        before: Some(before),
        ..View::new(look()?)
    };
    let width = out::columns().map_or(FILE_WIDTH, usize::from);
    for line in view.frame(width, None) {
        let text: String = line.into_iter().map(|span| span.text).collect();
        println!("{}", text.trim_end());
    }
    Ok(match is_healthy(&view.seen.status) {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(DEGRADED),
    })
}

impl View {
    /// The first frame.
    fn new(seen: Seen) -> Self {
        Self {
            seen,
            before: None,
            silent: None,
            sort: Column::State,
            is_reverse: false,
            first: 0,
        }
    }

    /// What another look says.
    fn update(&mut self, look: anyhow::Result<Seen>) {
        match look {
            Ok(seen) => {
                self.before = Some(std::mem::replace(&mut self.seen, seen));
                self.silent = None;
                self.first = self.first.min(self.last_first());
            }
            // A node that restarts is waited for.
            Err(error) => self.silent = Some(format!("{error:#}")),
        }
    }

    /// Does what a key says; false: this is the end.
    fn press(&mut self, key: Key, page: usize) -> bool {
        let first = match key {
            Key::Quit => return false,
            Key::Left | Key::Right => {
                self.sort = self.sort.beside(key == Key::Right);
                0
            }
            Key::Reverse => {
                self.is_reverse = !self.is_reverse;
                0
            }
            Key::Up => self.first.saturating_sub(1),
            Key::Down => self.first + 1,
            Key::PageUp => self.first.saturating_sub(page),
            Key::PageDown => self.first + page,
            Key::First => 0,
            Key::Last => self.last_first(),
        };
        self.first = first.min(self.last_first());
        true
    }
}

/// Looks each second beside the terminal, which a node that does not answer keeps from nothing. The
/// thread ends with the process.
fn looks() -> mpsc::Receiver<anyhow::Result<Seen>> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(INTERVAL);
            if sender.blocking_send(look()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Shows the node until somebody ends it.
async fn follow(screen: &Screen, first: Seen) -> anyhow::Result<()> {
    let mut view = View::new(first);
    let (mut looks, mut keys) = (looks(), screen::keys());
    let mut resized = signal(SignalKind::window_change())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    loop {
        let (width, height) = screen.size();
        screen.show(&view.frame(width, Some(height)))?;
        tokio::select! {
            Some(look) = looks.recv() => view.update(look),
            key = keys.recv() => match key {
                Some(key) if view.press(key, height / 2) => {}
                _ => return Ok(()),
            },
            _ = resized.recv() => {}
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
        }
    }
}
