//! Every driver keeps every promise of the suite.
#![cfg(target_os = "linux")]

mod poll {
    use stilling_engine::driver::poll::Poll;
    use stilling_simulation::suite::system::System;

    stilling_simulation::every_promise!(System<Poll>);
    stilling_simulation::every_system_promise!(Poll);
}

/// Nothing is left out: direct descriptors keep every promise.
mod uring_direct {
    use stilling_simulation::suite::system::{DirectUring, System};

    stilling_simulation::every_promise!(System<DirectUring>);
    stilling_simulation::every_system_promise!(DirectUring);
}

mod uring {
    use stilling_engine::driver::uring::Uring;
    use stilling_simulation::suite::system::System;

    stilling_simulation::every_promise!(System<Uring>);
    stilling_simulation::every_system_promise!(Uring);
}
