//! What is wrong with a setting, and which one it is: whoever read the settings from somewhere knows the line.

use std::fmt;

/// One setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingKey {
    /// One that a server has once, by the name of its option.
    Option(&'static str),
    /// One of a stream, by its place in the list and its key.
    Stream {
        /// From 0.
        index: usize,
        /// As in the file.
        key: &'static str,
    },
    /// One of a user, by its place in the list and its key.
    User {
        /// From 0.
        index: usize,
        /// As in the file.
        key: &'static str,
    },
}

/// A setting that no server can be made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingError {
    /// Which one.
    pub setting: SettingKey,
    /// What it is, and what it has to be.
    pub reason: String,
}

impl SettingError {
    pub(super) fn option(name: &'static str, reason: String) -> Self {
        SettingError { setting: SettingKey::Option(name), reason }
    }

    pub(super) fn stream(index: usize, key: &'static str, reason: String) -> Self {
        SettingError { setting: SettingKey::Stream { index, key }, reason }
    }

    pub(super) fn user(index: usize, key: &'static str, reason: String) -> Self {
        SettingError { setting: SettingKey::User { index, key }, reason }
    }
}

/// `stream 2, subjects: …`
impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.setting {
            SettingKey::Option(name) => write!(f, "{name}: ")?,
            SettingKey::Stream { index, key } => write!(f, "stream {}, {key}: ", index + 1)?,
            SettingKey::User { index, key } => write!(f, "user {}, {key}: ", index + 1)?,
        }
        f.write_str(&self.reason)
    }
}

impl std::error::Error for SettingError {}
