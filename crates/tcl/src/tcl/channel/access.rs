//! Channels of any type, by name: what a copy between two channels needs.

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::rc::Rc;

use super::super::ffi;
use super::{Channel, ChannelDriver, ChannelType, Interest, Interp, c_string, driver, text_of};

/// Bytes of an option's text that [`Channel::has_option`] compares, at most.
const OPTION_TEXT_SIZE: usize = 64;

/// The side of a copy between two channels that failed, with the system's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyFailure {
    Read(i32),
    Write(i32),
}

/// Functions that are called for a channel, each with the number of [`Channel::observe`].
pub(crate) trait ChannelObserver {
    /// The channel is ready.
    fn ready(number: u64);
    /// The channel begins to close.
    fn closing(number: u64);
}

impl Channel {
    /// The channel of this name in an interpreter, with its directions.
    pub(crate) fn find(interp: Interp, name: &str) -> Option<(Channel, Interest)> {
        let mut mask = 0;
        // SAFETY: a live interpreter (see the type).
        let raw =
            unsafe { ffi::stcl_find_channel(interp.0.as_ptr(), c_string(name).as_ptr(), &raw mut mask) };
        match NonNull::new(raw) {
            Some(channel) => Some((Channel(channel), Interest(mask as u8).and(Interest::BOTH))),
            None => {
                // The function leaves a message.
                interp.reset_result();
                None
            }
        }
    }

    /// Whether this thread has a channel of this name, in any interpreter. Compares the names of all its channels.
    pub(crate) fn exists(name: &str) -> bool {
        // SAFETY: the name is read during the call.
        unsafe { ffi::stcl_is_channel_existing(c_string(name).as_ptr()) != 0 }
    }

    /// Whether the channel has a transform, or is one.
    pub(crate) fn is_stacked(self) -> bool {
        // SAFETY: a live channel (see the type).
        unsafe { ffi::stcl_is_stacked(self.0.as_ptr()) != 0 }
    }

    /// The name of the channel's type, such as `file`.
    pub(crate) fn type_name(self) -> String {
        // SAFETY: as above; the name is copied.
        unsafe { text_of(ffi::stcl_channel_type_name(self.0.as_ptr())) }
    }

    /// The channel's driver if the channel is of this type, which must be one of `T`.
    pub(crate) fn driver_of<T: ChannelDriver>(self, channel_type: ChannelType) -> Option<Rc<T>> {
        // SAFETY: as above.
        let instance = unsafe { ffi::stcl_instance_of(self.0.as_ptr(), channel_type.0) };
        // SAFETY: the instance of a live channel of a type of `T`.
        (!instance.is_null()).then(|| unsafe { driver::<T>(instance) })
    }

    /// The descriptor for one direction, which stays the channel's.
    pub(crate) fn descriptor(self, direction: Interest) -> Option<RawFd> {
        // SAFETY: as above.
        let descriptor = unsafe { ffi::stcl_descriptor(self.0.as_ptr(), direction.0.into()) };
        (descriptor >= 0).then_some(descriptor)
    }

    /// Whether the text of an option passes a test; false for a long text. Allocates nothing.
    pub(crate) fn has_option(self, name: &CStr, is_value: impl FnOnce(&str) -> bool) -> bool {
        let mut text = [0u8; OPTION_TEXT_SIZE];
        // SAFETY: as above, and a buffer of the given size.
        let length = unsafe {
            ffi::stcl_copy_option(self.0.as_ptr(), name.as_ptr(), text.as_mut_ptr().cast(), text.len())
        };
        let text = usize::try_from(length).ok().map(|length| &text[..length]);
        text.and_then(|text| std::str::from_utf8(text).ok()).is_some_and(is_value)
    }

    /// Bytes that were read and are in the channel's buffers.
    pub(crate) fn input_buffered(self) -> usize {
        // SAFETY: as above.
        unsafe { ffi::stcl_input_buffered(self.0.as_ptr()) }
    }

    /// Bytes that were written and are in the channel's buffers.
    pub(crate) fn output_buffered(self) -> usize {
        // SAFETY: as above.
        unsafe { ffi::stcl_output_buffered(self.0.as_ptr()) }
    }

    /// Reads through the channel's buffers.
    pub(crate) fn read(self, into: &mut [u8]) -> Result<usize, i32> {
        let size = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        // SAFETY: as above, and a buffer of the given size.
        let count = unsafe { ffi::stcl_read(self.0.as_ptr(), into.as_mut_ptr().cast(), size) };
        usize::try_from(count).map_err(|_| ffi::stcl_errno())
    }

    /// Whether the channel can be written to now.
    pub(crate) fn check_write(self) -> Result<(), i32> {
        // SAFETY: as above.
        if unsafe { ffi::stcl_check_write(self.0.as_ptr()) } == 0 { Ok(()) } else { Err(ffi::stcl_errno()) }
    }

    /// Writes bytes, without an encoding.
    pub(crate) fn write(self, bytes: &[u8]) -> Result<(), i32> {
        for part in bytes.chunks(c_int::MAX as usize) {
            // SAFETY: as above, and bytes of the given size.
            if unsafe { ffi::stcl_write(self.0.as_ptr(), part.as_ptr().cast(), part.len() as c_int) } != 0 {
                return Err(ffi::stcl_errno());
            }
        }
        Ok(())
    }

    /// Copies at most `count` characters to another channel, with the encodings, translations and transforms of both,
    /// which may run scripts. Returns their number; 0: at the end, or nothing yet.
    pub(crate) fn copy_characters(self, output: Channel, count: usize) -> Result<usize, CopyFailure> {
        const READ_FAILED: i64 = -1;
        let count = c_int::try_from(count).unwrap_or(c_int::MAX);
        // SAFETY: as above, for both.
        match unsafe { ffi::stcl_copy_characters(self.0.as_ptr(), output.0.as_ptr(), count) } {
            READ_FAILED => Err(CopyFailure::Read(ffi::stcl_errno())),
            copied => usize::try_from(copied).map_err(|_| CopyFailure::Write(ffi::stcl_errno())),
        }
    }

    /// Whether scripts can read it: false after they have closed this direction.
    pub(crate) fn is_readable(self) -> bool {
        // SAFETY: as above.
        unsafe { ffi::stcl_is_readable(self.0.as_ptr()) != 0 }
    }

    /// Whether the last read has reached the end.
    pub(crate) fn is_at_end(self) -> bool {
        // SAFETY: as above.
        unsafe { ffi::stcl_is_at_end(self.0.as_ptr()) != 0 }
    }

    /// Writes what is buffered; in the background if the channel does not block.
    pub(crate) fn flush(self) -> Result<(), i32> {
        // SAFETY: as above.
        if unsafe { ffi::stcl_flush(self.0.as_ptr()) } == 0 { Ok(()) } else { Err(ffi::stcl_errno()) }
    }

    /// Calls the observer with `number` when the channel is ready in these directions, and when it closes.
    pub(crate) fn observe<T: ChannelObserver>(self, directions: Interest, number: u64) {
        let data = number as usize as *mut c_void;
        // SAFETY: as above; the data is a number.
        unsafe {
            ffi::stcl_on_closing(self.0.as_ptr(), run_closing::<T>, data);
            if !directions.is_none() {
                ffi::stcl_create_channel_handler(self.0.as_ptr(), directions.0.into(), run_ready::<T>, data);
            }
        }
    }

    /// Reverts [`observe`](Self::observe).
    pub(crate) fn end_observation<T: ChannelObserver>(self, number: u64) {
        let data = number as usize as *mut c_void;
        // SAFETY: as above.
        unsafe {
            ffi::stcl_delete_channel_handler(self.0.as_ptr(), run_ready::<T>, data);
            ffi::stcl_delete_close_handler(self.0.as_ptr(), run_closing::<T>, data);
        }
    }
}

unsafe extern "C" fn run_ready<T: ChannelObserver>(data: *mut c_void, _: c_int) {
    T::ready(data as usize as u64);
}

unsafe extern "C" fn run_closing<T: ChannelObserver>(data: *mut c_void) {
    T::closing(data as usize as u64);
}
