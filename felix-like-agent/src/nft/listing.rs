//! What nftables lists of a table.

use std::cell::OnceCell;

use super::mark::{CHECKSUM, Checksum, FINGERPRINT, SetHash, of_words};

/// A listing, read.
#[derive(Debug, Default)]
pub(crate) struct Listing<'a> {
    sections: Vec<Section<'a>>,
    /// Once it was asked for.
    checksum: OnceCell<Checksum>,
}

/// The table itself, a chain, a set or a map.
#[derive(Debug, Default)]
pub(crate) struct Section<'a> {
    kind: &'a str,
    pub(crate) name: &'a str,
    /// All that is said of it but elements, the line with the name included.
    lines: Vec<&'a str>,
    /// Each as nftables prints it.
    pub(crate) elements: Vec<&'a str>,
}

impl<'a> Section<'a> {
    /// The line with which one begins.
    fn begins(line: &'a str) -> Option<Self> {
        let (kind, name) = line.strip_suffix(" {")?.split_once(' ')?;
        ["table", "chain", "set", "map"]
            .contains(&kind)
            .then(|| Self {
                kind,
                name,
                lines: vec![line],
                elements: Vec::new(),
            })
    }

    /// All that is said of it but name and elements: the rules of a chain.
    pub(crate) fn rules(&self) -> &[&'a str] {
        self.lines.get(1..).unwrap_or_default()
    }

    /// True for a chain whose name is a mark: it says nothing else.
    fn is_mark(&self) -> bool {
        let begins = |of: &&str| self.name.starts_with(of);
        self.kind == "chain" && [FINGERPRINT, CHECKSUM].iter().any(begins)
    }

    /// The lines that count for the checksum, without what a counter has counted.
    fn counted(&self) -> impl Iterator<Item = &'a str> {
        let lines = self.lines.iter().skip(usize::from(self.is_mark()));
        lines.flat_map(|line| uncounted(line))
    }
}

impl<'a> Listing<'a> {
    /// Reads what nftables prints.
    pub(crate) fn parse(text: &'a str) -> Self {
        let mut sections: Vec<Section<'_>> = Vec::new();
        let lines = text.lines().map(str::trim);
        let mut lines = lines
            .filter(|line| !line.is_empty() && *line != "}")
            .peekable();
        while let Some(line) = lines.next() {
            if let Some(section) = Section::begins(line) {
                sections.push(section);
                continue;
            }
            if sections.is_empty() {
                sections.push(Section::default());
            }
            let Some(section) = sections.last_mut() else {
                continue;
            };
            let mut part = line.strip_prefix("elements = {");
            if part.is_none() {
                section.lines.push(line);
            }
            while let Some(line) = part {
                let elements = line.trim_end_matches('}').split(',').map(str::trim);
                let elements = elements.filter(|element| !element.is_empty());
                section.elements.extend(elements);
                part = lines.next_if(|_| !line.ends_with('}'));
            }
        }
        Self {
            sections,
            checksum: OnceCell::new(),
        }
    }

    pub(crate) fn chains(&self) -> impl Iterator<Item = &Section<'a>> {
        let sections = self.sections.iter();
        sections.filter(|section| section.kind == "chain")
    }

    /// Sets and maps.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &Section<'a>> {
        let sections = self.sections.iter();
        sections.filter(|section| ["set", "map"].contains(&section.kind))
    }

    /// The marks of the table that begin so, without that beginning.
    pub(crate) fn marks(&self, beginning: &str) -> Vec<&'a str> {
        let names = self.chains().map(|chain| chain.name);
        let marks = names.filter_map(|name| name.strip_prefix(beginning));
        marks.collect()
    }

    /// The fingerprint with which the table is marked.
    pub(crate) fn fingerprint(&self) -> Option<&'a str> {
        self.marks(FINGERPRINT).first().copied()
    }

    /// True when the table is as it was when it was marked.
    pub(crate) fn is_untouched(&self) -> bool {
        let checksum = self.checksum().to_string();
        *self.marks(CHECKSUM) == [checksum] && self.marks(FINGERPRINT).len() == 1
    }

    /// The checksum of the table.
    pub(crate) fn checksum(&self) -> Checksum {
        *self.checksum.get_or_init(|| self.count())
    }

    fn count(&self) -> Checksum {
        let mut elements = 0_u64;
        for set in &self.sections {
            let hash = SetHash::new(set.name);
            let hashes = set.elements.iter().map(|element| hash.listed(element));
            elements = hashes.fold(elements, u64::wrapping_add);
        }
        Checksum {
            structure: self.structure(|_| true),
            elements,
        }
    }

    /// The checksum of all that counts but the elements of sets and maps.
    pub(crate) fn structure(&self, counts: impl Fn(&Section<'a>) -> bool) -> u64 {
        let sections = self.sections.iter().filter(|section| counts(section));
        of_words(sections.flat_map(Section::counted))
    }
}

/// The line without what a counter has counted.
fn uncounted(line: &str) -> impl Iterator<Item = &str> {
    let mut words = line.split(' ');
    std::iter::from_fn(move || {
        let word = words.next()?;
        match word {
            "packets" | "bytes" => words.next().map(|_| word),
            word => Some(word),
        }
    })
}
