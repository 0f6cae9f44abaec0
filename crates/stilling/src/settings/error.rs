//! Configuration errors, each with its setting, so that the parser of a file can add the line.

use std::fmt;

/// One setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingKey {
    /// An option of the server, by its name.
    Option(&'static str),
    /// A key of a stream.
    Stream {
        /// Index of the stream, from 0.
        index: usize,
        /// The key, as in the file.
        key: &'static str,
    },
    /// A key of a user.
    User {
        /// Index of the user, from 0.
        index: usize,
        /// The key, as in the file.
        key: &'static str,
    },
}

/// A setting that prevents the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingError {
    /// The setting.
    pub setting: SettingKey,
    /// Its value, and what is allowed.
    pub reason: String,
}

impl SettingError {
    pub(crate) fn option(name: &'static str, reason: String) -> Self {
        SettingError { setting: SettingKey::Option(name), reason }
    }

    pub(super) fn stream(index: usize, key: &'static str, reason: String) -> Self {
        SettingError { setting: SettingKey::Stream { index, key }, reason }
    }

    pub(super) fn user(index: usize, key: &'static str, reason: String) -> Self {
        SettingError { setting: SettingKey::User { index, key }, reason }
    }
}

/// Formats as `stream 2, subjects: …`.
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
