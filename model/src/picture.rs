//! Pairs of things as a picture made of text.

use std::fmt::Write;

/// A line for each name, behind the signs of its pairs with the names above; the sign of a pair
/// stands in the column in which the upper name begins. `sign` is given the places of both, the
/// lower one's first.
#[must_use]
pub fn pair_picture(names: &[String], sign: impl Fn(usize, usize) -> char) -> String {
    let mut text = String::new();
    for (row, name) in names.iter().enumerate() {
        for column in 0..row {
            text.push(sign(row, column));
            text.push(' ');
        }
        writeln!(text, "{name}").expect("a String takes everything");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_stands_below_one_name_and_before_the_other() {
        let names = ["a", "b", "c"].map(str::to_owned);
        let sign = |row, column| match (row, column) {
            (2, 0) => '·',
            _ => '●',
        };
        assert_eq!(pair_picture(&names, sign), "a\n● b\n· ● c\n");
    }
}
