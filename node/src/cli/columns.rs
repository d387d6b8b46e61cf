//! A table that is printed while it comes: the first rows decide how wide the columns are, and a
//! longer text later on moves only its own row.

use std::io::{self, Write};

/// Rows that decide the widths.
const FIRST: usize = 256;

/// Where less is left for the last column, it goes below its row.
const NARROW: usize = 16;

/// Indentation of what is below its row.
const BELOW: usize = 4;

/// A table without borders on its way to `out`, in the look of [`super::table`].
pub(super) struct Columns<W: Write, const N: usize> {
    out: W,
    header: [&'static str; N],
    /// How wide a row may be: the last column wraps, or goes below its row.
    limit: Option<u16>,
    /// `None`: not decided yet.
    layout: Option<Layout<N>>,
    waiting: Vec<[String; N]>,
}

impl<W: Write, const N: usize> Columns<W, N> {
    pub(super) const fn new(out: W, header: [&'static str; N], limit: Option<u16>) -> Self {
        Self {
            out,
            header,
            limit,
            layout: None,
            waiting: Vec::new(),
        }
    }

    /// Prints a row, or keeps it until the widths are known.
    pub(super) fn row(&mut self, row: [String; N]) -> io::Result<()> {
        if let Some(layout) = &self.layout {
            return layout.write(&mut self.out, row.iter().map(String::as_str));
        }
        self.waiting.push(row);
        if self.waiting.len() == FIRST {
            self.begin()?;
        }
        Ok(())
    }

    fn begin(&mut self) -> io::Result<()> {
        let mut is_below = false;
        let mut widths = self.header.map(|text| text.chars().count());
        for row in &self.waiting {
            for (width, text) in widths.iter_mut().zip(row) {
                *width = (*width).max(text.chars().count());
            }
        }
        if let (Some(limit), Some((last, others))) = (self.limit, widths.split_last_mut()) {
            let taken: usize = others.iter().map(|width| width + 2).sum();
            let left = usize::from(limit).saturating_sub(taken + 2);
            is_below = left < NARROW && left < *last;
            *last = match is_below {
                true => usize::from(limit).saturating_sub(BELOW + 2).max(NARROW),
                false => left.min(*last),
            };
        }
        let layout = Layout { widths, is_below };
        // The heading of the last column fits beside the others.
        let heading = Layout {
            widths,
            is_below: false,
        };
        heading.write(&mut self.out, self.header)?;
        for row in self.waiting.drain(..) {
            layout.write(&mut self.out, row.iter().map(String::as_str))?;
        }
        self.layout = Some(layout);
        self.out.flush()
    }

    /// Prints what is left.
    pub(super) fn end(mut self) -> io::Result<()> {
        if self.layout.is_none() {
            self.begin()?;
        }
        self.out.flush()
    }
}

/// How wide the columns are.
struct Layout<const N: usize> {
    widths: [usize; N],
    /// The last column is below its row.
    is_below: bool,
}

impl<const N: usize> Layout<N> {
    fn write<'t>(
        &self,
        out: &mut impl Write,
        row: impl IntoIterator<Item = &'t str>,
    ) -> io::Result<()> {
        let mut line = String::new();
        let mut more = Vec::new();
        for (at, (text, width)) in row.into_iter().zip(&self.widths).enumerate() {
            let is_last = at + 1 == N;
            if is_last && self.is_below {
                more = wrapped(text, *width);
                more.retain(|text| !text.is_empty());
                break;
            }
            let mut lines = match is_last {
                true => wrapped(text, *width),
                false => vec![text],
            };
            let text = lines.remove(0);
            more = lines;
            line.push(' ');
            line.push_str(text);
            let pad = width.saturating_sub(text.chars().count()) + 1;
            line.extend(std::iter::repeat_n(' ', pad));
        }
        writeln!(out, "{}", line.trim_end())?;
        let others = self.widths.iter().take(N.saturating_sub(1));
        let before: usize = match self.is_below {
            true => BELOW,
            false => others.map(|width| width + 2).sum(),
        };
        for text in more {
            writeln!(out, "{:before$} {text}", "")?;
        }
        Ok(())
    }
}

/// A text in lines of so many letters, where its words allow; never empty.
fn wrapped(text: &str, width: usize) -> Vec<&str> {
    let (mut lines, mut rest) = (Vec::new(), text);
    while rest.chars().count() > width {
        let end = rest
            .char_indices()
            .nth(width + 1)
            .map_or(rest.len(), |(at, _)| at);
        let Some(at) = rest[..end].rfind(' ').or_else(|| rest.find(' ')) else {
            break;
        };
        lines.push(&rest[..at]);
        rest = rest[at..].trim_start();
    }
    lines.push(rest);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(rows: &[[&str; 2]]) -> String {
        let mut out = Vec::new();
        let mut columns = Columns::new(&mut out, ["A", "LONG NAME"], None);
        for row in rows {
            columns.row(row.map(str::to_owned)).unwrap();
        }
        columns.end().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_are_as_wide_as_the_first_rows_need() {
        assert_eq!(text(&[]), " A  LONG NAME\n");
        let shown = text(&[["10.0.0.0/8", "x"], ["–", "y"]]);
        assert_eq!(
            shown,
            " A           LONG NAME\n 10.0.0.0/8  x\n –           y\n"
        );
    }

    #[test]
    fn rows_are_printed_before_the_last_one_has_come() {
        let mut out = Vec::new();
        let mut columns = Columns::new(&mut out, ["A", "B"], None);
        for _ in 0..FIRST {
            columns.row(["1".to_owned(), String::new()]).unwrap();
        }
        assert!(columns.waiting.is_empty());
        columns.row(["longer".to_owned(), "2".to_owned()]).unwrap();
        columns.end().unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), FIRST + 2);
        assert!(text.ends_with(" longer  2\n"), "{text}");
    }

    #[test]
    fn the_last_column_wraps_between_words() {
        let mut out = Vec::new();
        let mut columns = Columns::new(&mut out, ["A", "B"], Some(22));
        for text in ["the best path has a higher preference", "short", ""] {
            columns.row(["x".to_owned(), text.to_owned()]).unwrap();
        }
        columns.end().unwrap();
        let text = String::from_utf8(out).unwrap();
        let expected =
            " A  B\n x  the best path has\n    a higher\n    preference\n x  short\n x\n";
        assert_eq!(text, expected);
        assert!(text.lines().all(|line| line.len() <= 22), "{text}");
    }

    #[test]
    fn where_little_is_left_the_last_column_is_below_its_row() {
        let mut out = Vec::new();
        let mut columns = Columns::new(&mut out, ["PREFIX", "FROM", "STATUS"], Some(40));
        for status in ["best: only path; resolved on eth0 by 10.0.0.2", "best", ""] {
            let row = ["10.244.0.104/29", "Mesh_10_0_0_2", status];
            columns.row(row.map(str::to_owned)).unwrap();
        }
        columns.end().unwrap();
        let text = String::from_utf8(out).unwrap();
        let row = " 10.244.0.104/29  Mesh_10_0_0_2";
        let expected = format!(
            " PREFIX           FROM           STATUS\n{row}\n     best: only path; resolved on eth0\n     \
             by 10.0.0.2\n{row}\n     best\n{row}\n"
        );
        assert_eq!(text, expected);
        assert!(text.lines().all(|line| line.len() <= 40), "{text}");
    }
}
