//! The lowest descriptor number of sockets.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Keeps the descriptors below a number free for files that are watched with `select`(2), which has no room for
/// descriptors from 1,024 on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DescriptorFloor(pub(crate) RawFd);

impl DescriptorFloor {
    /// The same socket under a descriptor of at least this number, unless the limit of open files leaves none.
    pub(crate) fn raise(self, socket: OwnedFd) -> OwnedFd {
        if socket.as_raw_fd() >= self.0 {
            return socket;
        }
        rustix::io::fcntl_dupfd_cloexec(&socket, self.0).unwrap_or(socket)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_descriptor_is_raised_where_the_limit_permits() {
        let open = || OwnedFd::from(File::open("/dev/null").expect("it opens"));
        let raised = DescriptorFloor(700).raise(open());
        assert!(raised.as_raw_fd() >= 700);
        let kept = DescriptorFloor(RawFd::MAX).raise(open());
        assert!(kept.as_raw_fd() < 700);
    }
}
