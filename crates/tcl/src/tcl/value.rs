//! Values and the words of a command.

use std::borrow::Cow;
use std::ffi::c_int;
use std::marker::PhantomData;

use super::ffi::{self, RawObj};
use super::{CommandFailed, CommandResult, Interp, encoding, is_tcl_9};

/// A reference to a Tcl value.
#[derive(Debug)]
pub(crate) struct Value(*mut RawObj);

impl Value {
    pub(super) fn retained(raw: *mut RawObj) -> Self {
        // SAFETY: the caller has a live value.
        unsafe { ffi::stcl_retain(raw) };
        Value(raw)
    }

    pub(super) fn as_raw(&self) -> *mut RawObj {
        self.0
    }

    pub(crate) fn text(text: &str) -> Self {
        Self::from_internal_bytes(&encoding::to_internal(text, is_tcl_9()))
    }

    /// A value of text in Tcl's own encoding.
    fn from_internal_bytes(bytes: &[u8]) -> Self {
        // SAFETY: Tcl copies the bytes.
        Self::retained(unsafe { ffi::stcl_new_string(bytes.as_ptr().cast(), bytes.len()) })
    }

    pub(crate) fn integer(value: i64) -> Self {
        // SAFETY: no precondition.
        Self::retained(unsafe { ffi::stcl_new_wide(value) })
    }

    pub(crate) fn list(elements: impl IntoIterator<Item = Value>) -> Self {
        // SAFETY: no precondition.
        let list = Self::retained(unsafe { ffi::stcl_new_list() });
        for element in elements {
            // SAFETY: the list is new and not shared; it takes a reference of its own to the element.
            unsafe { ffi::stcl_list_append(list.0, element.0) };
        }
        list
    }

    pub(crate) fn dict<'a>(entries: impl IntoIterator<Item = (&'a str, Value)>) -> Self {
        // SAFETY: no precondition.
        let dict = Self::retained(unsafe { ffi::stcl_new_dict() });
        for (key, value) in entries {
            // SAFETY: the dictionary is new and not shared.
            unsafe { ffi::stcl_dict_put(dict.0, Value::text(key).0, value.0) };
        }
        dict
    }

    fn bytes(&self) -> &[u8] {
        let mut length = 0;
        // SAFETY: a live value; its string is unchanged as long as the reference is borrowed, because this code
        // changes no value after its creation, and Tcl changes only values that are not shared.
        unsafe {
            let bytes = ffi::stcl_string(self.0, &raw mut length);
            std::slice::from_raw_parts(bytes.cast(), length)
        }
    }

    pub(crate) fn to_text(&self) -> Cow<'_, str> {
        encoding::from_internal(self.bytes())
    }

    /// This script with words appended, for evaluation.
    pub(crate) fn with_words(&self, words: &[&str]) -> Value {
        let mut script = self.bytes().to_vec();
        for word in words {
            script.push(b' ');
            script.extend_from_slice(&encoding::to_internal(word, is_tcl_9()));
        }
        Value::from_internal_bytes(&script)
    }

    /// The value as an integer; the error's message goes to the interpreter, if there is one.
    pub(crate) fn to_integer(&self, interp: Option<Interp>) -> Result<i32, CommandFailed> {
        let mut value = 0;
        // SAFETY: live arguments; a null interpreter is permitted.
        let code = unsafe { ffi::stcl_get_int(raw_interp(interp), self.0, &raw mut value) };
        if code == ffi::OK { Ok(value) } else { Err(CommandFailed) }
    }

    /// The value as an integer of 64 bits, if it is one.
    pub(crate) fn to_wide(&self) -> Option<i64> {
        let mut value = 0;
        // SAFETY: live arguments; a null interpreter is permitted.
        let code = unsafe { ffi::stcl_get_wide(std::ptr::null_mut(), self.0, &raw mut value) };
        (code == ffi::OK).then_some(value)
    }

    /// The value as a boolean; the error's message goes to the interpreter, if there is one.
    pub(crate) fn to_boolean(&self, interp: Option<Interp>) -> Result<bool, CommandFailed> {
        let mut value = 0;
        // SAFETY: live arguments; a null interpreter is permitted.
        let code = unsafe { ffi::stcl_get_boolean(raw_interp(interp), self.0, &raw mut value) };
        if code == ffi::OK { Ok(value != 0) } else { Err(CommandFailed) }
    }

    /// The elements of a list.
    pub(crate) fn elements(&self, interp: Option<Interp>) -> Result<Vec<Value>, CommandFailed> {
        let (mut count, mut elements) = (0, std::ptr::null_mut());
        // SAFETY: live arguments; the elements are valid until the list changes, and are retained at once.
        unsafe {
            if ffi::stcl_list_elements(raw_interp(interp), self.0, &raw mut count, &raw mut elements)
                != ffi::OK
            {
                return Err(CommandFailed);
            }
            if count == 0 {
                return Ok(Vec::new());
            }
            Ok(std::slice::from_raw_parts(elements, count).iter().map(|&raw| Value::retained(raw)).collect())
        }
    }
}

pub(super) fn raw_interp(interp: Option<Interp>) -> *mut ffi::RawInterp {
    interp.map_or(std::ptr::null_mut(), |interp| interp.0.as_ptr())
}

impl Clone for Value {
    fn clone(&self) -> Self {
        Self::retained(self.0)
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: this reference was retained, and is not used again.
        unsafe { ffi::stcl_release(self.0) };
    }
}

/// The words of a command, its name first.
pub(crate) struct Words<'a> {
    raw: &'a [*mut RawObj],
    _borrowed: PhantomData<&'a RawObj>,
}

impl<'a> Words<'a> {
    /// # Safety
    /// `words` points to `count` values that live as long as the result.
    pub(super) unsafe fn from_raw(words: *const *mut RawObj, count: c_int) -> Self {
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: the caller's promise.
        let raw = if count == 0 { &[][..] } else { unsafe { std::slice::from_raw_parts(words, count) } };
        Words { raw, _borrowed: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.raw.len()
    }

    pub(crate) fn get(&self, at: usize) -> Option<Value> {
        self.raw.get(at).map(|&raw| Value::retained(raw))
    }

    /// The text of a word; empty if it is absent.
    pub(crate) fn text(&self, at: usize) -> String {
        self.get(at).map_or_else(String::new, |value| value.to_text().into_owned())
    }

    /// Runs the implementation of the command `name` with these words; `None`: there is no such command.
    pub(crate) fn run_command(&self, interp: Interp, name: &std::ffi::CStr) -> Option<CommandResult> {
        let count = c_int::try_from(self.raw.len()).ok()?;
        // SAFETY: live arguments, which the words' borrow keeps.
        let code =
            unsafe { ffi::stcl_run_command(interp.0.as_ptr(), name.as_ptr(), count, self.raw.as_ptr()) };
        match code {
            ffi::OK => Some(Ok(())),
            -1 => None,
            _ => Some(Err(CommandFailed)),
        }
    }

    /// The first word as it stands in messages about wrong arguments.
    pub(crate) fn command_name(&self) -> String {
        self.text(0)
    }
}
