//! The memory in which exchanges of requests change hands: an anonymous file that travels with its message.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use rustix::fs::{MemfdFlags, memfd_create};

use super::control_connection::ControlConnection;
use super::error::HandOverError;
use super::limits::TAKE_PATH_TIMEOUT;
use super::message::HandoverMessage;
use crate::coap::ExchangeHandover;

/// Sends the exchanges of the shards, which receive no more datagrams.
pub(super) fn send(exchanges: &ExchangeHandover, successor: &ControlConnection) -> Result<(), HandOverError> {
    let exchanges = exchanges.take_outgoing();
    if exchanges.is_empty() {
        return Ok(());
    }
    let memory = create(&exchanges)?;
    let message = HandoverMessage::Exchanges { size: exchanges.len() };
    successor.send(&message, &[memory.as_fd()], Instant::now() + TAKE_PATH_TIMEOUT)
}

/// Passes received exchanges to the shards. The message has one descriptor, and bounds the size.
pub(super) fn receive(
    exchanges: &ExchangeHandover,
    memory: Vec<OwnedFd>,
    size: usize,
) -> Result<(), HandOverError> {
    for memory in memory {
        exchanges.set_incoming(read(memory, size)?);
    }
    Ok(())
}

/// An anonymous file with these bytes.
fn create(bytes: &[u8]) -> Result<OwnedFd, HandOverError> {
    let failed = || "store the exchanges for the successor".to_owned();
    let memory =
        memfd_create("stilling-exchanges", MemfdFlags::CLOEXEC).map_err(HandOverError::system(failed()))?;
    let mut file = File::from(memory);
    file.write_all(bytes).map_err(|error| HandOverError::System { doing: failed(), error })?;
    Ok(file.into())
}

/// The first `size` bytes of a received file.
fn read(memory: OwnedFd, size: usize) -> Result<Vec<u8>, HandOverError> {
    let mut bytes = vec![0; size];
    // Not mapped: the other process may cut it short.
    File::from(memory).read_exact_at(&mut bytes, 0).map_err(|error| {
        let doing = "read the exchanges of the old server".to_owned();
        HandOverError::System { doing, error }
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::control_connection::Incoming;
    use super::*;

    #[test]
    fn exchanges_travel_with_their_message() {
        let (old, new) = (ExchangeHandover::default(), ExchangeHandover::default());
        let (from, to) = ControlConnection::pair();
        send(&old, &from).unwrap();
        assert!(matches!(to.try_receive("nothing"), Ok(Incoming::Nothing)), "there are none");
        old.add_outgoing(b"exchanges");
        send(&old, &from).unwrap();
        let incoming = to.try_receive("exchanges").unwrap();
        let Incoming::Received(HandoverMessage::Exchanges { size }, memory) = incoming else {
            panic!("{incoming:?}")
        };
        receive(&new, memory, size).unwrap();
        assert_eq!(new.incoming(), b"exchanges");
    }

    #[test]
    fn bytes_are_read_as_they_were_stored_and_not_beyond() {
        let memory = create(b"exchanges").unwrap();
        let again = memory.try_clone().unwrap();
        assert_eq!(read(memory, 9).unwrap(), b"exchanges");
        assert!(read(again, 10).is_err());
    }
}
