//! A compressed archive of small files, made in memory: ustar (POSIX.1-1988) in gzip (RFC 1952).

use std::fmt::Write as _;

/// Octets of a header, and what files are padded to.
const BLOCK: usize = 512;
/// Speed against size, 0 to 10; gzip's own default.
const LEVEL: u8 = 6;

/// Files, in the order in which they are added.
#[derive(Debug)]
pub(super) struct Archive {
    octets: Vec<u8>,
    /// Seconds since 1970.
    modified: u64,
}

impl Archive {
    /// An empty one, of files that were all changed at `modified` (seconds since 1970).
    pub(super) const fn new(modified: u64) -> Self {
        Self {
            octets: Vec::new(),
            modified,
        }
    }

    /// Adds a file that its owner alone may read; `path` has at most 100 octets.
    pub(super) fn add(&mut self, path: &str, content: &[u8]) {
        let mut header = [0_u8; BLOCK];
        let mut put = |at: usize, text: &str| {
            header[at..at + text.len()].copy_from_slice(text.as_bytes());
        };
        put(0, path);
        put(100, "0000600");
        put(108, "0000000");
        put(116, "0000000");
        put(124, &format!("{:011o}", content.len()));
        put(136, &format!("{:011o}", self.modified));
        // The sum counts its own field as spaces.
        put(148, "        ");
        put(156, "0");
        put(257, "ustar\x0000");
        let sum: u32 = header.iter().map(|octet| u32::from(*octet)).sum();
        let mut text = String::new();
        write!(text, "{sum:06o}\0").expect("a String takes everything");
        header[148..155].copy_from_slice(text.as_bytes());
        self.octets.extend(header);
        self.octets.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.octets
            .resize(self.octets.len().next_multiple_of(BLOCK), 0);
    }

    /// The archive, compressed.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.octets.resize(self.octets.len() + 2 * BLOCK, 0);
        // Deflate, no flags, no time, no extra flags, Unix.
        let mut file = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
        file.extend(miniz_oxide::deflate::compress_to_vec(&self.octets, LEVEL));
        file.extend(crc32(&self.octets).to_le_bytes());
        let length = u32::try_from(self.octets.len() & 0xffff_ffff).unwrap_or_default();
        file.extend(length.to_le_bytes());
        file
    }
}

/// RFC 1952, 8.
fn crc32(octets: &[u8]) -> u32 {
    let step = |crc: u32, octet: &u8| {
        (0..8).fold(crc ^ u32::from(*octet), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    };
    !octets.iter().fold(!0, step)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn tar_reads_what_was_added() {
        let mut archive = Archive::new(1_700_000_000);
        archive.add("b/INDEX", b"first\n");
        archive.add("b/empty", b"");
        archive.add("b/long", "line\n".repeat(100_000).as_bytes());
        let file = archive.finish();
        assert!(file.len() < 10_000, "{}", file.len());
        let tar = |arguments: &[&str]| {
            let mut child = Command::new("tar")
                .args(arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut stdin = child.stdin.take().unwrap();
            let file = file.clone();
            let writer = std::thread::spawn(move || stdin.write_all(&file).unwrap());
            let output = child.wait_with_output().unwrap();
            writer.join().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(tar(&["-tzf", "-"]), "b/INDEX\nb/empty\nb/long\n");
        assert_eq!(tar(&["-xzOf", "-", "b/INDEX"]), "first\n");
        assert_eq!(tar(&["-xzOf", "-", "b/long"]).len(), 500_000);
    }

    #[test]
    fn the_sum_is_that_of_the_rfc() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
