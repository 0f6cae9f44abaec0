//! Threads that are started before there is work for them.

use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle, Thread};

type SpareThreadTask<T> = Box<dyn FnOnce() -> T + Send>;

/// A thread that waits for the one thing it will do. A server starts its threads with itself, so that none can be refused
/// later. Dropped without work, the thread ends.
#[derive(Debug)]
pub struct SpareThread<T> {
    work: SyncSender<SpareThreadTask<T>>,
    thread: JoinHandle<Option<T>>,
}

impl<T: Send + 'static> SpareThread<T> {
    /// Starts a thread of this name.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(name: &str) -> io::Result<SpareThread<T>> {
        let (work, waiting) = sync_channel::<SpareThreadTask<T>>(1);
        let run = move || waiting.recv().ok().map(|work| work());
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(SpareThread { work, thread })
    }

    /// The handle that unparks it.
    pub fn thread(&self) -> &Thread {
        self.thread.thread()
    }

    /// Gives it its work. It returns the result of the work; nothing only if it was dropped without.
    pub fn run(self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<Option<T>> {
        // There is room for one, and the thread waits for it.
        let _ = self.work.send(Box::new(work));
        self.thread
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spare_thread_does_its_work_or_ends_without() {
        let spare = SpareThread::start("spare").expect("a thread");
        let id = spare.thread().id();
        let ran_on = spare.run(|| thread::current().id()).join().expect("no panic");
        assert_eq!(ran_on, Some(id));
        let SpareThread { work, thread } = SpareThread::<()>::start("spare").expect("a thread");
        drop(work);
        assert_eq!(thread.join().expect("no panic"), None);
    }
}
