//! Users: authentication and permissions.

use stilling_wire::nats::{Connect, Filter, SubjectLimits};

use crate::settings::{Credential, UserConfig};

/// All users. Empty: every connection may do everything.
#[derive(Clone, Debug, Default)]
pub(crate) struct Users(Vec<UserConfig>);

/// The permissions of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserAccess {
    /// None: it has not authenticated.
    Unauthenticated,
    Everything,
    /// Those of the user with that index.
    User(u16),
}

impl Users {
    pub(crate) fn new(users: Vec<UserConfig>) -> Users {
        Users(users)
    }

    /// The permissions of a connection before it sends credentials.
    pub(crate) fn initial_access(&self) -> UserAccess {
        if self.0.is_empty() { UserAccess::Everything } else { UserAccess::Unauthenticated }
    }

    pub(crate) fn requires_credentials(&self) -> bool {
        !self.0.is_empty()
    }

    /// The permissions for the credentials in a CONNECT.
    pub(crate) fn authenticate(&self, connect: &Connect<'_>) -> UserAccess {
        match (&connect.user, &connect.auth_token) {
            (Some(name), _) => self.find(Some(name), connect.pass.as_deref().unwrap_or("")),
            (None, Some(token)) => self.find(None, token),
            (None, None) => self.initial_access(),
        }
    }

    /// The permissions of the user with this name and password, or, without a name, with this token.
    pub(crate) fn find(&self, name: Option<&str>, secret: &str) -> UserAccess {
        if self.0.is_empty() {
            return UserAccess::Everything;
        }
        let mut found = UserAccess::Unauthenticated;
        for (number, user) in self.0.iter().enumerate() {
            // Compares with all users, so that the time does not reveal which users exist.
            let is_it = match (&user.credential, name) {
                (Credential::Password(password), Some(name)) => {
                    password.matches(secret.as_bytes()) & (user.name == name)
                }
                (Credential::Token(token), None) => token.matches(secret.as_bytes()),
                _ => false,
            };
            if is_it {
                let may_all = |list: &[String]| list.iter().any(|filter| filter == ">");
                found = match may_all(&user.publish) && may_all(&user.subscribe) {
                    true => UserAccess::Everything,
                    false => UserAccess::User(u16::try_from(number).unwrap_or(u16::MAX)),
                };
            }
        }
        found
    }

    /// Whether a connection may publish to a subject. The subject of a consumer request may end with a filter; then
    /// every subject that the filter matches must be allowed.
    pub(crate) fn may_publish(&self, access: UserAccess, subject: &[u8]) -> bool {
        self.may(access, |user| &user.publish, |allowed| is_allowed(subject, allowed))
    }

    pub(crate) fn may_subscribe(&self, access: UserAccess, filter: &[u8]) -> bool {
        self.may(access, |user| &user.subscribe, |allowed| is_allowed(filter, allowed))
    }

    fn may(
        &self,
        access: UserAccess,
        list: impl Fn(&UserConfig) -> &[String],
        allows: impl Fn(Filter<'_>) -> bool,
    ) -> bool {
        match access {
            UserAccess::Everything => true,
            UserAccess::Unauthenticated => false,
            UserAccess::User(number) => self.0.get(usize::from(number)).is_some_and(|user| {
                list(user).iter().any(|filter| Filter::parse(filter.as_bytes(), &WIDE).is_ok_and(&allows))
            }),
        }
    }
}

/// Subjects and filters from a codec are within these limits.
const WIDE: SubjectLimits = SubjectLimits { size_max: u16::MAX, tokens_max: u16::MAX };

fn is_allowed(filter: &[u8], allowed: Filter<'_>) -> bool {
    Filter::parse(filter, &WIDE).is_ok_and(|filter| is_within(filter, allowed))
}

/// Whether `allowed` matches every subject that `filter` matches.
fn is_within(filter: Filter<'_>, allowed: Filter<'_>) -> bool {
    let mut tokens = filter.tokens();
    for allowed in allowed.tokens() {
        match (allowed, tokens.next()) {
            (_, None) => return false,
            (b">", Some(_)) => return true,
            (b"*", Some(token)) if token != b">" => {}
            (allowed, Some(token)) if allowed == token => {}
            _ => return false,
        }
    }
    tokens.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Secret;

    fn users() -> Users {
        let password = |text| Credential::Password(Secret::new(text));
        let root = UserConfig::new("root", password("all"));
        let gauge = UserConfig::new("gauge", Credential::Token(Secret::new("t")));
        let sensor = UserConfig {
            publish: vec!["sensors.>".into()],
            subscribe: vec!["_INBOX.>".into(), "sensors.*.state".into()],
            ..UserConfig::new("sensor", password("s"))
        };
        Users::new(vec![root, sensor, gauge])
    }

    #[test]
    fn only_the_right_secret_is_authenticated() {
        let users = users();
        assert_eq!(users.find(Some("root"), "all"), UserAccess::Everything);
        assert_eq!(users.find(Some("sensor"), "s"), UserAccess::User(1));
        assert_eq!(users.find(None, "t"), UserAccess::Everything);
        for (name, secret) in
            [("root", "al"), ("root", "all "), ("root", ""), ("sensor", "all"), ("gauge", "t")]
        {
            assert_eq!(users.find(Some(name), secret), UserAccess::Unauthenticated, "{name} {secret}");
        }
        assert_eq!(users.find(None, "all"), UserAccess::Unauthenticated, "a password is no token");
        assert_eq!(users.authenticate(&Connect::default()), UserAccess::Unauthenticated);
        assert_eq!(Users::default().find(Some("anybody"), ""), UserAccess::Everything);
    }

    #[test]
    fn a_user_may_do_what_is_within_the_lists() {
        let users = users();
        let access = UserAccess::User(1);
        assert!(users.may_publish(access, b"sensors.a.b"));
        assert!(!users.may_publish(access, b"orders.a"));
        for (filter, expected) in [
            ("_INBOX.a.*", true),
            ("_INBOX.>", true),
            ("sensors.*.state", true),
            ("sensors.a.state", true),
            ("sensors.>", false),
            ("sensors.*.*", false),
            (">", false),
            ("*.a.state", false),
        ] {
            assert_eq!(users.may_subscribe(access, filter.as_bytes()), expected, "{filter}");
        }
        assert!(!users.may_publish(UserAccess::Unauthenticated, b"sensors.a"));
    }

    /// The only subject with wildcards for publishing: a request for a consumer, with its filter.
    #[test]
    fn a_user_may_request_consumers_with_filters_within_the_lists() {
        let may = |allowed: &str, asked: &str| {
            let user = UserConfig {
                publish: vec![allowed.to_owned()],
                ..UserConfig::new("reader", Credential::Password(Secret::new("s")))
            };
            let subject = format!("$JS.API.CONSUMER.CREATE.s.name.{asked}");
            Users::new(vec![user]).may_publish(UserAccess::User(0), subject.as_bytes())
        };
        for (allowed, asked, expected) in [
            ("$JS.API.>", "events.>", true),
            ("$JS.API.>", "events.*.a", true),
            ("$JS.API.>", "events.a", true),
            ("$JS.API.CONSUMER.CREATE.s.*.events.>", "events.>", true),
            ("$JS.API.CONSUMER.CREATE.s.*.events.>", "events.*", true),
            ("$JS.API.CONSUMER.CREATE.s.*.events.*", "events.>", false),
            ("$JS.API.CONSUMER.CREATE.s.*.events.a", "events.*", false),
            ("$JS.API.CONSUMER.CREATE.s.*.events.a", "events.a", true),
            ("$JS.API.CONSUMER.CREATE.s.*.events.>", "orders.>", false),
            ("$JS.API.CONSUMER.CREATE.s.*.events.>", ">", false),
            ("events.>", "events.>", false),
        ] {
            assert_eq!(may(allowed, asked), expected, "{allowed} {asked}");
        }
    }
}
