//! The driver suite on every driver.
#![cfg(target_os = "linux")]

mod poll {
    use stilling_engine::driver::poll::Poll;
    use stilling_simulation::suite::system::SystemRig;

    stilling_simulation::contract_tests!(SystemRig<Poll>);
    stilling_simulation::system_contract_tests!(Poll);
}

/// Direct descriptors pass the whole suite.
mod uring_direct {
    use stilling_simulation::suite::system::{DirectUring, SystemRig};

    stilling_simulation::contract_tests!(SystemRig<DirectUring>);
    stilling_simulation::system_contract_tests!(DirectUring);
}

mod uring {
    use stilling_engine::driver::uring::Uring;
    use stilling_simulation::suite::system::SystemRig;

    stilling_simulation::contract_tests!(SystemRig<Uring>);
    stilling_simulation::system_contract_tests!(Uring);
}
