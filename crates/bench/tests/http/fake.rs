//! A faulty server: a listener, a thread per connection, and responses from the test.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

#[derive(Clone, Copy, Debug)]
pub(crate) enum FakeResponse {
    Bytes(&'static [u8]),
    /// These bytes, each in a packet of its own.
    Slowly(&'static [u8]),
    /// These bytes, then the end of the connection.
    AndClose(&'static [u8]),
    /// No response; the connection stays open.
    Never,
    /// Closes with the request unread, which resets the connection.
    Reset,
}

/// A running fake, stopped on drop.
pub(crate) struct FakeHttpServer {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    sources: Arc<Mutex<Vec<IpAddr>>>,
    thread: Option<JoinHandle<()>>,
}

impl FakeHttpServer {
    /// Starts a server that gives the responses in turn, and repeats the last one.
    pub(crate) fn start(answers: &[FakeResponse]) -> FakeHttpServer {
        let answers: Arc<[FakeResponse]> = answers.into();
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let over = Arc::new(AtomicBool::new(false));
        let sources: Arc<Mutex<Vec<IpAddr>>> = Arc::default();
        let (stop, seen) = (Arc::clone(&over), Arc::clone(&sources));
        let thread = std::thread::spawn(move || {
            let asked = Arc::new(AtomicU64::new(0));
            while let Ok((stream, from)) = listener.accept() {
                if stop.load(Ordering::Acquire) {
                    break;
                }
                seen.lock().expect("nobody panics with it").push(from.ip());
                let (answers, asked) = (Arc::clone(&answers), Arc::clone(&asked));
                std::thread::spawn(move || serve(stream, &answers, &asked));
            }
        });
        FakeHttpServer { address, over, sources, thread: Some(thread) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn sources(&self) -> Vec<IpAddr> {
        self.sources.lock().expect("nobody panics with it").clone()
    }
}

impl Drop for FakeHttpServer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        // The connection wakes the thread from its accept.
        if TcpStream::connect(self.address).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

/// Answers the requests of one connection until the client closes it.
fn serve(mut stream: TcpStream, answers: &[FakeResponse], asked: &AtomicU64) {
    let _ = stream.set_nodelay(true);
    loop {
        // A request is checked before it is read.
        if !stream.peek(&mut [0]).is_ok_and(|count| count > 0) {
            return;
        }
        let at = asked.fetch_add(1, Ordering::AcqRel) as usize;
        let answer = answers[at.min(answers.len() - 1)];
        if matches!(answer, FakeResponse::Reset) || read_head(&mut stream).is_none() {
            return;
        }
        let outcome = match answer {
            FakeResponse::Bytes(bytes) => stream.write_all(bytes),
            FakeResponse::Slowly(bytes) => bytes.iter().try_for_each(|byte| stream.write_all(&[*byte])),
            FakeResponse::AndClose(bytes) => {
                let _ = stream.write_all(bytes);
                return;
            }
            FakeResponse::Never | FakeResponse::Reset => Ok(()),
        };
        if outcome.is_err() {
            return;
        }
    }
}

/// Reads up to the empty line, byte by byte so that the next request stays unread.
fn read_head(stream: &mut TcpStream) -> Option<()> {
    let mut last = [0; 4];
    while &last != b"\r\n\r\n" {
        last.rotate_left(1);
        stream.read_exact(&mut last[3..]).ok()?;
    }
    Some(())
}
