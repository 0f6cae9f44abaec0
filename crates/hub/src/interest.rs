//! Which filters take a subject: a tree of tokens.
//!
//! ```text
//!   root ─ orders ─┬─ eu ─ new      [3]        orders.eu.new
//!                  ├─ *  ─ new      [7]        orders.*.new
//!                  └─ >             [1, 2]     orders.>
//! ```
//!
//! A subject follows its own token and `*` at each step, and collects every `>` that it passes. That visits at most as many
//! places as there are filters with such beginnings.

use std::collections::HashMap;

use stilling_wire::nats::{Filter, Tokens};

use crate::key::HashKey;

/// Where a filter's owner is listed; what the numbers mean is the caller's.
type Id = u32;

/// The tree.
#[derive(Debug)]
pub struct Interest {
    key: HashKey,
    nodes: Vec<Node>,
    /// Nodes that are in no tree.
    free: Vec<u32>,
}

/// Places of nodes that stay when no filter is left.
const PLACES_KEPT: usize = 1024;

/// The root, which is nobody's child.
const ROOT: u32 = 0;

#[derive(Debug)]
struct Node {
    children: HashMap<Box<[u8]>, u32, HashKey>,
    /// The child for any one token; the root if there is none.
    any: u32,
    /// Whose filter ends here.
    here: Vec<Id>,
    /// Whose filter has `>` here.
    rest: Vec<Id>,
}

impl Node {
    fn new(key: HashKey) -> Node {
        Node { children: HashMap::with_hasher(key), any: ROOT, here: Vec::new(), rest: Vec::new() }
    }

    fn is_empty(&self) -> bool {
        self.children.is_empty() && self.any == ROOT && self.here.is_empty() && self.rest.is_empty()
    }
}

impl Interest {
    /// A tree without filters.
    #[must_use]
    pub fn new(key: HashKey) -> Interest {
        Interest { key, nodes: vec![Node::new(key)], free: Vec::new() }
    }

    /// Adds a filter of `id`.
    pub fn insert(&mut self, filter: Filter<'_>, id: Id) {
        let mut at = ROOT;
        for token in filter.tokens() {
            if token == b">" {
                self.nodes[at as usize].rest.push(id);
                return;
            }
            at = match self.child(at, token) {
                Some(child) => child,
                None => self.add_child(at, token),
            };
        }
        self.nodes[at as usize].here.push(id);
    }

    /// Removes a filter of `id`. Returns whether it was there.
    pub fn remove(&mut self, filter: Filter<'_>, id: Id) -> bool {
        self.remove_below(ROOT, filter.tokens(), id)
    }

    /// Appends to `into` whoever has a filter that takes the checked `subject`, once for each such filter.
    #[inline]
    pub fn find(&self, subject: &[u8], into: &mut Vec<Id>) {
        self.find_below(ROOT, subject, into);
    }

    fn find_below(&self, at: u32, rest: &[u8], into: &mut Vec<Id>) {
        let node = &self.nodes[at as usize];
        into.extend_from_slice(&node.rest);
        // Tokens are a few bytes long; a search by words would cost more to set up.
        let (token, behind) = match rest.iter().position(|&byte| byte == b'.') {
            Some(dot) => (&rest[..dot], Some(&rest[dot + 1..])),
            None => (rest, None),
        };
        let literal = if node.children.is_empty() { None } else { node.children.get(token).copied() };
        let any = (node.any != ROOT).then_some(node.any);
        for child in literal.into_iter().chain(any) {
            match behind {
                Some(behind) => self.find_below(child, behind, into),
                None => into.extend_from_slice(&self.nodes[child as usize].here),
            }
        }
    }

    fn child(&self, at: u32, token: &[u8]) -> Option<u32> {
        let node = &self.nodes[at as usize];
        if token == b"*" {
            return (node.any != ROOT).then_some(node.any);
        }
        node.children.get(token).copied()
    }

    fn add_child(&mut self, at: u32, token: &[u8]) -> u32 {
        let child = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(Node::new(self.key));
            (self.nodes.len() - 1) as u32
        });
        let node = &mut self.nodes[at as usize];
        if token == b"*" {
            node.any = child;
        } else {
            node.children.insert(token.into(), child);
        }
        child
    }

    fn remove_below(&mut self, at: u32, mut tokens: Tokens<'_>, id: Id) -> bool {
        let forget = |list: &mut Vec<Id>| {
            let found = list.iter().position(|&other| other == id);
            // The others keep their order, in which they are served.
            found.map(|found| list.remove(found)).is_some()
        };
        let node = &mut self.nodes[at as usize];
        match tokens.next() {
            None => forget(&mut node.here),
            Some(b">") => forget(&mut node.rest),
            Some(token) => {
                let Some(child) = self.child(at, token) else { return false };
                let was_there = self.remove_below(child, tokens, id);
                if self.nodes[child as usize].is_empty() {
                    let node = &mut self.nodes[at as usize];
                    if token == b"*" {
                        node.any = ROOT;
                    } else {
                        node.children.remove(token);
                    }
                    // Its place waits for the next one without the memory that it had.
                    self.nodes[child as usize] = Node::new(self.key);
                    self.free.push(child);
                    if self.free.len() + 1 == self.nodes.len() {
                        self.nodes.truncate(1);
                        self.nodes.shrink_to(PLACES_KEPT);
                        self.free = Vec::new();
                    }
                }
                was_there
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use stilling_wire::nats::{Subject, SubjectLimits};

    use super::*;

    const LIMITS: SubjectLimits = SubjectLimits { size_max: 1024, tokens_max: 64 };

    fn filter(text: &str) -> Filter<'_> {
        Filter::parse(text.as_bytes(), &LIMITS).expect("a filter")
    }

    fn found(interest: &Interest, subject: &str) -> Vec<Id> {
        let mut into = Vec::new();
        interest.find(subject.as_bytes(), &mut into);
        into.sort_unstable();
        into
    }

    #[test]
    fn a_subject_finds_the_filters_that_take_it() {
        let mut interest = Interest::new(HashKey(1, 2));
        let filters = ["orders.eu.new", "orders.*.new", "orders.>", ">", "orders.eu", "*.*"];
        for (id, text) in filters.iter().enumerate() {
            interest.insert(filter(text), id as Id);
        }
        assert_eq!(found(&interest, "orders.eu.new"), [0, 1, 2, 3]);
        assert_eq!(found(&interest, "orders.us.new"), [1, 2, 3]);
        assert_eq!(found(&interest, "orders.eu"), [2, 3, 4, 5]);
        assert_eq!(found(&interest, "orders"), [3]);
        for (id, text) in filters.iter().enumerate() {
            assert!(interest.remove(filter(text), id as Id));
            assert!(!interest.remove(filter(text), id as Id));
        }
        assert!(interest.nodes[0].is_empty());
        assert_eq!((interest.free.len(), interest.nodes.len()), (0, 1), "nothing is left behind");
    }

    fn token() -> impl Strategy<Value = &'static str> {
        prop_oneof![Just("a"), Just("b"), Just("c"), Just("*")]
    }

    fn any_filter() -> impl Strategy<Value = String> {
        (prop::collection::vec(token(), 1..5), any::<bool>()).prop_map(|(tokens, tail)| {
            let text = tokens.join(".");
            if tail { format!("{text}.>") } else { text }
        })
    }

    proptest! {
        /// The tree says of every subject what asking each filter says, whatever came and went before.
        #[test]
        fn the_tree_agrees_with_its_filters(
            steps in prop::collection::vec((any_filter(), any::<bool>()), 1..60),
            subjects in prop::collection::vec(prop::collection::vec(prop_oneof![Just("a"), Just("b"), Just("c")], 1..6), 1..10),
        ) {
            let mut interest = Interest::new(HashKey(3, 4));
            let mut kept: Vec<(String, Id)> = Vec::new();
            for (id, (text, goes)) in steps.into_iter().enumerate() {
                if goes && !kept.is_empty() {
                    let (text, id) = kept.swap_remove(id % kept.len());
                    prop_assert!(interest.remove(filter(&text), id));
                } else {
                    interest.insert(filter(&text), id as Id);
                    kept.push((text, id as Id));
                }
            }
            for tokens in subjects {
                let text = tokens.join(".");
                let subject = Subject::parse(text.as_bytes(), &LIMITS).expect("a subject");
                let mut expected: Vec<Id> =
                    kept.iter().filter(|(text, _)| filter(text).takes(subject)).map(|(_, id)| *id).collect();
                expected.sort_unstable();
                prop_assert_eq!(found(&interest, &text), expected);
            }
        }
    }
}
