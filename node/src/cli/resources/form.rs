//! `-o` of commands for resources.

use clap::ValueEnum;

use crate::args::Output;

/// Output forms of commands for resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Form {
    /// A table for people.
    #[default]
    #[value(alias = "ps")]
    Table,
    /// The same with every column, and lines as long as they are.
    Wide,
    /// JSON, as Calico stores it.
    Json,
    /// The same as YAML, ready for `caracal apply -f -`.
    Yaml,
    /// A line `KIND/NAME` for each.
    Name,
}

impl Form {
    /// The form that other commands have.
    pub(super) const fn output(self) -> Output {
        match self {
            Self::Table | Self::Name => Output::Table,
            Self::Wide => Output::Wide,
            Self::Json => Output::Json,
            Self::Yaml => Output::Yaml,
        }
    }

    /// True when standard output is for programs.
    pub(super) const fn is_data(self) -> bool {
        matches!(self, Self::Json | Self::Yaml | Self::Name)
    }
}
