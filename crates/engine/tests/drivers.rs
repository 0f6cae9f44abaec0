//! The driver suite on every driver.
#![cfg(target_os = "linux")]

mod poll {
    use stilling_engine::driver::poll::Poll;
    use stilling_simulation::suite::system::SystemRig;

    stilling_simulation::every_promise!(SystemRig<Poll>);
    stilling_simulation::every_system_promise!(Poll);
}

/// Direct descriptors pass the whole suite.
mod uring_direct {
    use stilling_simulation::suite::system::{DirectUring, SystemRig};

    stilling_simulation::every_promise!(SystemRig<DirectUring>);
    stilling_simulation::every_system_promise!(DirectUring);
}

mod uring {
    use stilling_engine::driver::uring::Uring;
    use stilling_simulation::suite::system::SystemRig;

    stilling_simulation::every_promise!(SystemRig<Uring>);
    stilling_simulation::every_system_promise!(Uring);
}
