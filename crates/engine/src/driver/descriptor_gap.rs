//! Descriptor numbers that sockets leave to other files.

use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Descriptors for other files of the process, for example those watched with `select`(2), which has no room for
/// descriptors from 1,024 on. A socket that gets one of them is moved behind them.
#[derive(Clone, Debug, Default)]
pub(crate) struct DescriptorGap(pub(crate) Range<RawFd>);

impl DescriptorGap {
    /// The same socket under a descriptor outside of the gap, unless the limit of open files leaves none.
    pub(crate) fn leave(&self, socket: OwnedFd) -> OwnedFd {
        if !self.0.contains(&socket.as_raw_fd()) {
            return socket;
        }
        rustix::io::fcntl_dupfd_cloexec(&socket, self.0.end).unwrap_or(socket)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_socket_leaves_the_gap_where_the_limit_permits() {
        let open = || OwnedFd::from(File::open("/dev/null").expect("it opens"));
        let moved = DescriptorGap(0..700).leave(open());
        assert!(moved.as_raw_fd() >= 700);
        // Below, behind, and without a descriptor behind it.
        for gap in [600..700, 0..1, 0..RawFd::MAX] {
            let socket = open();
            let before = socket.as_raw_fd();
            assert_eq!(DescriptorGap(gap).leave(socket).as_raw_fd(), before);
        }
    }
}
