//! Safe types over Tcl's C API.
//!
//! Everything here is used by the thread that owns the interpreter, except [`ThreadId::alert`]. Text from Tcl may
//! contain any bytes; names and numbers are read as UTF-8, with replacement characters for the rest.

mod channel;
mod encoding;
mod ffi;
mod value;

use std::ffi::{CStr, CString, c_int, c_void};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;

pub(crate) use self::channel::{
    Channel, ChannelDriver, ChannelObserver, ChannelType, CloseDirection, CopyFailure, Interest, OptionError,
    OptionList, ThreadAction,
};
pub(crate) use self::value::{Value, Words};

use self::ffi::RawInterp;

/// An error whose message is the interpreter's result.
#[derive(Debug)]
pub(crate) struct CommandFailed;

pub(crate) type CommandResult = Result<(), CommandFailed>;

/// The implementation of a Tcl command; the words include its name.
pub(crate) type Command = fn(Interp, &Words<'_>) -> CommandResult;

/// An interpreter. Valid within the call that passed it, and until the callback of [`Interp::on_delete`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interp(NonNull<RawInterp>);

/// The number of Tcl's major version.
pub(crate) fn major_version() -> i32 {
    ffi::stcl_major_version()
}

/// Whether this is the API of Tcl 9.
pub(crate) fn is_tcl_9() -> bool {
    major_version() >= 9
}

impl Interp {
    /// The interpreter of a C callback, unless the pointer is null.
    fn from_raw(raw: *mut RawInterp) -> Option<Self> {
        NonNull::new(raw).map(Interp)
    }

    /// Connects the stub table. Must succeed before any other call. Its error is the interpreter's result.
    pub(crate) fn initialize(raw: *mut c_void) -> Result<Self, CommandFailed> {
        let interp = Interp::from_raw(raw.cast()).ok_or(CommandFailed)?;
        // SAFETY: Tcl passes a live interpreter to an extension's entry point.
        let version = unsafe { ffi::stcl_init_stubs(interp.0.as_ptr()) };
        if version.is_null() { Err(CommandFailed) } else { Ok(interp) }
    }

    pub(crate) fn provide(self, package: &CStr, version: &CStr) -> CommandResult {
        // SAFETY: a live interpreter (see the type); Tcl copies the strings.
        let code = unsafe { ffi::stcl_provide(self.0.as_ptr(), package.as_ptr(), version.as_ptr()) };
        if code == ffi::OK { Ok(()) } else { Err(CommandFailed) }
    }

    pub(crate) fn create_command(self, name: &CStr, command: Command) {
        // SAFETY: a live interpreter; `run_command` gets the data that is passed here.
        unsafe {
            ffi::stcl_create_command(self.0.as_ptr(), name.as_ptr(), run_command, command as *mut c_void);
        }
    }

    /// Hides a command, for a safe interpreter: its parent can expose it.
    pub(crate) fn hide_command(self, name: &CStr) -> CommandResult {
        // SAFETY: a live interpreter; Tcl copies the name.
        let code = unsafe { ffi::stcl_hide_command(self.0.as_ptr(), name.as_ptr()) };
        if code == ffi::OK { Ok(()) } else { Err(CommandFailed) }
    }

    pub(crate) fn set_result(self, value: &Value) {
        // SAFETY: both are live.
        unsafe { ffi::stcl_set_result(self.0.as_ptr(), value.as_raw()) };
    }

    /// Sets an error message as the result.
    pub(crate) fn fail(self, message: &str) -> CommandFailed {
        self.set_result(&Value::text(message));
        CommandFailed
    }

    /// Clears the result and its error.
    pub(crate) fn reset_result(self) {
        // SAFETY: a live interpreter (see the type).
        unsafe { ffi::stcl_reset_result(self.0.as_ptr()) };
    }

    /// Sets `errorCode`.
    pub(crate) fn set_error_code(self, words: &[&str]) {
        let code = Value::list(words.iter().map(|word| Value::text(word)));
        // SAFETY: both are live.
        unsafe { ffi::stcl_set_error_code(self.0.as_ptr(), code.as_raw()) };
    }

    /// Sets `errorCode` from a system error and returns its text.
    pub(crate) fn posix_error(self, error: i32) -> String {
        // SAFETY: a live interpreter; the text is copied before another call can change it.
        unsafe { text_of(ffi::stcl_posix_error(self.0.as_ptr(), error)) }
    }

    /// The value of a global variable.
    pub(crate) fn global(self, name: &CStr) -> Option<String> {
        // SAFETY: a live interpreter; the value is copied at once.
        unsafe {
            let value = ffi::stcl_global(self.0.as_ptr(), name.as_ptr());
            (!value.is_null()).then(|| text_of(value))
        }
    }

    /// Evaluates a script at global level; a failure is reported as a background error. Returns whether it succeeded.
    pub(crate) fn evaluate_in_background(self, script: &Value) -> bool {
        // SAFETY: both are live; the shim preserves the interpreter during the evaluation.
        unsafe { ffi::stcl_evaluate_in_background(self.0.as_ptr(), script.as_raw()) == ffi::OK }
    }

    /// Keeps the interpreter's memory while the guard exists, also if a script deletes the interpreter.
    pub(crate) fn preserve(self) -> PreservedInterp {
        // SAFETY: a live interpreter (see the type).
        unsafe { ffi::stcl_preserve_interp(self.0.as_ptr()) };
        PreservedInterp(self)
    }

    /// Whether the interpreter is being deleted, or has been.
    pub(crate) fn is_deleted(self) -> bool {
        // SAFETY: a live interpreter (see the type).
        unsafe { ffi::stcl_is_deleted(self.0.as_ptr()) != 0 }
    }

    /// Runs `action` when the interpreter is deleted, unless the returned guard is dropped before.
    pub(crate) fn on_delete(self, action: impl FnOnce() + 'static) -> DeleteGuard {
        let action: Box<Box<dyn FnOnce()>> = Box::new(Box::new(action));
        let data = Box::into_raw(action);
        // SAFETY: a live interpreter; `run_delete_action` or the guard takes the box back, once.
        unsafe { ffi::stcl_call_when_deleted(self.0.as_ptr(), run_delete_action, data.cast()) };
        DeleteGuard { interp: self, data }
    }
}

/// A registered action of [`Interp::on_delete`].
pub(crate) struct DeleteGuard {
    interp: Interp,
    data: *mut Box<dyn FnOnce()>,
}

impl DeleteGuard {
    /// The action has run: there is nothing to cancel.
    pub(crate) fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for DeleteGuard {
    fn drop(&mut self) {
        // SAFETY: the action has not run, else the guard was forgotten; so the interpreter lives. An interpreter that is
        // being deleted has left the list of actions to Tcl, which still runs this one and takes the box.
        unsafe {
            if ffi::stcl_is_deleted(self.interp.0.as_ptr()) != 0 {
                return;
            }
            ffi::stcl_dont_call_when_deleted(self.interp.0.as_ptr(), run_delete_action, self.data.cast());
            drop(Box::from_raw(self.data));
        }
    }
}

unsafe extern "C" fn run_delete_action(data: *mut c_void, _: *mut RawInterp) {
    // SAFETY: the box of `on_delete`, which Tcl passes once.
    let action = unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce()>>()) };
    action();
}

unsafe extern "C" fn run_command(
    data: *mut c_void,
    interp: *mut RawInterp,
    count: c_int,
    words: *const *mut ffi::RawObj,
) -> c_int {
    // SAFETY: the data is the function of `create_command`.
    let command = unsafe { std::mem::transmute::<*mut c_void, Command>(data) };
    let Some(interp) = Interp::from_raw(interp) else { return ffi::ERROR };
    // SAFETY: Tcl passes `count` live values.
    let words = unsafe { Words::from_raw(words, count) };
    if command(interp, &words).is_ok() { ffi::OK } else { ffi::ERROR }
}

/// The text of a system error, as Tcl words it.
pub(crate) fn error_text(error: i32) -> String {
    // SAFETY: Tcl returns a string of static lifetime, or one that the next call changes.
    unsafe { text_of(ffi::stcl_error_text(error)) }
}

/// The symbolic name of a system error, such as `ECONNREFUSED`.
pub(crate) fn error_name(error: i32) -> String {
    // SAFETY: as for `error_text`.
    unsafe { text_of(ffi::stcl_error_name(error)) }
}

/// # Safety
/// `text` is a null-terminated string.
unsafe fn text_of(text: *const std::ffi::c_char) -> String {
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
    encoding::from_internal(bytes).into_owned()
}

/// A C string of text that has no zero bytes; after the first one, the rest is dropped.
pub(crate) fn c_string(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).expect("there is no zero byte before the end")
}

/// An interpreter's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadId(usize);

impl ThreadId {
    pub(crate) fn current() -> Self {
        ThreadId(ffi::stcl_current_thread() as usize)
    }

    /// Ends the thread's wait for events, or its next one.
    ///
    /// # Safety
    /// The thread has not ended: its notifier exists.
    pub(crate) unsafe fn alert(self) {
        // SAFETY: the caller's promise; this is the one function for other threads.
        unsafe { ffi::stcl_alert_thread(self.0 as *mut c_void) };
    }
}

/// An interpreter that may be used although it is deleted. Dropping this releases it.
#[derive(Debug)]
pub(crate) struct PreservedInterp(Interp);

impl Drop for PreservedInterp {
    fn drop(&mut self) {
        // SAFETY: it was preserved, so its memory exists.
        unsafe { ffi::stcl_release_interp(self.0.0.as_ptr()) };
    }
}

/// Ends this thread's coming wait at once, in Tcl 8.6 without asking for events of other sources.
pub(crate) fn skip_wait() {
    ffi::stcl_skip_wait();
}

/// Starts Tcl's notifier before descriptors are scarce: it ends the process if it gets none.
///
/// # Errors
/// There are no descriptors for it.
pub(crate) fn start_notifier() -> std::io::Result<()> {
    drop(pipe()?);
    ffi::stcl_start_notifier();
    // The end of a pipe without a writer is readable.
    if let Ok((readable, writable)) = pipe() {
        drop(writable);
        ffi::stcl_learn_file_events(readable.as_raw_fd());
    }
    Ok(())
}

fn pipe() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
}

/// Whether this thread's queue has events for files and pipes.
pub(crate) fn has_file_events() -> bool {
    ffi::stcl_has_file_events() != 0
}

/// Limits this thread's coming wait for events.
pub(crate) fn limit_wait(span: std::time::Duration) {
    let mut micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    if is_tcl_9() {
        // Its notifier rounds down to milliseconds, and would ask repeatedly during the last one.
        micros = micros.div_ceil(1000).saturating_mul(1000);
    }
    ffi::stcl_limit_wait(micros);
}

/// A set of event sources' flags: which events a call of Tcl may handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventFlags(c_int);

impl EventFlags {
    const DONT_WAIT: c_int = 1 << 1;
    const FILE_EVENTS: c_int = 1 << 3;

    pub(crate) fn permit_wait(self) -> bool {
        self.0 & Self::DONT_WAIT == 0
    }

    pub(crate) fn permit_channels(self) -> bool {
        self.0 & Self::FILE_EVENTS != 0
    }
}

/// A participant in the event loop of one thread.
pub(crate) trait EventSource: 'static {
    /// Called before the thread waits for events.
    fn prepare(&self, permitted: EventFlags);
    /// Called after the wait.
    fn check(&self, permitted: EventFlags);
    /// A queued event, on its turn. Returns false to keep it in the queue.
    fn handle(&self, target: u64, permitted: EventFlags) -> bool;
    /// The source of the current thread.
    fn current() -> Option<Rc<Self>>;
}

/// A registered event source. Dropping it ends the registration.
pub(crate) struct EventSourceGuard<T: EventSource>(PhantomData<Rc<T>>);

impl<T: EventSource> EventSourceGuard<T> {
    /// Registers the source that [`EventSource::current`] returns on this thread.
    pub(crate) fn new() -> Self {
        // SAFETY: the functions need no data.
        unsafe { ffi::stcl_create_event_source(run_prepare::<T>, run_check::<T>, std::ptr::null_mut()) };
        EventSourceGuard(PhantomData)
    }

    /// Queues an event behind all others of this thread.
    pub(crate) fn queue(target: u64) {
        // SAFETY: Tcl copies the arguments.
        unsafe { ffi::stcl_queue_event(run_handle::<T>, target) };
    }
}

impl<T: EventSource> Drop for EventSourceGuard<T> {
    fn drop(&mut self) {
        // SAFETY: it was registered with these arguments, on this thread: the type is not `Send`.
        unsafe { ffi::stcl_delete_event_source(run_prepare::<T>, run_check::<T>, std::ptr::null_mut()) };
    }
}

unsafe extern "C" fn run_prepare<T: EventSource>(_: *mut c_void, flags: c_int) {
    if let Some(source) = T::current() {
        source.prepare(EventFlags(flags));
    }
}

unsafe extern "C" fn run_check<T: EventSource>(_: *mut c_void, flags: c_int) {
    if let Some(source) = T::current() {
        source.check(EventFlags(flags));
    }
}

unsafe extern "C" fn run_handle<T: EventSource>(target: u64, flags: c_int) -> c_int {
    let handled = T::current().is_none_or(|source| source.handle(target, EventFlags(flags)));
    c_int::from(handled)
}

/// Runs `action` when the current thread's Tcl ends.
pub(crate) fn on_thread_exit(action: fn()) {
    // SAFETY: `run_exit_action` gets the function that is passed here.
    unsafe { ffi::stcl_create_thread_exit_handler(run_exit_action, action as *mut c_void) };
}

unsafe extern "C" fn run_exit_action(data: *mut c_void) {
    // SAFETY: the data is the function of `on_thread_exit`.
    let action = unsafe { std::mem::transmute::<*mut c_void, fn()>(data) };
    action();
}
