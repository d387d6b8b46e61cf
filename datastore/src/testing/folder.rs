//! A folder of a test.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A folder for temporary files that no other test has. It goes with all that is in it when it is
/// dropped, also while a test panics.
#[derive(Debug)]
pub struct TestFolder(PathBuf);

impl TestFolder {
    /// Makes one, whose name has this word.
    ///
    /// # Panics
    /// It cannot be made.
    #[must_use]
    pub fn new(word: &str) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("caracal-{word}-{}-{number}", process::id());
        let path = std::env::temp_dir().join(name);
        // A killed process of the same number may have left one.
        let _absent = fs::remove_dir_all(&path);
        fs::create_dir_all(&path)
            .unwrap_or_else(|error| panic!("cannot make {}: {error}", path.display()));
        Self(path)
    }
}

impl Deref for TestFolder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for TestFolder {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_with_what_is_in_it() {
        let [one, other] = [TestFolder::new("folder"), TestFolder::new("folder")];
        assert_ne!(&*one, &*other);
        fs::create_dir_all(one.join("a/b")).expect("a folder in it");
        let path = one.to_path_buf();
        let panicked = std::thread::spawn(move || {
            let _one = one;
            panic!("as a test that fails");
        });
        assert!(panicked.join().is_err() && !path.exists() && other.is_dir());
    }
}
