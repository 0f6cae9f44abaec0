//! Every driver keeps every promise of the suite.
#![cfg(target_os = "linux")]

mod poll {
    use stilling_engine::driver::poll::Poll;
    use stilling_simulation::suite::system::System;

    stilling_simulation::every_promise!(System<Poll>);
    stilling_simulation::every_system_promise!(Poll);
}

mod uring {
    use stilling_engine::driver::uring::Uring;
    use stilling_simulation::suite::system::System;

    stilling_simulation::every_promise!(System<Uring>);
    stilling_simulation::every_system_promise!(Uring);
}
