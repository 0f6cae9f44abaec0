//! A thread that waits for the shards of all interpreter threads, and wakes the thread whose shard has events.
//!
//! A shard's waitable descriptor could be given to Tcl's own notifier. But that of Tcl 8.6 is a thread around select(2)
//! which two messages through a pipe accompany on every wait, and descriptors from 1024 on end the process. Here the
//! interpreter's thread arms its descriptors before it waits, and one epoll_wait(2) of this thread ends the wait.
//!
//! Each armed descriptor wakes its thread once (`EPOLLONESHOT`): a thread that is busy is not disturbed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use stilling_engine::driver::signals::block_thread_signals;

use crate::tcl::ThreadId;

/// Events taken from the system at once.
const EVENTS_MAX: usize = 64;

/// The process's waiter.
struct Waiter {
    epoll: OwnedFd,
    registrations: Mutex<Vec<Option<WaitingThread>>>,
}

struct WaitingThread {
    thread: ThreadId,
    is_armed: Arc<AtomicBool>,
}

static WAITER: OnceLock<Arc<Waiter>> = OnceLock::new();

impl Waiter {
    /// The waiter; its thread starts with the first call that succeeds.
    fn get() -> io::Result<&'static Waiter> {
        static STARTING: Mutex<()> = Mutex::new(());
        if let Some(waiter) = WAITER.get() {
            return Ok(waiter);
        }
        let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        if WAITER.get().is_none() {
            let epoll = epoll::create(CreateFlags::CLOEXEC)?;
            let waiter = Arc::new(Waiter { epoll, registrations: Mutex::default() });
            let running = Arc::clone(&waiter);
            std::thread::Builder::new().name("stilling-waiter".into()).spawn(move || running.run())?;
            let _ = WAITER.set(waiter);
        }
        Ok(WAITER.get().expect("just set"))
    }

    fn registrations(&self) -> MutexGuard<'_, Vec<Option<WaitingThread>>> {
        self.registrations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        block_thread_signals();
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                // No other error is possible for a valid epoll descriptor.
                Err(_) => return,
            }
            let registrations = self.registrations();
            for event in &events {
                let index = event.data.u64() as usize;
                let Some(Some(registration)) = registrations.get(index) else { continue };
                registration.is_armed.store(false, Ordering::Release);
                // SAFETY: a registration ends, under this lock, before its thread does.
                unsafe { registration.thread.alert() };
            }
        }
    }
}

/// A waitable descriptor of the current thread. Dropping it ends the registration.
#[derive(Debug)]
pub(crate) struct WaitRegistration {
    descriptor: OwnedFd,
    index: usize,
    is_armed: Arc<AtomicBool>,
}

impl WaitRegistration {
    /// Registers a descriptor, of which the registration keeps a duplicate; not armed yet.
    pub(crate) fn new(descriptor: BorrowedFd<'_>) -> io::Result<Self> {
        let waiter = Waiter::get()?;
        let descriptor = descriptor.try_clone_to_owned()?;
        let is_armed = Arc::new(AtomicBool::new(false));
        let registration = WaitingThread { thread: ThreadId::current(), is_armed: Arc::clone(&is_armed) };
        let mut registrations = waiter.registrations();
        let index = match registrations.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                registrations.push(None);
                registrations.len() - 1
            }
        };
        let data = EventData::new_u64(index as u64);
        epoll::add(&waiter.epoll, descriptor.as_fd(), data, EventFlags::ONESHOT)?;
        registrations[index] = Some(registration);
        Ok(WaitRegistration { descriptor, index, is_armed })
    }

    /// Whether the descriptor has been ready since it was last armed.
    pub(crate) fn is_armed(&self) -> bool {
        self.is_armed.load(Ordering::Acquire)
    }

    /// Wakes this thread when the descriptor is ready, or at once if it is.
    pub(crate) fn arm(&self) -> io::Result<()> {
        if self.is_armed() {
            return Ok(());
        }
        self.is_armed.store(true, Ordering::Release);
        let data = EventData::new_u64(self.index as u64);
        let armed = epoll::modify(
            &Waiter::get()?.epoll,
            self.descriptor.as_fd(),
            data,
            EventFlags::IN | EventFlags::ONESHOT,
        );
        if armed.is_err() {
            self.is_armed.store(false, Ordering::Release);
        }
        Ok(armed?)
    }
}

impl Drop for WaitRegistration {
    fn drop(&mut self) {
        let Ok(waiter) = Waiter::get() else { return };
        let mut registrations = waiter.registrations();
        // It fails only if the descriptor is not registered.
        let _ = epoll::delete(&waiter.epoll, self.descriptor.as_fd());
        registrations[self.index] = None;
    }
}
