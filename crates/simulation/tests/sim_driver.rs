//! The `sim` driver passes all contract tests that need neither threads nor real time.

stilling_simulation::contract_tests!(stilling_simulation::SimRig);
