//! Users and their permissions: one table for every ingress protocol with authentication.

use std::collections::HashMap;
use std::fmt;

use super::filters::filter;
use super::limits::{SECRET_SIZE_MAX, USER_FILTERS_MAX, USER_NAME_SIZE_MAX, USERS_MAX};
use super::{SettingError, SettingKey};

/// A user that clients authenticate as. With at least one user, clients without valid credentials are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserConfig {
    /// The name that clients send with a password. With a token it is only a label.
    pub name: String,
    /// Proof of identity.
    pub credential: Credential,
    /// Filters of subjects to publish to. Default: everything.
    pub publish: Vec<String>,
    /// Filters of subjects to subscribe to. Default: everything.
    pub subscribe: Vec<String>,
}

/// Proof of identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// Sent with the name.
    Password(Secret),
    /// Sent without a name.
    Token(Secret),
}

/// A password or token. Its `Debug` output hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    text: String,
    /// The environment variable that it was read from.
    variable: Option<String>,
}

impl Secret {
    /// A secret with this text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Secret { text: text.into(), variable: None }
    }

    /// A secret that was read from an environment variable, which worker processes then do not inherit.
    #[must_use]
    pub fn from_variable(variable: impl Into<String>, text: impl Into<String>) -> Self {
        Secret { text: text.into(), variable: Some(variable.into()) }
    }

    /// Whether a guess is the secret. Takes a time that depends only on the length of the guess.
    #[must_use]
    pub fn matches(&self, guess: &[u8]) -> bool {
        let secret = self.text.as_bytes();
        // An empty secret matches nothing, not even an empty guess.
        let differing =
            guess.iter().enumerate().fold(u8::from(secret.is_empty()), |differing, (at, byte)| {
                // Bytes after the secret's end are compared with its beginning again: the same amount of work.
                differing | (byte ^ secret.get(at % secret.len().max(1)).unwrap_or(&0))
            });
        std::hint::black_box(differing) == 0 && guess.len() == secret.len()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl UserConfig {
    pub(crate) fn variable(&self) -> Option<&str> {
        let (Credential::Password(secret) | Credential::Token(secret)) = &self.credential;
        secret.variable.as_deref()
    }

    /// A user that may publish and subscribe to everything.
    #[must_use]
    pub fn new(name: impl Into<String>, credential: Credential) -> Self {
        let all = || vec![">".to_owned()];
        UserConfig { name: name.into(), credential, publish: all(), subscribe: all() }
    }

    fn problems(&self, index: usize, errors: &mut Vec<SettingError>) {
        let mut add_problem = |key, reason| errors.push(SettingError::user(index, key, reason));
        let name = &self.name;
        // RFC 7617 section 2: the colon separates the user-id from the password.
        let is_wrong = |letter: char| letter == ':' || letter.is_control();
        if name.is_empty() || name.len() > USER_NAME_SIZE_MAX || name.contains(is_wrong) {
            add_problem(
                "name",
                format!(
                    "`{}` is not a valid user name; it must have 1 to {USER_NAME_SIZE_MAX} bytes, no colon and no control characters",
                    name.escape_debug()
                ),
            );
        }
        let (key, secret) = match &self.credential {
            Credential::Password(secret) => ("password", secret),
            Credential::Token(secret) => ("token", secret),
        };
        if secret.text.is_empty() {
            add_problem(key, format!("the {key} of `{name}` is empty: any client could sign in as `{name}`"));
        }
        if secret.text.len() > SECRET_SIZE_MAX {
            add_problem(
                key,
                format!(
                    "the {key} of `{name}` has {} bytes; at most {SECRET_SIZE_MAX} are allowed",
                    secret.text.len()
                ),
            );
        }
        for (key, filters) in [("publish", &self.publish), ("subscribe", &self.subscribe)] {
            if filters.len() > USER_FILTERS_MAX {
                add_problem(
                    key,
                    format!("{} filters exceed the maximum of {USER_FILTERS_MAX} per user", filters.len()),
                );
            }
            for reason in filters.iter().filter_map(|text| filter(text).err()) {
                add_problem(key, reason);
            }
        }
    }
}

/// Problems of users, individually and together.
pub(super) fn problems(users: &[UserConfig], errors: &mut Vec<SettingError>) {
    if users.len() > USERS_MAX {
        let reason = format!("{} users exceed the maximum of {USERS_MAX}", users.len());
        errors.push(SettingError { setting: SettingKey::Option("user"), reason });
        return;
    }
    let (mut names, mut tokens) = (HashMap::new(), HashMap::new());
    for (index, user) in users.iter().enumerate() {
        user.problems(index, errors);
        if let Some(first) = names.insert(&user.name, index) {
            let reason =
                format!("`{}` is the name of user {}, too; each needs its own", user.name, first + 1);
            errors.push(SettingError::user(index, "name", reason));
        }
        if let Credential::Token(secret) = &user.credential
            && let Some(first) = tokens.insert(&secret.text, index)
        {
            let reason = format!("user {} has the same token, so the two cannot be distinguished", first + 1);
            errors.push(SettingError::user(index, "token", reason));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, password: &str) -> UserConfig {
        UserConfig::new(name, Credential::Password(Secret::new(password)))
    }

    fn problem_texts(users: &[UserConfig]) -> Vec<String> {
        let mut errors = Vec::new();
        problems(users, &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_invalid_user_is_refused_with_its_key() {
        let mut narrow = user("ann", "pass word");
        narrow.publish = vec!["events.*".to_owned()];
        narrow.subscribe.clear();
        assert_eq!(problem_texts(&[narrow.clone(), user("bo", "x")]), [""; 0]);
        narrow.publish.push("events.".to_owned());
        let token = |name| UserConfig::new(name, Credential::Token(Secret::new("t")));
        for (users, expected) in [
            (vec![narrow], "user 1, publish: `events.` is not a valid subject or filter"),
            (vec![user("", "x")], "user 1, name: `` is not a valid user name"),
            (vec![user("a:b", "x")], "no colon"),
            (vec![user("a\nb", "x")], "`a\\nb` is not a valid user name"),
            (
                vec![user("ann", "")],
                "user 1, password: the password of `ann` is empty: any client could sign in as `ann`",
            ),
            (vec![user("ann", &"x".repeat(1025))], "has 1025 bytes; at most 1024"),
            (vec![user("ann", "x"), user("ann", "y")], "user 2, name: `ann` is the name of user 1, too"),
            (vec![token("ann"), token("bo")], "user 2, token: user 1 has the same token"),
        ] {
            assert!(problem_texts(&users)[0].contains(expected), "{expected}: {:?}", problem_texts(&users));
        }
        assert_eq!(problem_texts(&vec![user("ann", "x"); USERS_MAX + 1]).len(), 1);
    }

    #[test]
    fn only_the_exact_secret_matches() {
        let secret = Secret::new("abab");
        assert!(secret.matches(b"abab"));
        for guess in ["", "a", "ab", "aba", "ababa", "abababab", "abaB", "xbab"] {
            assert!(!secret.matches(guess.as_bytes()), "{guess}");
        }
        for guess in ["", "a"] {
            assert!(!Secret::new("").matches(guess.as_bytes()), "an empty secret matches nothing");
        }
    }

    #[test]
    fn debug_output_hides_the_secret() {
        let user = user("ann", "hunter2");
        let printed = format!("{user:#?}");
        assert!(printed.contains("ann") && !printed.contains("hunter2"), "{printed}");
    }
}
