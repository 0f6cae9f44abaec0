//! The `sim` driver keeps every promise of the suite that a driver without threads and real time can be asked for.

stilling_simulation::every_promise!(stilling_simulation::SimRig);
