//! The paths of each pool of worker processes.
//!
//! Paths are compared byte by byte as the client sent them, without decoding: patterns distribute requests, they do not
//! protect anything.

use std::fmt;
use std::str::FromStr;

use super::request_table::PoolIndex;

/// Paths whose requests a pool answers: `/path/*` for all below, `/path` for exactly this one, `/*` for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPattern {
    /// Every path.
    Everything,
    /// Paths with this prefix, which begins and ends with `/`.
    Below(String),
    /// This path only.
    Exactly(String),
}

impl PathPattern {
    fn matches(&self, path: &[u8]) -> bool {
        match self {
            PathPattern::Everything => true,
            PathPattern::Below(prefix) => path.starts_with(prefix.as_bytes()),
            PathPattern::Exactly(exact) => path == exact.as_bytes(),
        }
    }

    /// Longer patterns have precedence; of two with the same text, the exact one.
    fn precedence(&self) -> (usize, bool) {
        match self {
            PathPattern::Everything => (0, false),
            PathPattern::Below(prefix) => (prefix.len(), false),
            PathPattern::Exactly(exact) => (exact.len(), true),
        }
    }

    /// Whether `other` matches all of its paths.
    #[must_use]
    pub fn is_within(&self, other: &PathPattern) -> bool {
        match (self, other) {
            (_, PathPattern::Everything) => true,
            (PathPattern::Everything, _) | (PathPattern::Below(_), PathPattern::Exactly(_)) => false,
            (PathPattern::Below(path) | PathPattern::Exactly(path), other) => other.matches(path.as_bytes()),
        }
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathPattern::Everything => f.write_str("/*"),
            PathPattern::Below(prefix) => write!(f, "{prefix}*"),
            PathPattern::Exactly(exact) => f.write_str(exact),
        }
    }
}

impl FromStr for PathPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<PathPattern, String> {
        let is_path = |path: &str| {
            path.starts_with('/')
                && path.bytes().all(|byte| byte.is_ascii_graphic() && !b"*?#".contains(&byte))
        };
        match text.strip_suffix("/*") {
            Some("") => Ok(PathPattern::Everything),
            Some(prefix) if is_path(prefix) => Ok(PathPattern::Below(format!("{prefix}/"))),
            None if is_path(text) => Ok(PathPattern::Exactly(text.to_owned())),
            _ => Err(format!("`{text}` is not a path, such as /shop/* or /shop")),
        }
    }
}

/// The patterns of all pools, the one with the highest precedence first.
#[derive(Clone, Debug, Default)]
pub struct AppRoutes(Vec<(PathPattern, PoolIndex)>);

impl AppRoutes {
    /// The routes to pools with these patterns, in the order of the pools.
    pub(crate) fn new<'a>(patterns: impl Iterator<Item = &'a PathPattern>) -> AppRoutes {
        let mut routes: Vec<_> = patterns.cloned().zip(PoolIndex::all()).collect();
        routes.sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.precedence()));
        AppRoutes(routes)
    }

    /// Whether there is no pool.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The pool for a path.
    pub(crate) fn find(&self, path: &[u8]) -> Option<PoolIndex> {
        self.0.iter().find(|(pattern, _)| pattern.matches(path)).map(|(_, pool)| *pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> PathPattern {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn the_longest_pattern_has_precedence_in_any_order() {
        let mut patterns = ["/*", "/shop/*", "/shop/cart/*", "/shop/cart", "/shop/cart/"].map(pattern);
        for _ in 0..patterns.len() {
            patterns.rotate_left(1);
            let routes = AppRoutes::new(patterns.iter());
            let found = |path: &str| {
                routes.find(path.as_bytes()).map(|PoolIndex(at)| patterns[usize::from(at)].to_string())
            };
            for (path, expected) in [
                ("/", "/*"),
                ("*", "/*"),
                ("/shop", "/*"),
                ("/shops/x", "/*"),
                ("/shop/", "/shop/*"),
                ("/shop/cart", "/shop/cart"),
                ("/shop/cart/", "/shop/cart/"),
                ("/shop/cart/1", "/shop/cart/*"),
                ("/shop/carts", "/shop/*"),
            ] {
                assert_eq!(found(path).as_deref(), Some(expected), "{path}");
            }
        }
        let routes = AppRoutes::new([pattern("/shop/*")].iter());
        assert_eq!(routes.find(b"/other"), None);
    }

    #[test]
    fn a_pattern_that_is_no_path_is_refused() {
        for text in ["", "*", "shop/*", "/shop*", "/a/*/b", "/a/*/*", "/a b", "/a?b", "/a#b", "/\u{e9}"] {
            let refused = text.parse::<PathPattern>().expect_err(text);
            assert!(refused.contains("is not a path"), "{refused}");
        }
    }

    #[test]
    fn a_pattern_is_within_those_that_match_all_of_its_paths() {
        let is_within = |one: &str, other: &str| pattern(one).is_within(&pattern(other));
        for (one, other) in [
            ("/a/*", "/*"),
            ("/*", "/*"),
            ("/a", "/a"),
            ("/a/b", "/a/*"),
            ("/a/b/*", "/a/*"),
            ("/a/*", "/a/*"),
        ] {
            assert!(is_within(one, other), "{one} in {other}");
        }
        for (one, other) in [("/*", "/a/*"), ("/a", "/a/*"), ("/a/*", "/a"), ("/ab/*", "/a/*"), ("/a/", "/a")]
        {
            assert!(!is_within(one, other), "{one} in {other}");
        }
    }
}
