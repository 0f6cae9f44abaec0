//! The socket of a source, lent for system calls.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A source's socket as an ordinary descriptor, for the time of this value: see
/// [`Driver::descriptor`](super::Driver::descriptor).
#[derive(Debug)]
pub enum SourceDescriptor<'a> {
    /// The source's own descriptor.
    Borrowed(BorrowedFd<'a>),
    /// A descriptor created for a source with a direct descriptor; it closes with this value.
    Owned(OwnedFd),
}

impl AsFd for SourceDescriptor<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            SourceDescriptor::Borrowed(fd) => *fd,
            SourceDescriptor::Owned(fd) => fd.as_fd(),
        }
    }
}
