//! The functions of `shim/tcl_api.c`, with the same types for every Tcl version.

use std::ffi::{c_char, c_int, c_void};

/// A `Tcl_Interp`.
#[repr(C)]
pub(super) struct RawInterp {
    _private: [u8; 0],
}

/// A `Tcl_Obj`.
#[repr(C)]
pub(super) struct RawObj {
    _private: [u8; 0],
}

/// What a `Tcl_Channel` points to.
#[repr(C)]
pub(super) struct RawChannel {
    _private: [u8; 0],
}

/// A `Tcl_ChannelType`.
#[repr(C)]
pub(super) struct RawChannelType {
    _private: [u8; 0],
}

/// A `Tcl_DString`.
#[repr(C)]
pub(super) struct RawOptionList {
    _private: [u8; 0],
}

pub(super) type CommandProc =
    unsafe extern "C" fn(*mut c_void, *mut RawInterp, c_int, *const *mut RawObj) -> c_int;
pub(super) type InterpDeleteProc = unsafe extern "C" fn(*mut c_void, *mut RawInterp);
pub(super) type EventSourceProc = unsafe extern "C" fn(*mut c_void, c_int);
pub(super) type QueuedEventProc = unsafe extern "C" fn(u64, c_int) -> c_int;
pub(super) type ChannelProc = unsafe extern "C" fn(*mut c_void, c_int);
pub(super) type ExitProc = unsafe extern "C" fn(*mut c_void);

/// The functions of a channel driver; the C structure `ChannelProcs`.
#[repr(C)]
pub(super) struct ChannelProcs {
    pub(super) close: unsafe extern "C" fn(*mut c_void, *mut RawInterp) -> c_int,
    pub(super) close2: unsafe extern "C" fn(*mut c_void, *mut RawInterp, c_int) -> c_int,
    pub(super) input: unsafe extern "C" fn(*mut c_void, *mut c_char, c_int, *mut c_int) -> c_int,
    pub(super) output: unsafe extern "C" fn(*mut c_void, *const c_char, c_int, *mut c_int) -> c_int,
    pub(super) set_option:
        unsafe extern "C" fn(*mut c_void, *mut RawInterp, *const c_char, *const c_char) -> c_int,
    pub(super) get_option:
        unsafe extern "C" fn(*mut c_void, *mut RawInterp, *const c_char, *mut RawOptionList) -> c_int,
    pub(super) watch: unsafe extern "C" fn(*mut c_void, c_int),
    pub(super) get_handle: unsafe extern "C" fn(*mut c_void, c_int, *mut *mut c_void) -> c_int,
    pub(super) block_mode: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    pub(super) thread_action: unsafe extern "C" fn(*mut c_void, c_int),
}

pub(super) const OK: c_int = 0;
pub(super) const ERROR: c_int = 1;

unsafe extern "C" {
    pub(super) fn stcl_init_stubs(interp: *mut RawInterp) -> *const c_char;
    pub(super) safe fn stcl_major_version() -> c_int;
    pub(super) fn stcl_provide(interp: *mut RawInterp, name: *const c_char, version: *const c_char) -> c_int;
    pub(super) fn stcl_create_command(
        interp: *mut RawInterp,
        name: *const c_char,
        command: CommandProc,
        data: *mut c_void,
    );

    pub(super) fn stcl_hide_command(interp: *mut RawInterp, name: *const c_char) -> c_int;

    pub(super) fn stcl_new_string(bytes: *const c_char, length: usize) -> *mut RawObj;
    pub(super) fn stcl_new_wide(value: i64) -> *mut RawObj;
    pub(super) fn stcl_new_list() -> *mut RawObj;
    pub(super) fn stcl_new_dict() -> *mut RawObj;
    pub(super) fn stcl_list_append(list: *mut RawObj, element: *mut RawObj);
    pub(super) fn stcl_dict_put(dict: *mut RawObj, key: *mut RawObj, value: *mut RawObj);
    pub(super) fn stcl_retain(value: *mut RawObj);
    pub(super) fn stcl_release(value: *mut RawObj);
    pub(super) fn stcl_string(value: *mut RawObj, length: *mut usize) -> *const c_char;
    pub(super) fn stcl_get_int(interp: *mut RawInterp, value: *mut RawObj, into: *mut c_int) -> c_int;
    pub(super) fn stcl_get_wide(interp: *mut RawInterp, value: *mut RawObj, into: *mut i64) -> c_int;
    pub(super) fn stcl_get_boolean(interp: *mut RawInterp, value: *mut RawObj, into: *mut c_int) -> c_int;
    pub(super) fn stcl_list_elements(
        interp: *mut RawInterp,
        list: *mut RawObj,
        count: *mut usize,
        elements: *mut *mut *mut RawObj,
    ) -> c_int;

    pub(super) fn stcl_reset_result(interp: *mut RawInterp);
    pub(super) fn stcl_set_result(interp: *mut RawInterp, value: *mut RawObj);
    pub(super) fn stcl_set_error_code(interp: *mut RawInterp, code: *mut RawObj);
    pub(super) fn stcl_posix_error(interp: *mut RawInterp, error: c_int) -> *const c_char;
    pub(super) fn stcl_error_text(error: c_int) -> *const c_char;
    pub(super) fn stcl_error_name(error: c_int) -> *const c_char;
    pub(super) fn stcl_bad_channel_option(
        interp: *mut RawInterp,
        name: *const c_char,
        list: *const c_char,
    ) -> c_int;

    pub(super) fn stcl_global(interp: *mut RawInterp, name: *const c_char) -> *const c_char;
    pub(super) fn stcl_is_deleted(interp: *mut RawInterp) -> c_int;
    pub(super) fn stcl_call_when_deleted(interp: *mut RawInterp, call: InterpDeleteProc, data: *mut c_void);
    pub(super) fn stcl_dont_call_when_deleted(
        interp: *mut RawInterp,
        call: InterpDeleteProc,
        data: *mut c_void,
    );
    pub(super) fn stcl_evaluate_in_background(interp: *mut RawInterp, script: *mut RawObj) -> c_int;
    pub(super) fn stcl_preserve_interp(interp: *mut RawInterp);
    pub(super) fn stcl_release_interp(interp: *mut RawInterp);

    pub(super) fn stcl_channel_type(name: *const c_char, procs: *const ChannelProcs)
    -> *const RawChannelType;
    pub(super) fn stcl_create_channel(
        channel_type: *const RawChannelType,
        name: *const c_char,
        instance: *mut c_void,
        mask: c_int,
    ) -> *mut RawChannel;
    pub(super) fn stcl_on_closing(channel: *mut RawChannel, call: ExitProc, data: *mut c_void);
    pub(super) fn stcl_register_channel(interp: *mut RawInterp, channel: *mut RawChannel);
    pub(super) fn stcl_unregister_channel(interp: *mut RawInterp, channel: *mut RawChannel);
    pub(super) fn stcl_close_channel(channel: *mut RawChannel);
    pub(super) fn stcl_channel_name(channel: *mut RawChannel) -> *const c_char;
    pub(super) fn stcl_set_channel_option(
        channel: *mut RawChannel,
        name: *const c_char,
        value: *const c_char,
    );
    pub(super) fn stcl_notify_channel(channel: *mut RawChannel, mask: c_int);
    pub(super) fn stcl_is_channel_registered(interp: *mut RawInterp, channel: *mut RawChannel) -> c_int;
    pub(super) fn stcl_is_closed_by_script(channel: *mut RawChannel) -> c_int;
    pub(super) fn stcl_buffer_size(channel: *mut RawChannel) -> c_int;

    pub(super) fn stcl_find_channel(
        interp: *mut RawInterp,
        name: *const c_char,
        mask: *mut c_int,
    ) -> *mut RawChannel;
    pub(super) fn stcl_is_channel_existing(name: *const c_char) -> c_int;
    pub(super) fn stcl_is_stacked(channel: *mut RawChannel) -> c_int;
    pub(super) fn stcl_channel_type_name(channel: *mut RawChannel) -> *const c_char;
    pub(super) fn stcl_instance_of(
        channel: *mut RawChannel,
        channel_type: *const RawChannelType,
    ) -> *mut c_void;
    pub(super) fn stcl_descriptor(channel: *mut RawChannel, direction: c_int) -> c_int;
    pub(super) fn stcl_copy_option(
        channel: *mut RawChannel,
        name: *const c_char,
        into: *mut c_char,
        size: usize,
    ) -> c_int;
    pub(super) fn stcl_input_buffered(channel: *mut RawChannel) -> usize;
    pub(super) fn stcl_output_buffered(channel: *mut RawChannel) -> usize;
    pub(super) fn stcl_read(channel: *mut RawChannel, into: *mut c_char, size: c_int) -> i64;
    pub(super) fn stcl_check_write(channel: *mut RawChannel) -> c_int;
    pub(super) fn stcl_write(channel: *mut RawChannel, bytes: *const c_char, size: c_int) -> c_int;
    pub(super) fn stcl_copy_characters(input: *mut RawChannel, output: *mut RawChannel, count: c_int) -> i64;
    pub(super) fn stcl_is_readable(channel: *mut RawChannel) -> c_int;
    pub(super) fn stcl_is_at_end(channel: *mut RawChannel) -> c_int;
    pub(super) fn stcl_flush(channel: *mut RawChannel) -> c_int;
    pub(super) safe fn stcl_errno() -> c_int;
    pub(super) fn stcl_create_channel_handler(
        channel: *mut RawChannel,
        mask: c_int,
        call: ChannelProc,
        data: *mut c_void,
    );
    pub(super) fn stcl_delete_channel_handler(channel: *mut RawChannel, call: ChannelProc, data: *mut c_void);
    pub(super) fn stcl_delete_close_handler(channel: *mut RawChannel, call: ExitProc, data: *mut c_void);
    pub(super) fn stcl_run_command(
        interp: *mut RawInterp,
        name: *const c_char,
        count: c_int,
        words: *const *mut RawObj,
    ) -> c_int;

    pub(super) fn stcl_append(into: *mut RawOptionList, bytes: *const c_char, length: usize);
    pub(super) fn stcl_append_element(into: *mut RawOptionList, element: *const c_char);
    pub(super) fn stcl_start_sublist(into: *mut RawOptionList);
    pub(super) fn stcl_end_sublist(into: *mut RawOptionList);

    pub(super) fn stcl_queue_event(call: QueuedEventProc, target: u64);
    pub(super) fn stcl_create_event_source(setup: EventSourceProc, check: EventSourceProc, data: *mut c_void);
    pub(super) fn stcl_delete_event_source(setup: EventSourceProc, check: EventSourceProc, data: *mut c_void);
    pub(super) fn stcl_create_thread_exit_handler(call: ExitProc, data: *mut c_void);
    pub(super) safe fn stcl_limit_wait(microseconds: u64);
    pub(super) safe fn stcl_skip_wait();
    pub(super) safe fn stcl_start_notifier();
    pub(super) safe fn stcl_learn_file_events(readable: c_int);
    pub(super) safe fn stcl_has_file_events() -> c_int;
    pub(super) safe fn stcl_current_thread() -> *mut c_void;
    pub(super) fn stcl_alert_thread(thread: *mut c_void);
}
