//! The per-host IPAM lock: a lock on a file that all CNI plugins of the host share. The file also
//! has the block hints: the blocks of the last assignments. Twenty pods that start at once change
//! one block; without the lock all but one of them lose the race each time. The lock is a courtesy:
//! who does not get it in time goes on without it, for it is the datastore's transactions that keep
//! the data right. What is remembered saves a read and may be wrong.
//!
//! A process that dies gives its lock back; its memory is overwritten by the next.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::time::Duration;

use caracal_datastore::{SMALL_FILE, make_folder, open_lock_file};
use caracal_model::Prefix;

const FILE: &str = "ipam.lock";
/// Patience for the others: much more than the assignments of a hundred plugins, and less than a
/// DEL may take.
const LIMIT: Duration = Duration::from_secs(2);
/// Pause between two looks at the lock; an assignment takes a few times as long. Waiting in the
/// kernel instead would hold up everything else that the plugin does meanwhile.
const LOOK: Duration = Duration::from_millis(1);
/// Blocks to remember: one or two of each family are in use at a time.
const REMEMBERED: usize = 4;

/// The lock, held until the value is dropped.
#[derive(Debug)]
pub(crate) struct HostLock {
    file: Option<File>,
    hints: Vec<Prefix>,
}

impl HostLock {
    /// Waits for the lock, at most [`LIMIT`].
    pub(crate) async fn wait(run_dir: &Path) -> Self {
        let file = match open(run_dir) {
            Ok(file) => file,
            Err(error) => {
                tracing::debug!(?run_dir, %error, "no file to lock");
                return Self::without();
            }
        };
        match tokio::time::timeout(LIMIT, lock(&file)).await {
            Ok(Ok(())) => Self {
                hints: read(&file).unwrap_or_default(),
                file: Some(file),
            },
            Ok(Err(error)) => {
                tracing::debug!(?run_dir, %error, "cannot lock {FILE}");
                Self::without()
            }
            Err(_elapsed) => {
                tracing::debug!("others take long; going on without the lock");
                Self::without()
            }
        }
    }

    const fn without() -> Self {
        Self {
            file: None,
            hints: Vec::new(),
        }
    }

    /// The blocks that the last assignments were from.
    pub(crate) fn hints(&self) -> &[Prefix] {
        &self.hints
    }

    /// Remembers the blocks of an assignment, before those of earlier ones.
    pub(crate) fn remember(&mut self, blocks: impl IntoIterator<Item = Prefix>) {
        let before = self.hints.clone();
        let mut hints: Vec<Prefix> = Vec::new();
        for block in blocks.into_iter().chain(self.hints.drain(..)) {
            if hints.len() < REMEMBERED && !hints.contains(&block) {
                hints.push(block);
            }
        }
        self.hints = hints;
        if self.hints != before
            && let Some(file) = &self.file
            && let Err(error) = write(file, &self.hints)
        {
            tracing::debug!(%error, "cannot write {FILE}");
        }
    }
}

/// Gives the host's plugins blocks to begin with when they remember none: then the first assignment
/// after a boot needs one read, as all others. False when they remember some, or are at it just
/// now.
///
/// # Errors
/// The file cannot be made, read or written.
pub fn suggest_blocks(
    run_dir: &Path,
    blocks: impl IntoIterator<Item = Prefix>,
) -> io::Result<bool> {
    let file = open(run_dir)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    if !read(&file)?.is_empty() {
        return Ok(false);
    }
    let blocks: Vec<Prefix> = blocks.into_iter().take(REMEMBERED).collect();
    write(&file, &blocks)?;
    Ok(!blocks.is_empty())
}

fn open(run_dir: &Path) -> io::Result<File> {
    make_folder(run_dir)?;
    open_lock_file(&run_dir.join(FILE))
}

async fn lock(file: &File) -> io::Result<()> {
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => tokio::time::sleep(LOOK).await,
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// One block a line; what is no block is left out.
fn read(file: &File) -> io::Result<Vec<Prefix>> {
    let mut text = String::new();
    file.take(SMALL_FILE).read_to_string(&mut text)?;
    let blocks = text.lines().filter_map(|line| line.parse().ok());
    Ok(blocks.take(REMEMBERED).collect())
}

fn write(mut file: &File, blocks: &[Prefix]) -> io::Result<()> {
    let text: String = blocks.iter().map(|block| format!("{block}\n")).collect();
    file.rewind()?;
    file.set_len(0)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use caracal_datastore::TestFolder;

    use super::*;

    #[tokio::test]
    async fn one_at_a_time_and_the_impatient_go_on() {
        let run = TestFolder::new("order");
        let first = HostLock::wait(&run).await;
        assert!(first.file.is_some());
        let start = tokio::time::Instant::now();
        let second = HostLock::wait(&run).await;
        assert!(second.file.is_none());
        assert!(start.elapsed() >= LIMIT);
        drop(first);
        assert!(HostLock::wait(&run).await.file.is_some());
    }

    #[tokio::test]
    async fn suggestions_are_for_those_who_remember_nothing() {
        let run = TestFolder::new("suggest");
        let block = |text: &str| text.parse::<Prefix>().unwrap();
        let (ours, theirs) = (block("10.244.1.0/26"), block("10.244.2.0/26"));
        let lock = HostLock::wait(&run).await;
        assert!(
            !suggest_blocks(&run, [ours]).unwrap(),
            "somebody holds the lock"
        );
        drop(lock);
        assert!(suggest_blocks(&run, [ours]).unwrap());
        assert!(!suggest_blocks(&run, [theirs]).unwrap());
        assert_eq!(HostLock::wait(&run).await.hints(), [ours]);
    }

    #[tokio::test]
    async fn the_latest_blocks_are_remembered_and_nonsense_is_not() {
        let run = TestFolder::new("memory");
        let blocks = |texts: &[&str]| -> Vec<Prefix> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        HostLock::wait(&run)
            .await
            .remember(blocks(&["10.0.0.0/26", "fd00::/122"]));
        HostLock::wait(&run)
            .await
            .remember(blocks(&["10.0.0.64/26", "fd00::/122"]));
        let lock = HostLock::wait(&run).await;
        let latest = blocks(&["10.0.0.64/26", "fd00::/122", "10.0.0.0/26"]);
        assert_eq!(lock.hints(), latest);
        drop(lock);
        fs::write(run.join(FILE), "what\n10.0.0.0/26\n\u{0}").unwrap();
        let lock = HostLock::wait(&run).await;
        assert_eq!(lock.hints(), blocks(&["10.0.0.0/26"]));
    }

    #[tokio::test]
    async fn a_link_is_not_followed() {
        let run = TestFolder::new("link");
        fs::create_dir_all(&run).unwrap();
        let victim = run.join("victim");
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, run.join(FILE)).unwrap();
        let mut lock = HostLock::wait(&run).await;
        lock.remember(["10.0.0.0/26".parse().unwrap()]);
        assert!(suggest_blocks(&run, ["10.0.0.0/26".parse().unwrap()]).is_err());
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    }

    #[tokio::test]
    async fn without_a_directory_there_are_no_turns() {
        let lock = HostLock::wait(Path::new("/proc/none")).await;
        assert!(lock.file.is_none() && lock.hints().is_empty());
    }
}
