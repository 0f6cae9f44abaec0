//! Channels and their drivers: see `Tcl_CreateChannel(3tcl)`.

mod access;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::rc::Rc;

use super::ffi::{self, ChannelProcs, RawChannel, RawChannelType, RawInterp, RawOptionList};
use super::value::raw_interp;
use super::{Interp, c_string, encoding, text_of};

pub(crate) use self::access::{ChannelObserver, CopyFailure};

/// Directions that a script or Tcl waits for, or that are ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interest(u8);

impl Interest {
    pub(crate) const NONE: Interest = Interest(0);
    pub(crate) const READABLE: Interest = Interest(1 << 1);
    pub(crate) const WRITABLE: Interest = Interest(1 << 2);
    pub(crate) const BOTH: Interest = Interest(Self::READABLE.0 | Self::WRITABLE.0);

    fn from_mask(mask: c_int) -> Interest {
        Interest(mask as u8).and(Interest::BOTH)
    }

    fn to_mask(self) -> c_int {
        self.0.into()
    }

    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }

    pub(crate) fn has(self, other: Interest) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn with(self, other: Interest) -> Interest {
        Interest(self.0 | other.0)
    }

    pub(crate) fn without(self, other: Interest) -> Interest {
        Interest(self.0 & !other.0)
    }

    pub(crate) fn and(self, other: Interest) -> Interest {
        Interest(self.0 & other.0)
    }
}

/// The direction of a half-close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseDirection {
    Read,
    Write,
}

/// What the new or former thread of a channel has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadAction {
    /// The channel belongs to this thread from now on.
    Insert,
    /// The channel leaves this thread.
    Remove,
}

/// A failure of an option of a channel.
#[derive(Debug)]
pub(crate) enum OptionError {
    /// The channel has no such option; the message lists these names (without dashes) beside the general ones.
    Unknown(&'static CStr),
    /// Any other failure, with its message.
    Message(String),
    /// A system error, behind this text.
    System(&'static str, i32),
}

/// The state of one channel. Errors are the system's numbers.
pub(crate) trait ChannelDriver: Sized {
    /// The channel begins to close: buffered output is still written, then it leaves its thread and is closed.
    fn begin_close(&self);

    /// The channel, unless it has begun to close.
    fn unclosed_channel(&self) -> Option<Channel>;

    /// Ends the channel: its last call.
    fn close(self: Rc<Self>) -> Result<(), i32>;

    /// Ends one direction of the channel.
    fn close_direction(&self, direction: CloseDirection) -> Result<(), i32>;

    /// Reads at most `into.len()` bytes; 0 is the end of the stream.
    fn input(&self, into: &mut [u8]) -> Result<usize, i32>;

    /// Writes at most `from.len()` bytes.
    fn output(&self, from: &[u8]) -> Result<usize, i32>;

    fn set_option(&self, name: &str, value: &str) -> Result<(), OptionError>;

    /// Appends the value of one option, or of all, with their names.
    fn get_option(
        &self,
        interp: Option<Interp>,
        name: Option<&str>,
        into: &mut OptionList,
    ) -> Result<(), OptionError>;

    /// Sets the events that are to be reported by [`Channel::notify`].
    fn watch(self: Rc<Self>, interest: Interest);

    /// The descriptor, which stays the driver's.
    fn descriptor(&self) -> Option<RawFd>;

    fn set_blocking(&self, blocking: bool) -> Result<(), i32>;

    fn change_thread(self: Rc<Self>, action: ThreadAction);
}

/// A registered channel type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChannelType(*const RawChannelType);

// SAFETY: it points to a constant.
unsafe impl Send for ChannelType {}
// SAFETY: as above.
unsafe impl Sync for ChannelType {}

impl ChannelType {
    /// A channel type for drivers of type `T`. The memory is never freed, so create each type once per process.
    pub(crate) fn new<T: ChannelDriver>(name: &'static CStr) -> Self {
        let procs = ChannelProcs {
            close: run_close::<T>,
            close2: run_close2::<T>,
            input: run_input::<T>,
            output: run_output::<T>,
            set_option: run_set_option::<T>,
            get_option: run_get_option::<T>,
            watch: run_watch::<T>,
            get_handle: run_get_handle::<T>,
            block_mode: run_block_mode::<T>,
            thread_action: run_thread_action::<T>,
        };
        // SAFETY: the name is static; the functions are copied.
        ChannelType(unsafe { ffi::stcl_channel_type(name.as_ptr(), &raw const procs) })
    }
}

/// A channel of this thread. Valid until its driver's `close`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Channel(NonNull<RawChannel>);

impl Channel {
    /// Creates a channel that owns a reference to its driver. `directions`: what a script may do with it.
    ///
    /// The type must be one of `T`.
    pub(crate) fn create<T: ChannelDriver>(
        channel_type: ChannelType,
        name: &str,
        driver: Rc<T>,
        directions: Interest,
    ) -> Self {
        let instance = Rc::into_raw(driver).cast_mut().cast();
        // SAFETY: the instance is a reference to a `T`, given back in `run_close`; Tcl copies the name.
        let raw = unsafe {
            ffi::stcl_create_channel(channel_type.0, c_string(name).as_ptr(), instance, directions.to_mask())
        };
        let channel = NonNull::new(raw).expect("Tcl has no failure of this function but lack of memory");
        // SAFETY: a live channel; the handler has a reference of its own, which it or `run_close` gives back.
        unsafe {
            Rc::increment_strong_count(instance.cast_const().cast::<T>());
            ffi::stcl_on_closing(channel.as_ptr(), run_begin_close::<T>, instance);
        }
        Channel(channel)
    }

    /// Makes the channel known to an interpreter; `None`: keeps it open for the program.
    pub(crate) fn register(self, interp: Option<Interp>) {
        // SAFETY: a live channel (see the type) and interpreter.
        unsafe { ffi::stcl_register_channel(raw_interp(interp), self.0.as_ptr()) };
    }

    /// Reverts [`register`](Self::register); the last one closes the channel.
    pub(crate) fn unregister(self, interp: Option<Interp>) {
        // SAFETY: as above.
        unsafe { ffi::stcl_unregister_channel(raw_interp(interp), self.0.as_ptr()) };
    }

    /// Closes a channel that is not registered.
    pub(crate) fn close(self) {
        // SAFETY: as above.
        unsafe { ffi::stcl_close_channel(self.0.as_ptr()) };
    }

    pub(crate) fn name(self) -> String {
        // SAFETY: as above; the name is copied.
        unsafe { text_of(ffi::stcl_channel_name(self.0.as_ptr())) }
    }

    pub(crate) fn set_option(self, name: &CStr, value: &CStr) {
        // SAFETY: as above.
        unsafe { ffi::stcl_set_channel_option(self.0.as_ptr(), name.as_ptr(), value.as_ptr()) };
    }

    /// Reports events, which runs scripts. The channel may be closed afterwards.
    pub(crate) fn notify(self, ready: Interest) {
        // SAFETY: as above; Tcl preserves the channel during the call.
        unsafe { ffi::stcl_notify_channel(self.0.as_ptr(), ready.to_mask()) };
    }

    /// Whether an interpreter knows the channel.
    pub(crate) fn is_registered(self, interp: Interp) -> bool {
        // SAFETY: as above.
        unsafe { ffi::stcl_is_channel_registered(raw_interp(Some(interp)), self.0.as_ptr()) != 0 }
    }

    /// Whether a script has closed the channel while its output is written in the background: Tcl rejects more output.
    pub(crate) fn is_closed_by_script(self) -> bool {
        // SAFETY: as above.
        unsafe { ffi::stcl_is_closed_by_script(self.0.as_ptr()) != 0 }
    }

    /// Size of the channel's buffers in bytes.
    pub(crate) fn buffer_size(self) -> usize {
        // SAFETY: as above.
        usize::try_from(unsafe { ffi::stcl_buffer_size(self.0.as_ptr()) }).unwrap_or(0)
    }
}

/// The text that an option's value, or the list of all options, is appended to.
pub(crate) struct OptionList(*mut RawOptionList);

impl OptionList {
    /// Appends text as it is.
    pub(crate) fn append(&mut self, text: &str) {
        // SAFETY: Tcl passes a live string for the time of the call.
        unsafe { ffi::stcl_append(self.0, text.as_ptr().cast(), text.len()) };
    }

    /// Appends a list element.
    pub(crate) fn element(&mut self, text: &str) {
        // SAFETY: as above.
        unsafe { ffi::stcl_append_element(self.0, c_string(text).as_ptr()) };
    }

    /// Appends an element that is a list.
    pub(crate) fn sublist(&mut self, fill: impl FnOnce(&mut Self)) {
        // SAFETY: as above.
        unsafe { ffi::stcl_start_sublist(self.0) };
        fill(self);
        // SAFETY: as above.
        unsafe { ffi::stcl_end_sublist(self.0) };
    }
}

/// A driver as its channel's instance, borrowed for one call.
///
/// # Safety
/// `instance` is the pointer of [`Channel::create`] for a driver of type `T` whose `close` has not been called.
unsafe fn driver<T: ChannelDriver>(instance: *mut c_void) -> Rc<T> {
    let pointer = instance.cast_const().cast::<T>();
    // SAFETY: the caller's promise. The count is raised because a script may close the channel during the call.
    unsafe {
        Rc::increment_strong_count(pointer);
        Rc::from_raw(pointer)
    }
}

unsafe extern "C" fn run_begin_close<T: ChannelDriver>(instance: *mut c_void) {
    // SAFETY: the handler's own reference, which Tcl gives back with its only call.
    unsafe { Rc::from_raw(instance.cast_const().cast::<T>()) }.begin_close();
}

unsafe extern "C" fn run_close<T: ChannelDriver>(instance: *mut c_void, _: *mut RawInterp) -> c_int {
    // SAFETY: the channel's own reference, which Tcl gives back with this last call.
    let driver = unsafe { Rc::from_raw(instance.cast_const().cast::<T>()) };
    if let Some(channel) = driver.unclosed_channel() {
        // A channel that is closed during a flush in the background, or with the process, has not run its handler.
        // SAFETY: a live channel, until this call ends; without the handler its reference is not given back otherwise.
        unsafe {
            ffi::stcl_delete_close_handler(channel.0.as_ptr(), run_begin_close::<T>, instance);
            Rc::decrement_strong_count(instance.cast_const().cast::<T>());
        }
    }
    driver.close().err().unwrap_or(0)
}

unsafe extern "C" fn run_close2<T: ChannelDriver>(
    instance: *mut c_void,
    interp: *mut RawInterp,
    flags: c_int,
) -> c_int {
    const CLOSE_READ: c_int = 1 << 1;
    const CLOSE_WRITE: c_int = 1 << 2;
    let direction = match flags & (CLOSE_READ | CLOSE_WRITE) {
        // SAFETY: a close of both directions is the last call.
        0 => return unsafe { run_close::<T>(instance, interp) },
        CLOSE_READ => CloseDirection::Read,
        CLOSE_WRITE => CloseDirection::Write,
        _ => return libc::EINVAL,
    };
    // SAFETY: a live channel's instance.
    unsafe { driver::<T>(instance) }.close_direction(direction).err().unwrap_or(0)
}

unsafe extern "C" fn run_input<T: ChannelDriver>(
    instance: *mut c_void,
    buffer: *mut c_char,
    size: c_int,
    error: *mut c_int,
) -> c_int {
    // SAFETY: a live channel's instance, and a buffer of `size` bytes that Tcl has initialised or that is only written.
    let (driver, into) = unsafe {
        let size = usize::try_from(size).unwrap_or(0);
        (driver::<T>(instance), std::slice::from_raw_parts_mut(buffer.cast::<u8>(), size))
    };
    // SAFETY: Tcl passes a valid pointer.
    unsafe { count_or_error(driver.input(into), error) }
}

unsafe extern "C" fn run_output<T: ChannelDriver>(
    instance: *mut c_void,
    buffer: *const c_char,
    size: c_int,
    error: *mut c_int,
) -> c_int {
    // SAFETY: a live channel's instance, and a buffer of `size` bytes.
    let (driver, from) = unsafe {
        let size = usize::try_from(size).unwrap_or(0);
        (driver::<T>(instance), std::slice::from_raw_parts(buffer.cast::<u8>(), size))
    };
    // SAFETY: Tcl passes a valid pointer.
    unsafe { count_or_error(driver.output(from), error) }
}

/// # Safety
/// `error` is valid for a write.
unsafe fn count_or_error(outcome: Result<usize, i32>, error: *mut c_int) -> c_int {
    let (count, number) = match outcome {
        Ok(count) => (c_int::try_from(count).expect("at most the buffer's size"), 0),
        Err(number) => (-1, number),
    };
    // SAFETY: the caller's promise.
    unsafe { *error = number };
    count
}

unsafe extern "C" fn run_set_option<T: ChannelDriver>(
    instance: *mut c_void,
    interp: *mut RawInterp,
    name: *const c_char,
    value: *const c_char,
) -> c_int {
    // SAFETY: a live channel's instance and strings.
    let (driver, name, value) = unsafe { (driver::<T>(instance), CStr::from_ptr(name), text_of(value)) };
    let outcome = driver.set_option(&encoding::from_internal(name.to_bytes()), &value);
    option_code(Interp::from_raw(interp), name, outcome)
}

unsafe extern "C" fn run_get_option<T: ChannelDriver>(
    instance: *mut c_void,
    interp: *mut RawInterp,
    name: *const c_char,
    into: *mut RawOptionList,
) -> c_int {
    let interp = Interp::from_raw(interp);
    // SAFETY: a live channel's instance; the name is a string or null.
    let (driver, name) = unsafe { (driver::<T>(instance), (!name.is_null()).then(|| CStr::from_ptr(name))) };
    // As in Tcl's core, an empty name asks for all options.
    let text = name.filter(|name| !name.is_empty()).map(|name| encoding::from_internal(name.to_bytes()));
    let outcome = driver.get_option(interp, text.as_deref(), &mut OptionList(into));
    option_code(interp, name.unwrap_or_default(), outcome)
}

fn option_code(interp: Option<Interp>, name: &CStr, outcome: Result<(), OptionError>) -> c_int {
    match outcome {
        Ok(()) => return ffi::OK,
        Err(OptionError::Unknown(known)) => {
            // SAFETY: live strings; a null interpreter is permitted.
            return unsafe {
                ffi::stcl_bad_channel_option(raw_interp(interp), name.as_ptr(), known.as_ptr())
            };
        }
        Err(OptionError::Message(message)) => {
            interp.map(|interp| interp.fail(&message));
        }
        Err(OptionError::System(prefix, error)) => {
            if let Some(interp) = interp {
                let text = interp.posix_error(error);
                interp.fail(&format!("{prefix}{text}"));
            }
        }
    }
    ffi::ERROR
}

unsafe extern "C" fn run_watch<T: ChannelDriver>(instance: *mut c_void, mask: c_int) {
    // SAFETY: a live channel's instance.
    unsafe { driver::<T>(instance) }.watch(Interest::from_mask(mask));
}

unsafe extern "C" fn run_get_handle<T: ChannelDriver>(
    instance: *mut c_void,
    _direction: c_int,
    handle: *mut *mut c_void,
) -> c_int {
    // SAFETY: a live channel's instance.
    let Some(descriptor) = unsafe { driver::<T>(instance) }.descriptor() else { return ffi::ERROR };
    // SAFETY: Tcl passes a valid pointer. A handle is a descriptor in the form of a pointer.
    unsafe { *handle = descriptor as usize as *mut c_void };
    ffi::OK
}

unsafe extern "C" fn run_block_mode<T: ChannelDriver>(instance: *mut c_void, mode: c_int) -> c_int {
    const NONBLOCKING: c_int = 1;
    // SAFETY: a live channel's instance.
    unsafe { driver::<T>(instance) }.set_blocking(mode != NONBLOCKING).err().unwrap_or(0)
}

unsafe extern "C" fn run_thread_action<T: ChannelDriver>(instance: *mut c_void, action: c_int) {
    const INSERT: c_int = 0;
    let action = if action == INSERT { ThreadAction::Insert } else { ThreadAction::Remove };
    // SAFETY: a live channel's instance.
    unsafe { driver::<T>(instance) }.change_thread(action);
}
