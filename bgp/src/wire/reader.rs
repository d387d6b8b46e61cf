//! nom with our own error: a field list either fills its input or it does not. Frames are delimited
//! by their length, so nothing ever waits for more input.

use nom::Parser;
use nom::combinator::all_consuming;
use nom::error::{ErrorKind, ParseError};

/// The input is too short or too long for the fields. What that means, the caller knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Misfit;

impl<I> ParseError<I> for Misfit {
    fn from_error_kind(_: I, _: ErrorKind) -> Self {
        Self
    }

    fn append(_: I, _: ErrorKind, other: Self) -> Self {
        other
    }
}

/// Runs `parser` over all of `input`.
pub(super) fn whole<'a, T>(
    parser: impl Parser<&'a [u8], Output = T, Error = Misfit>,
    input: &'a [u8],
) -> Result<T, Misfit> {
    all_consuming(parser)
        .parse(input)
        .map(|(_, value)| value)
        .map_err(|_| Misfit)
}
