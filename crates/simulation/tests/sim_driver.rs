//! The `sim` driver passes all contract tests that need neither threads nor real time.

stilling_simulation::every_promise!(stilling_simulation::SimRig);
