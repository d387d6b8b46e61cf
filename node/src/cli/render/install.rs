//! Files into their folder: all of a change are written aside, checked together, and then renamed
//! one by one, so that a daemon never reads half a file and never a set that its own check refuses.

use std::path::{Path, PathBuf};

use anyhow::Context;
use caracal_templates::Rendered;

use super::programs;
use crate::args::RenderArgs;

/// Name of the folder inside the target where candidates lie until they are checked.
const ASIDE: &str = ".caracal-candidate";

/// Puts rendered files into a folder.
pub(super) struct Installer {
    folder: PathBuf,
    check: Option<String>,
    reload: Option<String>,
    /// The files changed and the daemon was not told, because its reload command failed.
    reload_is_due: bool,
    /// The candidate that the check refused; it is not checked again until it changes.
    refused: Option<(Vec<Rendered>, String)>,
}

impl Installer {
    pub(super) fn new(folder: &Path, args: &RenderArgs) -> Self {
        Self {
            folder: folder.to_owned(),
            check: args.check_cmd.clone(),
            reload: args.reload_cmd.clone(),
            reload_is_due: false,
            refused: None,
        }
    }

    /// Writes what differs from what is there. Returns the paths that changed.
    pub(super) fn install(&mut self, files: &[Rendered]) -> anyhow::Result<Vec<PathBuf>> {
        if let Some((refused, reason)) = &self.refused
            && refused == files
        {
            anyhow::bail!("{reason}");
        }
        self.refused = None;
        let changed: Vec<&Rendered> = files
            .iter()
            .filter(|file| {
                let current = std::fs::read(self.folder.join(&file.file));
                !current.is_ok_and(|text| text == file.text.as_bytes())
            })
            .collect();
        if !changed.is_empty() {
            let aside = self.folder.join(ASIDE);
            let outcome = self.replace(&aside, files, &changed);
            // The old directory is useless; if it cannot be removed, the next round overwrites it.
            let _ = std::fs::remove_dir_all(&aside);
            outcome?;
            self.reload_is_due = true;
        }
        if self.reload_is_due {
            if let Some(command) = &self.reload {
                programs::run(command, &self.folder).context("the reload command")?;
            }
            self.reload_is_due = false;
        }
        Ok(changed
            .iter()
            .map(|file| self.folder.join(&file.file))
            .collect())
    }

    fn replace(
        &mut self,
        aside: &Path,
        files: &[Rendered],
        changed: &[&Rendered],
    ) -> anyhow::Result<()> {
        std::fs::create_dir_all(aside).with_context(|| format!("creating {}", aside.display()))?;
        for file in files {
            let path = aside.join(&file.file);
            write(&path, &file.text).with_context(|| format!("writing {}", path.display()))?;
        }
        if let Some(command) = &self.check
            && let Err(e) = programs::run(command, aside)
        {
            let reason = format!("the check command refused the new files: {e:#}");
            self.refused = Some((files.to_vec(), reason.clone()));
            anyhow::bail!("{reason}");
        }
        for file in changed {
            let path = self.folder.join(&file.file);
            std::fs::rename(aside.join(&file.file), &path)
                .with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }
}

/// The text may hold passwords, so nobody else reads it.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o640)
        .open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use caracal_datastore::TestFolder;

    use super::*;

    struct Folder(TestFolder);

    impl Folder {
        fn new(name: &str) -> Self {
            Self(TestFolder::new(name))
        }

        fn installer(&self, check: Option<&str>, reload: Option<&str>) -> Installer {
            Installer {
                folder: self.0.to_path_buf(),
                check: check.map(str::to_owned),
                reload: reload.map(str::to_owned),
                reload_is_due: false,
                refused: None,
            }
        }

        fn text(&self, name: &str) -> String {
            std::fs::read_to_string(self.0.join(name)).unwrap()
        }
    }

    fn file(name: &str, text: &str) -> Rendered {
        Rendered {
            file: name.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn only_what_differs_is_written_and_the_daemon_is_told_once() {
        let folder = Folder::new("install");
        let reload = "echo told >> \"$CARACAL_RENDER_DIR/log\"";
        let mut installer = folder.installer(None, Some(reload));
        let files = [file("a", "1"), file("b", "1")];
        assert_eq!(installer.install(&files).unwrap().len(), 2);
        assert!(installer.install(&files).unwrap().is_empty());
        let changed = installer
            .install(&[file("a", "1"), file("b", "2")])
            .unwrap();
        assert_eq!(changed, [folder.0.join("b")]);
        assert_eq!(folder.text("log"), "told\ntold\n");
        assert!(!folder.0.join(ASIDE).exists());
    }

    #[test]
    fn a_refused_candidate_leaves_the_last_good_files_and_is_checked_once() {
        let folder = Folder::new("refuse");
        let count = folder.0.join("checks");
        let check = format!(
            "echo x >> {}; ! grep -q bad {{dir}}/b || {{ echo line 3 is wrong >&2; exit 1; }}",
            count.display()
        );
        let mut installer = folder.installer(Some(&check), None);
        installer
            .install(&[file("a", "1"), file("b", "good")])
            .unwrap();
        let bad = [file("a", "2"), file("b", "bad")];
        for _ in 0..3 {
            let error = installer.install(&bad).unwrap_err().to_string();
            assert!(error.contains("line 3 is wrong"), "{error}");
        }
        assert_eq!(
            (folder.text("a"), folder.text("b")),
            ("1".into(), "good".into())
        );
        assert_eq!(folder.text("checks"), "x\nx\n");
        installer
            .install(&[file("a", "3"), file("b", "good")])
            .unwrap();
        assert_eq!(folder.text("a"), "3");
    }

    #[test]
    fn a_failed_reload_is_tried_again() {
        let folder = Folder::new("reload");
        let reload = "test -e {dir}/ready";
        let mut installer = folder.installer(None, Some(reload));
        assert!(installer.install(&[file("a", "1")]).is_err());
        std::fs::write(folder.0.join("ready"), "").unwrap();
        assert!(installer.reload_is_due);
        installer.install(&[file("a", "1")]).unwrap();
        assert!(!installer.reload_is_due);
    }
}
