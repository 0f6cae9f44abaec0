//! Reloads the worker processes on SIGHUP.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::Signal;
use stilling_engine::driver::signals;
use stilling_ring::Wake;

use crate::upstream::{App, AppConfig};

/// Reads the pools that are to run from now on.
type ReadApps = Box<dyn FnMut() -> Result<Vec<AppConfig>, String> + Send>;

/// The reload thread before its start.
pub(crate) struct Reloader {
    apps: Vec<Arc<App>>,
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
    pub(crate) fn new(apps: Vec<Arc<App>>, read: ReadApps, report: fn(&str)) -> io::Result<Reloader> {
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let written = Arc::clone(&event);
        let wake = Arc::new(Wake::new(move || wake(&written)));
        signals::count_signals(&[Signal::HUP.as_raw()], &Arc::new(AtomicU32::new(0)), &[wake])?;
        Ok(Reloader { apps, read, report, event })
    }

    pub(crate) fn start(self) -> io::Result<ReloadThread> {
        let (event, is_ended) = (Arc::clone(&self.event), Arc::<AtomicBool>::default());
        let ended = Arc::clone(&is_ended);
        let thread = std::thread::Builder::new().name("reload".to_owned()).spawn(move || self.run(&ended))?;
        Ok(ReloadThread { event, is_ended, thread: Some(thread) })
    }

    fn run(mut self, is_ended: &AtomicBool) {
        loop {
            // Several signals at once are one. An interrupted read is repeated.
            let is_woken = rustix::io::retry_on_intr(|| rustix::io::read(&*self.event, &mut [0; 8])).is_ok();
            if !is_woken || is_ended.load(Ordering::Acquire) {
                return;
            }
            if let Err(reason) = self.reload() {
                (self.report)(&format!("reload failed: {reason}; the present worker processes remain"));
            }
        }
    }

    fn reload(&mut self) -> Result<(), String> {
        let apps = (self.read)()?;
        let present = self.apps.iter().map(|app| app.config());
        let names = |apps: &mut dyn Iterator<Item = &AppConfig>| {
            let mut names: Vec<_> = apps.map(|app| app.name.clone()).collect();
            names.sort();
            names.join(", ")
        };
        let (before, after) = (names(&mut present.clone()), names(&mut apps.iter()));
        if before != after {
            return Err(format!("the pools are now `{after}`, not `{before}`, which needs a restart"));
        }
        for app in &self.apps {
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

/// Ends the reload thread when it is dropped.
pub(crate) struct ReloadThread {
    event: Arc<OwnedFd>,
    is_ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ReloadThread {
    fn drop(&mut self) {
        self.is_ended.store(true, Ordering::Release);
        wake(&self.event);
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by its hook.
            drop(thread.join());
        }
    }
}

/// Ends the read of the reload thread; callable in a signal handler.
fn wake(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}
