//! Gates by name, as streams are configured with them.

use std::fmt;
use std::sync::Arc;

use super::{AuctionGate, Gate, StatelessGate, Verdict};

type MakeGate = Arc<dyn Fn() -> Box<dyn Gate> + Send + Sync>;

/// The gates that streams may have, by name. Initially those that are built in: `accept-all` and `auction`.
#[derive(Clone)]
pub struct GateRegistry {
    built_in: Vec<(String, MakeGate)>,
    registered: Vec<(String, MakeGate)>,
}

impl Default for GateRegistry {
    fn default() -> GateRegistry {
        let accept_all: MakeGate = Arc::new(|| Box::new(StatelessGate(|_, _| Verdict::Accept)));
        let auction: MakeGate = Arc::new(|| Box::new(AuctionGate::new()));
        GateRegistry {
            built_in: vec![("accept-all".to_owned(), accept_all), ("auction".to_owned(), auction)],
            registered: Vec::new(),
        }
    }
}

impl GateRegistry {
    /// Registers a gate; replaces one of the same name. `make` creates its initial state, once for each stream with this
    /// gate and each opening of it.
    pub fn register<G: Gate + 'static>(
        &mut self,
        name: impl Into<String>,
        make: impl Fn() -> G + Send + Sync + 'static,
    ) {
        let name = name.into();
        self.registered.retain(|(other, _)| *other != name);
        self.registered.push((name, Arc::new(move || Box::new(make()))));
    }

    /// Returns whether there is a gate of this name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.names().any(|other| other == name)
    }

    /// Returns whether the gate of this name is one that is built in: its calls take microseconds at most.
    #[must_use]
    pub fn is_built_in(&self, name: &str) -> bool {
        let is_replaced = self.registered.iter().any(|(other, _)| other == name);
        !is_replaced && self.built_in.iter().any(|(other, _)| other == name)
    }

    /// Returns the names of all gates.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.registered.iter().chain(&self.built_in).map(|(name, _)| name.as_str())
    }

    /// Creates a gate in its initial state.
    pub(super) fn make(&self, name: &str) -> Option<Box<dyn Gate>> {
        let mut all = self.registered.iter().chain(&self.built_in);
        all.find(|(other, _)| other == name).map(|(_, make)| make())
    }
}

impl fmt::Debug for GateRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registered_gate_replaces_one_of_the_same_name() {
        let mut gates = GateRegistry::default();
        assert!(gates.is_built_in("auction") && gates.contains("accept-all"));
        assert!(gates.make("mine").is_none() && !gates.contains("mine"));
        for name in ["mine", "auction", "mine"] {
            gates.register(name, || StatelessGate(|_, _| Verdict::reject("no")));
        }
        assert!(!gates.is_built_in("auction") && gates.is_built_in("accept-all"));
        assert!(!gates.make("auction").expect("it is registered").has_state());
        assert_eq!(gates.names().filter(|name| *name == "mine").count(), 1);
    }
}
