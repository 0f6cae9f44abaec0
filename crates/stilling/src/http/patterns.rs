//! The patterns of a table of routes: matches paths and extracts placeholders.

use matchit::{InsertError, Router};

#[derive(Clone, Default)]
pub(super) struct Patterns(Router<usize>);

impl Patterns {
    pub(super) fn insert(&mut self, pattern: &str, index: usize) -> Result<(), InsertError> {
        self.0.insert(pattern, index)
    }

    pub(super) fn index(&self, path: &str) -> Option<usize> {
        self.0.at(path).ok().map(|found| *found.value)
    }

    pub(super) fn param<'a>(&'a self, path: &'a [u8], name: &str) -> Option<&'a str> {
        let path = std::str::from_utf8(path).ok()?;
        self.0.at(path).ok()?.params.get(name)
    }
}
