//! The filters that match a subject: a tree of tokens.
//!
//! ```text
//!   root ─ orders ─┬─ eu ─ new      [3]        orders.eu.new
//!                  ├─ *  ─ new      [7]        orders.*.new
//!                  └─ >             [1, 2]     orders.>
//! ```
//!
//! A lookup follows the subject's token and `*` at each step, and collects every `>` on the way. It visits at most one
//! node per distinct beginning of a filter that matches the subject's beginning. Inserting or removing a filter visits
//! one node per token, regardless of the number of equal filters.

use std::collections::HashMap;

use stilling_wire::nats::{Filter, Tokens};

use crate::hash_key::HashKey;
use crate::short_bytes::ShortBytes;

/// Number of a filter's owner; its meaning is the caller's.
type FilterOwner = u32;

/// A set of filters with their owners, indexed by token.
#[derive(Debug)]
pub struct FilterTree {
    key: HashKey,
    nodes: Vec<TreeNode>,
    free: Vec<u32>,
    positions: Vec<u32>,
    free_entries: Vec<u32>,
    /// One plus the number of insertions and removals.
    version: u64,
}

/// Identifies an inserted filter for its removal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilterHandle(u32);

/// Nodes and entries for which memory is kept when the tree is empty.
const NODES_CAPACITY_MAX: usize = 1024;

/// The root. It is no node's child, so it also stands for "no child".
const ROOT: u32 = 0;

#[derive(Debug)]
struct TreeNode {
    children: HashMap<ShortBytes, u32, HashKey>,
    /// Child for `*`; `ROOT` if there is none.
    any: u32,
    here: FilterList,
    /// Filters with `>` here.
    rest: FilterList,
}

#[derive(Clone, Copy, Debug)]
struct FilterEntry {
    id: FilterOwner,
    entry: u32,
}

/// Filters of a node. Most nodes have one, stored inline to save a pointer per lookup.
#[derive(Debug)]
enum FilterList {
    None,
    One(FilterEntry),
    Many(Vec<FilterEntry>),
}

impl FilterList {
    fn as_slice(&self) -> &[FilterEntry] {
        match self {
            FilterList::None => &[],
            FilterList::One(listed) => std::slice::from_ref(listed),
            FilterList::Many(all) => all,
        }
    }

    fn push(&mut self, listed: FilterEntry) {
        match self {
            FilterList::None => *self = FilterList::One(listed),
            FilterList::One(first) => *self = FilterList::Many(vec![*first, listed]),
            FilterList::Many(all) => all.push(listed),
        }
    }

    fn swap_remove(&mut self, position: usize) {
        match self {
            FilterList::Many(all) if all.len() > 1 => {
                all.swap_remove(position);
            }
            FilterList::None | FilterList::One(_) | FilterList::Many(_) => *self = FilterList::None,
        }
    }
}

impl TreeNode {
    fn new(key: HashKey) -> TreeNode {
        TreeNode {
            children: HashMap::with_hasher(key),
            any: ROOT,
            here: FilterList::None,
            rest: FilterList::None,
        }
    }

    fn is_empty(&self) -> bool {
        self.children.is_empty()
            && self.any == ROOT
            && self.here.as_slice().is_empty()
            && self.rest.as_slice().is_empty()
    }
}

impl FilterTree {
    /// Creates a tree without filters.
    #[must_use]
    pub fn new(key: HashKey) -> FilterTree {
        FilterTree {
            key,
            nodes: vec![TreeNode::new(key)],
            free: Vec::new(),
            positions: Vec::new(),
            free_entries: Vec::new(),
            version: 1,
        }
    }

    /// Returns a number that changes with every insertion and removal; never 0.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Inserts a filter of owner `id`.
    pub fn insert(&mut self, filter: Filter<'_>, id: FilterOwner) -> FilterHandle {
        self.version += 1;
        let mut at = ROOT;
        for token in filter.tokens() {
            if token == b">" {
                return self.list(at, true, id);
            }
            at = match self.child(at, token) {
                Some(child) => child,
                None => self.add_child(at, token),
            };
        }
        self.list(at, false, id)
    }

    fn list(&mut self, at: u32, is_rest: bool, id: FilterOwner) -> FilterHandle {
        let node = &mut self.nodes[at as usize];
        let list = if is_rest { &mut node.rest } else { &mut node.here };
        let position = list.as_slice().len() as u32;
        let entry = match self.free_entries.pop() {
            Some(entry) => {
                self.positions[entry as usize] = position;
                entry
            }
            None => {
                self.positions.push(position);
                (self.positions.len() - 1) as u32
            }
        };
        list.push(FilterEntry { id, entry });
        FilterHandle(entry)
    }

    /// Removes `filter`, inserted as `entry`. Returns whether it was present.
    pub fn remove(&mut self, filter: Filter<'_>, entry: FilterHandle) -> bool {
        self.version += 1;
        let was_there = self.remove_below(ROOT, filter.tokens(), entry.0);
        if was_there {
            self.free_entries.push(entry.0);
            if self.free_entries.len() == self.positions.len() {
                self.free_entries = Vec::new();
                self.positions.clear();
                self.positions.shrink_to(NODES_CAPACITY_MAX);
            }
        }
        was_there
    }

    /// Appends to `into` the owners of all filters that match the checked `subject`, once per filter.
    #[inline]
    pub fn find(&self, subject: &[u8], into: &mut Vec<FilterOwner>) {
        self.find_below(ROOT, subject, into);
    }

    /// As [`find`](Self::find); returns whether the result holds for every subject that differs only in its last token.
    pub(crate) fn find_for_all(&self, subject: &[u8], into: &mut Vec<FilterOwner>) -> bool {
        self.find_below(ROOT, subject, into)
    }

    fn find_below(&self, at: u32, rest: &[u8], into: &mut Vec<FilterOwner>) -> bool {
        let node = &self.nodes[at as usize];
        into.extend(node.rest.as_slice().iter().map(|listed| listed.id));
        // Tokens are a few bytes long: setting up a wordwise search would cost more.
        let (token, behind) = match rest.iter().position(|&byte| byte == b'.') {
            Some(dot) => (&rest[..dot], Some(&rest[dot + 1..])),
            None => (rest, None),
        };
        let literal = if node.children.is_empty() { None } else { node.children.get(token).copied() };
        let any = (node.any != ROOT).then_some(node.any);
        let mut is_for_all = behind.is_some() || node.children.is_empty();
        for child in literal.into_iter().chain(any) {
            match behind {
                Some(behind) => is_for_all &= self.find_below(child, behind, into),
                None => {
                    into.extend(self.nodes[child as usize].here.as_slice().iter().map(|listed| listed.id));
                }
            }
        }
        is_for_all
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
            self.nodes.push(TreeNode::new(self.key));
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

    /// Removes an entry from a node's list; the list's last entry takes its position.
    fn unlist(&mut self, at: u32, is_rest: bool, entry: u32) -> bool {
        let node = &mut self.nodes[at as usize];
        let list = if is_rest { &mut node.rest } else { &mut node.here };
        let Some(&position) = self.positions.get(entry as usize) else { return false };
        if list.as_slice().get(position as usize).is_none_or(|listed| listed.entry != entry) {
            return false;
        }
        list.swap_remove(position as usize);
        if let Some(moved) = list.as_slice().get(position as usize) {
            self.positions[moved.entry as usize] = position;
        }
        true
    }

    fn remove_below(&mut self, at: u32, mut tokens: Tokens<'_>, entry: u32) -> bool {
        match tokens.next() {
            None => self.unlist(at, false, entry),
            Some(b">") => self.unlist(at, true, entry),
            Some(token) => {
                let Some(child) = self.child(at, token) else { return false };
                let was_there = self.remove_below(child, tokens, entry);
                if self.nodes[child as usize].is_empty() {
                    let node = &mut self.nodes[at as usize];
                    if token == b"*" {
                        node.any = ROOT;
                    } else {
                        node.children.remove(token);
                    }
                    // The slot is reused without its former memory.
                    self.nodes[child as usize] = TreeNode::new(self.key);
                    self.free.push(child);
                    if self.free.len() + 1 == self.nodes.len() {
                        self.nodes.truncate(1);
                        self.nodes.shrink_to(NODES_CAPACITY_MAX);
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

    fn found(interest: &FilterTree, subject: &str) -> Vec<FilterOwner> {
        let mut into = Vec::new();
        interest.find(subject.as_bytes(), &mut into);
        into.sort_unstable();
        into
    }

    #[test]
    fn a_subject_finds_the_filters_that_take_it() {
        let mut interest = FilterTree::new(HashKey(1, 2));
        let filters = ["orders.eu.new", "orders.*.new", "orders.>", ">", "orders.eu", "*.*"];
        let entries: Vec<FilterHandle> =
            (0..).zip(filters).map(|(id, text)| interest.insert(filter(text), id)).collect();
        assert_eq!(found(&interest, "orders.eu.new"), [0, 1, 2, 3]);
        assert_eq!(found(&interest, "orders.us.new"), [1, 2, 3]);
        assert_eq!(found(&interest, "orders.eu"), [2, 3, 4, 5]);
        assert_eq!(found(&interest, "orders"), [3]);
        for (entry, text) in entries.into_iter().zip(filters) {
            assert!(interest.remove(filter(text), entry));
            assert!(!interest.remove(filter(text), entry));
        }
        assert!(interest.nodes[0].is_empty());
        assert_eq!((interest.free.len(), interest.nodes.len()), (0, 1), "nothing is left behind");
        assert_eq!((interest.free_entries.len(), interest.positions.len()), (0, 0));
    }

    #[test]
    fn it_is_known_whether_the_last_token_makes_a_difference() {
        let mut interest = FilterTree::new(HashKey(1, 2));
        for (id, text) in (0..).zip(["inbox.a.*", "inbox.>", "inbox.b.*", "*.b.x"]) {
            let version = interest.version();
            interest.insert(filter(text), id);
            assert_ne!(interest.version(), version);
        }
        for (subject, expected, is_for_all) in [
            ("inbox.a.1", &[0_u32, 1][..], true),
            ("inbox.b.1", &[1, 2][..], false),
            ("inbox.c.1", &[1][..], true),
            ("inbox.c", &[1][..], false),
            ("other.a.1", &[][..], true),
        ] {
            let mut into = Vec::new();
            assert_eq!(interest.find_for_all(subject.as_bytes(), &mut into), is_for_all, "{subject}");
            into.sort_unstable();
            assert_eq!(into, expected, "{subject}");
        }
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
        /// The tree gives the same answers as matching each filter, after any sequence of insertions and removals.
        #[test]
        fn the_tree_agrees_with_its_filters(
            steps in prop::collection::vec((any_filter(), any::<bool>()), 1..60),
            subjects in prop::collection::vec(prop::collection::vec(prop_oneof![Just("a"), Just("b"), Just("c")], 1..6), 1..10),
        ) {
            let mut interest = FilterTree::new(HashKey(3, 4));
            let mut kept: Vec<(String, FilterOwner, FilterHandle)> = Vec::new();
            for (id, (text, goes)) in steps.into_iter().enumerate() {
                if goes && !kept.is_empty() {
                    let (text, _, entry) = kept.swap_remove(id % kept.len());
                    prop_assert!(interest.remove(filter(&text), entry));
                } else {
                    let entry = interest.insert(filter(&text), id as FilterOwner);
                    kept.push((text, id as FilterOwner, entry));
                }
            }
            for tokens in subjects {
                let text = tokens.join(".");
                let subject = Subject::parse(text.as_bytes(), &LIMITS).expect("a subject");
                let mut expected: Vec<FilterOwner> =
                    kept.iter().filter(|(text, ..)| filter(text).matches(subject)).map(|(_, id, _)| *id).collect();
                expected.sort_unstable();
                prop_assert_eq!(found(&interest, &text), expected);
            }
        }
    }
}
