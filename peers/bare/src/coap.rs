//! Answers each CoAP GET with the same response: recvmmsg(2) waits for requests, sendmmsg(2) sends all answers.

use std::error::Error;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg};
use rustix::net::sockopt::set_socket_recv_buffer_size;

/// Requests per system call; further ones come with the next.
const REQUESTS_PER_CALL: usize = 64;

/// Bytes of a request. Longer: it is not answered.
const REQUEST_SIZE_MAX: usize = 1024;

/// Bytes of a response before the body: header, token, payload marker.
const HEAD_SIZE_MAX: usize = 4 + 8 + 1;

/// Largest body in bytes: one block.
const BODY_SIZE_MAX: usize = 1024;

/// Receive buffer requested in bytes; the system may grant less.
const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;

const VERSION: u8 = 0x40;
const TYPE_MASK: u8 = 0x30;
const NON_CONFIRMABLE: u8 = 0x10;
const ACKNOWLEDGEMENT: u8 = 0x20;
const TOKEN_SIZE_MASK: u8 = 0x0f;
const GET: u8 = 0x01;
const CONTENT: u8 = 0x45;
const PAYLOAD_MARKER: u8 = 0xff;

pub(crate) fn run(address: SocketAddr, size: usize) -> crate::PeerResult {
    serve(&open(address, size)?, &vec![b'x'; size])
}

/// Receives a request, works for a time, answers, and only then receives the next one.
pub(crate) fn run_blocking(address: SocketAddr, size: usize, work: Duration) -> crate::PeerResult {
    let socket = open(address, size)?;
    let (mut request, mut head) = ([0; REQUEST_SIZE_MAX], [0; HEAD_SIZE_MAX]);
    let body = vec![b'x'; size];
    loop {
        let (request_size, from) = socket.recv_from(&mut request)?;
        if let Some(head_size) = answer(&request[..request_size], &mut head, size > 0) {
            std::thread::sleep(work);
            // An answer to a closed port is skipped.
            let _ = socket.send_to(&[&head[..head_size], body.as_slice()].concat(), from);
        }
    }
}

fn open(address: SocketAddr, size: usize) -> Result<UdpSocket, Box<dyn Error>> {
    if size > BODY_SIZE_MAX {
        return Err(format!("a body has at most {BODY_SIZE_MAX} bytes").into());
    }
    let socket = UdpSocket::bind(address)?;
    set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER)?;
    let mut out = io::stdout().lock();
    writeln!(out, "listening coap://{}", socket.local_addr()?)?;
    out.flush()?;
    Ok(socket)
}

fn serve(socket: &UdpSocket, body: &[u8]) -> crate::PeerResult {
    let mut requests = vec![[0u8; REQUEST_SIZE_MAX]; REQUESTS_PER_CALL];
    let mut heads = vec![[0u8; HEAD_SIZE_MAX]; REQUESTS_PER_CALL];
    let mut receive_headers = MultiHeaders::<SockaddrStorage>::preallocate(REQUESTS_PER_CALL, None);
    let mut send_headers = MultiHeaders::<SockaddrStorage>::preallocate(REQUESTS_PER_CALL, None);
    let mut received = Vec::with_capacity(REQUESTS_PER_CALL);
    loop {
        receive(socket, &mut receive_headers, &mut requests, &mut received)?;
        let (mut answers, mut addresses) = (Vec::with_capacity(received.len()), Vec::new());
        for ((head, request), (size, from)) in heads.iter_mut().zip(&requests).zip(&received) {
            if let Some(head_size) = answer(&request[..*size], head, !body.is_empty()) {
                answers.push([IoSlice::new(&head[..head_size]), IoSlice::new(body)]);
                addresses.push(*from);
            }
        }
        let mut sent = 0;
        while sent < answers.len() {
            let (headers, flags) = (&mut send_headers, MsgFlags::empty());
            match sendmmsg(socket.as_raw_fd(), headers, answers[sent..].iter(), &addresses[sent..], [], flags)
            {
                Ok(results) => sent += results.count(),
                Err(Errno::EINTR) => {}
                // An answer to a closed port: that one is skipped.
                Err(_) => sent += 1,
            }
        }
    }
}

/// Waits for requests. Notes the size and the sender of each.
fn receive(
    socket: &UdpSocket,
    headers: &mut MultiHeaders<SockaddrStorage>,
    requests: &mut [[u8; REQUEST_SIZE_MAX]],
    received: &mut Vec<(usize, Option<SockaddrStorage>)>,
) -> io::Result<()> {
    received.clear();
    let mut slices: Vec<_> = requests.iter_mut().map(|request| [IoSliceMut::new(request)]).collect();
    match recvmmsg(socket.as_raw_fd(), headers, slices.iter_mut(), MsgFlags::MSG_WAITFORONE, None) {
        Ok(results) => received.extend(results.map(|message| (message.bytes, message.address))),
        Err(Errno::EINTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Writes header, token and payload marker of the answer. Returns their size; `None` if it is no GET.
fn answer(request: &[u8], head: &mut [u8; HEAD_SIZE_MAX], has_body: bool) -> Option<usize> {
    let &[first, GET, id_high, id_low, ref rest @ ..] = request else { return None };
    let token = rest.get(..usize::from(first & TOKEN_SIZE_MASK))?;
    let kind = match first & TYPE_MASK {
        0 => ACKNOWLEDGEMENT,
        NON_CONFIRMABLE => NON_CONFIRMABLE,
        _ => return None,
    };
    let end = 4 + token.len();
    head[..4].copy_from_slice(&[VERSION | kind | first & TOKEN_SIZE_MASK, CONTENT, id_high, id_low]);
    head.get_mut(4..end)?.copy_from_slice(token);
    *head.get_mut(end)? = PAYLOAD_MARKER;
    Some(end + usize::from(has_body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_id_and_the_token_of_its_request() {
        let mut head = [0; HEAD_SIZE_MAX];
        assert_eq!(answer(b"\x42\x01\x12\x34tk\xb1a", &mut head, true), Some(7));
        assert_eq!(&head[..7], b"\x62\x45\x12\x34tk\xff");
        assert_eq!(answer(b"\x50\x01\x12\x34", &mut head, false), Some(4));
        assert_eq!(&head[..4], b"\x50\x45\x12\x34");
    }

    #[test]
    fn what_is_no_request_is_not_answered() {
        let mut head = [0; HEAD_SIZE_MAX];
        for datagram in
            [&b""[..], b"\x40", b"\x40\x02\0\0", b"\x60\x01\0\0", b"\x48\x01\0\0t", b"\x4f\x01\0\0"]
        {
            assert_eq!(answer(datagram, &mut head, true), None, "{datagram:?}");
        }
    }
}
