//! Stores every message in one file, and acknowledges it after the write that made it durable.
//!
//! ```text
//!   event loop: receive ─► copy into the open batch
//!                               │ ▲ swap, once the open batch has something in it
//!                               ▼ │
//!   writer:     write the batch ─► send its answers ─► empty it
//! ```
//!
//! Group commit: messages that arrive while one batch is written form the next batch. All answers go through the
//! batches, so an answer to `PING` means that all messages before it are durable.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

use crate::PeerResult;
use crate::log::{BLOCK_SIZE, PreallocatedLog};
use crate::nats::{self, NatsCommand};
use crate::net::{self, PeerConnection, PeerService};

/// Bytes of a batch. Full: clients are not read until it is swapped.
const BATCH_SIZE: usize = 8 * 1024 * 1024;

/// Bytes of a batch's answers. Reached: the batch is full.
const ANSWERS_SIZE_MAX: usize = 4 * 1024 * 1024;

/// Prefix of the subjects of stream requests.
const API: &[u8] = b"$JS.API.";

/// An acknowledgement's payload before and after the sequence; the stream's name is the load generator's default.
const ACK_START: &[u8] = b"{\"stream\":\"events\",\"seq\":";
const ACK_END: &[u8] = b"}";

/// Stores into a file that must not exist yet.
pub(crate) fn run(address: SocketAddr, path: &Path) -> PeerResult {
    let log = PreallocatedLog::create(path)
        .map_err(|error| format!("cannot create {}: {error}", path.display()))?;
    let listener = net::listen(address, None)?;
    net::announce("nats", &listener)?;
    let exchange = Arc::new(BatchExchange {
        batch: Mutex::new(PeerBatch::new()),
        has_work: Condvar::new(),
        has_room: Condvar::new(),
    });
    let (sender, ended) = mpsc::channel();
    thread::spawn({
        let (exchange, sender) = (Arc::clone(&exchange), sender.clone());
        move || sender.send(write(&exchange, log))
    });
    thread::spawn(move || sender.send(net::serve(&listener, &mut DurableService { exchange, sequence: 0 })));
    ended.recv()??;
    Ok(())
}

/// Writes batch after batch; returns only on an error of the file, after which nothing is acknowledged.
fn write(exchange: &BatchExchange, mut log: PreallocatedLog) -> io::Result<()> {
    let mut batch = PeerBatch::new();
    loop {
        exchange.swap(&mut batch);
        log.append(batch.blocks())?;
        batch.send_answers();
    }
}

struct DurableService {
    exchange: Arc<BatchExchange>,
    sequence: u64,
}

impl PeerService for DurableService {
    fn greeting(&self) -> &'static [u8] {
        nats::INFO
    }

    fn receive(&mut self, connection: &mut PeerConnection, input: &[u8]) -> Option<usize> {
        let mut batch = self.exchange.open(input.len());
        let had_work = batch.has_work();
        let consumed = batch.append_messages(connection, input, &mut self.sequence);
        let begins = !had_work && batch.has_work();
        drop(batch);
        if begins {
            self.exchange.has_work.notify_one();
        }
        consumed
    }
}

struct BatchExchange {
    batch: Mutex<PeerBatch>,
    has_work: Condvar,
    has_room: Condvar,
}

impl BatchExchange {
    /// Waits until the open batch has room for the messages of `size` bytes of input, and returns it.
    fn open(&self, size: usize) -> MutexGuard<'_, PeerBatch> {
        let batch = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
        let batch = self.has_room.wait_while(batch, |batch| !batch.has_room(size));
        batch.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the open batch has something in it, and swaps it with an empty one.
    fn swap(&self, empty: &mut PeerBatch) {
        let batch = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
        let batch = self.has_work.wait_while(batch, |batch| !batch.has_work());
        std::mem::swap(&mut *batch.unwrap_or_else(PoisonError::into_inner), empty);
        self.has_room.notify_one();
    }
}

struct ConnectionReplies {
    stream: Arc<TcpStream>,
    bytes: Vec<u8>,
}

/// Messages that become durable together, and their pending answers.
struct PeerBatch {
    /// One block longer than a batch, so that the batch can begin at a block boundary, at `start`.
    memory: Vec<u8>,
    start: usize,
    /// Bytes of records: the payload size in four bytes, then the payload.
    used: usize,
    answers: Vec<ConnectionReplies>,
    answers_size: usize,
}

impl PeerBatch {
    fn new() -> PeerBatch {
        let memory = vec![0; BATCH_SIZE + BLOCK_SIZE];
        let start = memory.as_ptr().addr().wrapping_neg() % BLOCK_SIZE;
        PeerBatch { memory, start, used: 0, answers: Vec::new(), answers_size: 0 }
    }

    fn has_work(&self) -> bool {
        self.used > 0 || self.answers_size > 0
    }

    /// A record is never longer than its command.
    fn has_room(&self, size: usize) -> bool {
        self.used + size <= BATCH_SIZE && self.answers_size < ANSWERS_SIZE_MAX
    }

    /// Appends the complete commands of a client's input and returns their size; `None` if one is malformed.
    fn append_messages(
        &mut self,
        connection: &mut PeerConnection,
        input: &[u8],
        sequence: &mut u64,
    ) -> Option<usize> {
        let mut answers = Vec::new();
        let mut consumed = 0;
        while let Some((command, size)) = nats::next(&input[consumed..]).ok()? {
            consumed += size;
            match command {
                // Without a subscription the client cannot receive an answer.
                NatsCommand::Pub { reply: Some(_), .. } if connection.sid.is_empty() => return None,
                NatsCommand::Pub { subject, reply, .. } if subject.starts_with(API) => {
                    push_state(&mut answers, reply?, &connection.sid, *sequence);
                }
                NatsCommand::Pub { reply, body, .. } => {
                    *sequence += 1;
                    self.push(&body[..body.len() - nats::CRLF.len()]);
                    if let Some(reply) = reply {
                        push_ack(&mut answers, reply, &connection.sid, *sequence);
                    }
                }
                NatsCommand::Sub { sid, .. } => sid.clone_into(&mut connection.sid),
                NatsCommand::Ping => answers.extend_from_slice(nats::PONG),
                NatsCommand::Other => {}
            }
        }
        self.add_answers(&connection.stream, answers);
        Some(consumed)
    }

    fn push(&mut self, payload: &[u8]) {
        let size = payload.len() as u32;
        for piece in [&size.to_le_bytes()[..], payload] {
            self.memory[self.start + self.used..][..piece.len()].copy_from_slice(piece);
            self.used += piece.len();
        }
    }

    /// Adds answers for a client: all of a batch go with one write.
    fn add_answers(&mut self, stream: &Arc<TcpStream>, bytes: Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        self.answers_size += bytes.len();
        let own = self.answers.iter_mut().find(|answers| Arc::ptr_eq(&answers.stream, stream));
        if let Some(own) = own {
            own.bytes.extend_from_slice(&bytes);
        } else {
            self.answers.push(ConnectionReplies { stream: Arc::clone(stream), bytes });
        }
    }

    /// Returns the bytes to write: whole blocks, with zeros after the last record.
    fn blocks(&mut self) -> &[u8] {
        let size = self.used.next_multiple_of(BLOCK_SIZE);
        let blocks = &mut self.memory[self.start..self.start + size];
        blocks[self.used..].fill(0);
        blocks
    }

    /// Sends the answers and empties the batch; closes a client that does not read them in time.
    fn send_answers(&mut self) {
        for ConnectionReplies { stream, bytes } in self.answers.drain(..) {
            if (&*stream).write_all(&bytes).is_err() {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
        (self.answers_size, self.used) = (0, 0);
    }
}

fn push_ack(out: &mut Vec<u8>, reply: &[u8], sid: &[u8], sequence: u64) {
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(sequence).as_bytes();
    nats::push_msg_line(out, reply, sid, ACK_START.len() + digits.len() + ACK_END.len());
    for piece in [ACK_START, digits, ACK_END, nats::CRLF] {
        out.extend_from_slice(piece);
    }
}

/// Appends the answer to the load generator's request for a stream's length.
fn push_state(out: &mut Vec<u8>, reply: &[u8], sid: &[u8], sequence: u64) {
    let state = format!(r#"{{"state":{{"messages":{sequence},"first_seq":1,"last_seq":{sequence}}}}}"#);
    nats::push_msg_line(out, reply, sid, state.len());
    out.extend_from_slice(state.as_bytes());
    out.extend_from_slice(nats::CRLF);
}
