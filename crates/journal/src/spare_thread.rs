//! Threads that are started before they have work.

use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle, Thread};

type SpareThreadTask<T> = Box<dyn FnOnce() -> T + Send>;

/// A thread that waits for its only task. A server starts such threads at its own start, so that a later start of a
/// journal cannot fail for lack of one. Dropped without a task, the thread ends.
#[derive(Debug)]
pub struct SpareThread<T> {
    work: SyncSender<SpareThreadTask<T>>,
    thread: JoinHandle<Option<T>>,
}

impl<T: Send + 'static> SpareThread<T> {
    /// Starts a thread of this name.
    ///
    /// # Errors
    /// The system provides no thread.
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

    /// Runs the task on the thread. Joining returns its result; `None` only if the spare thread was dropped without a
    /// task.
    pub fn run(self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<Option<T>> {
        // The channel has room for the only task, and the thread receives it.
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
