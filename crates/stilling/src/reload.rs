//! Reloads the worker processes on SIGHUP.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::Signal;
use stilling_engine::driver::signals;
use stilling_ring::Wake;

use crate::upstream::{App, AppConfig};

/// Reads the pools that are to run from now on.
type ReadApps = Box<dyn FnMut() -> Result<Vec<AppConfig>, String> + Send>;

/// The reload thread before its start.
pub(crate) struct Reloader {
    /// Weak, because the thread may outlive the server.
    apps: Vec<Weak<App>>,
    read: ReadApps,
    report: fn(&str),
    /// Written by the signal handler.
    event: Arc<OwnedFd>,
}

impl Reloader {
    /// Installs the signal handler. Signals before the start have their effect then.
    ///
    /// # Errors
    /// The system refuses it.
    pub(crate) fn new(apps: &[Arc<App>], read: ReadApps, report: fn(&str)) -> io::Result<Reloader> {
        let apps = apps.iter().map(Arc::downgrade).collect();
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let written = Arc::clone(&event);
        let wake = Arc::new(Wake::new(move || wake(&written)));
        signals::count_signals(&[Signal::HUP.as_raw()], &Arc::new(AtomicU32::new(0)), &[wake])?;
        Ok(Reloader { apps, read, report, event })
    }

    pub(crate) fn start(self) -> io::Result<ReloadThread> {
        let (event, is_ended) = (Arc::clone(&self.event), Arc::<AtomicBool>::default());
        let ended = Arc::clone(&is_ended);
        // Never joined, see `ReloadThread`.
        std::thread::Builder::new().name("reload".to_owned()).spawn(move || self.run(&ended))?;
        Ok(ReloadThread { event, is_ended })
    }

    fn run(mut self, is_ended: &AtomicBool) {
        loop {
            // Several signals at once are one. An interrupted read is repeated.
            let is_woken = rustix::io::retry_on_intr(|| rustix::io::read(&*self.event, &mut [0; 8])).is_ok();
            if !is_woken || is_ended.load(Ordering::Acquire) {
                return;
            }
            let apps = (self.read)();
            if is_ended.load(Ordering::Acquire) {
                return;
            }
            if let Err(reason) = apps.and_then(|apps| self.reload(&apps)) {
                (self.report)(&format!("reload failed: {reason}; the present worker processes remain"));
            }
        }
    }

    fn reload(&self, apps: &[AppConfig]) -> Result<(), String> {
        let present_apps: Vec<Arc<App>> = self.apps.iter().filter_map(Weak::upgrade).collect();
        let present = present_apps.iter().map(|app| app.config());
        let names = |apps: &mut dyn Iterator<Item = &AppConfig>| {
            let mut names: Vec<_> = apps.map(|app| app.name.clone()).collect();
            names.sort();
            names.join(", ")
        };
        let (before, after) = (names(&mut present.clone()), names(&mut apps.iter()));
        if before != after {
            return Err(format!("the pools are now `{after}`, not `{before}`, which needs a restart"));
        }
        for app in &present_apps {
            let Some(new) = apps.iter().find(|new| new.name == app.config().name) else { continue };
            let AppConfig { command, .. } = new.clone();
            if new != &(AppConfig { command: command.clone(), ..app.config().clone() }) {
                let name = &new.name;
                (self.report)(&format!("{name}: only the command is reloaded; other changes need a restart"));
            }
            app.reload(command);
        }
        Ok(())
    }
}

impl fmt::Debug for Reloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloader").finish_non_exhaustive()
    }
}

/// Ends the reload thread when it is dropped, without a wait: a settings file on a disk that hangs does not delay the
/// end of the server. The thread drops settings whose read ends after the drop. A reload that has begun by then may
/// still be requested: a supervisor that stops its processes ignores it.
pub(crate) struct ReloadThread {
    event: Arc<OwnedFd>,
    is_ended: Arc<AtomicBool>,
}

impl Drop for ReloadThread {
    fn drop(&mut self) {
        self.is_ended.store(true, Ordering::Release);
        wake(&self.event);
    }
}

/// Ends the read of the reload thread; callable in a signal handler.
fn wake(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use stilling_probe::{HANG_TIMEOUT, eventually};

    use super::*;

    static REPORTED: AtomicBool = AtomicBool::new(false);

    /// Row 1.24: a settings file that cannot be read because its disk hangs does not delay the end of the server, and is
    /// not applied afterwards.
    #[test]
    fn a_read_that_hangs_does_not_hold_up_the_end() {
        end_during_a_read(Err("it cannot be read".to_owned()));
        // Applied, they would be reported: the server has no pool of this name.
        end_during_a_read(Ok(vec![AppConfig::new("true")]));
    }

    /// Ends the thread while it reads the settings, which are `settings` afterwards.
    fn end_during_a_read(settings: Result<Vec<AppConfig>, String>) {
        let (begun, has_begun) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let read = move || {
            begun.send(()).expect("the test runs");
            // Ends when the test drops the sender.
            let _ = released.recv();
            settings.clone()
        };
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"));
        let report = |_: &str| REPORTED.store(true, Ordering::SeqCst);
        let reloader = Reloader { apps: Vec::new(), read: Box::new(read), report, event: Arc::clone(&event) };
        let thread = reloader.start().expect("a thread");
        wake(&event);
        has_begun.recv_timeout(HANG_TIMEOUT).expect("it reads");
        let (ended, has_ended) = mpsc::channel();
        std::thread::spawn(move || {
            drop(thread);
            ended.send(()).expect("the test runs");
        });
        has_ended.recv_timeout(HANG_TIMEOUT).expect("the end does not wait");
        drop(release);
        eventually("the thread ends", || (Arc::strong_count(&event) == 1).then_some(()));
        assert!(!REPORTED.load(Ordering::SeqCst), "the result is dropped");
    }
}
