//! A small world of subscribers that read everything, little or nothing, and a shard with little room for unread
//! output. A disconnected subscriber must hold more than its share, and not much less than any other. The others
//! receive every message; a disconnected one receives whole messages and then the last message.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use stilling_engine::{CloseReason, Io, Recipient, Service, Session, ShardConfig, Token};

use crate::SplitMix64;
use crate::network::SimPeer;
use crate::report::{SeedFailure, attempt};
use crate::single_shard::{SingleShard, read};

/// Bytes that the network holds per direction.
const BUFFER: usize = 5000;
/// Longest block of the output store as a multiple of its content, the smallest block excepted.
const BLOCK_WASTE: usize = 4;
/// Bytes of the smallest block of the output store.
const BLOCK_MIN: usize = 256;
const STEPS: u32 = 150;
/// Bytes of a message's head: its length and its number.
const HEAD: usize = 8;
const LAST_MESSAGE: [u8; HEAD] = [8, 0, 0, 0, 255, 255, 255, 255];

/// Result of a world without failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnreadReport {
    /// Subscribers disconnected because the shared budget was exhausted.
    pub disconnected: u32,
    /// Of `disconnected`: subscribers that received the last message.
    pub got_last_message: u32,
    /// Subscribers disconnected for exceeding their own limit.
    pub too_slow: u32,
    /// Subscribers that received every message.
    pub served: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct ByteAccount {
    sent: usize,
    read: usize,
    is_disconnected: bool,
    is_too_slow: bool,
}

impl ByteAccount {
    fn unread(&self) -> usize {
        if self.is_disconnected { 0 } else { self.sent - self.read }
    }
}

/// State shared by the sessions: tokens, and what is to be sent.
struct UnreadService {
    tokens: Vec<Token>,
    mail: VecDeque<(Token, Vec<usize>)>,
    accounts: Rc<RefCell<Vec<ByteAccount>>>,
    budget: usize,
    finding: Option<String>,
}

struct UnreadSession {
    number: usize,
    messages: u32,
}

impl Service for UnreadService {
    type Session = UnreadSession;
    type Mail = Vec<usize>;

    fn accepted(&mut self, _listener: u32) -> UnreadSession {
        UnreadSession { number: self.tokens.len(), messages: 0 }
    }

    fn next_mail(&mut self) -> Option<(Recipient, Vec<usize>)> {
        self.mail.pop_front().map(|(token, sizes)| (token.into(), sizes))
    }

    fn has_mail(&self) -> bool {
        !self.mail.is_empty()
    }
}

impl UnreadService {
    /// Checks that disconnecting this subscriber for the shared budget is justified; returns the finding.
    fn check_accounts(&self, number: usize) -> Option<String> {
        let accounts = self.accounts.borrow();
        let held_max = accounts[number].unread();
        // A disconnected subscriber may still hold the end of a message.
        let holders = accounts.iter().filter(|one| one.unread() > 0 || one.is_disconnected).count().max(1);
        let block_max = (held_max * BLOCK_WASTE).max(BLOCK_MIN);
        if block_max * holders < self.budget {
            return Some(format!(
                "{number} was disconnected within its share: it holds {held_max} bytes, {holders} connections hold output"
            ));
        }
        let most = accounts.iter().map(|account| account.unread().saturating_sub(BUFFER)).max();
        let most = most.unwrap_or_default();
        (most > block_max)
            .then(|| format!("{number} was disconnected with {held_max} bytes; another holds {most}"))
    }
}

impl Session for UnreadSession {
    type Service = UnreadService;

    fn opened(&mut self, io: &mut Io<'_>, service: &mut UnreadService) {
        io.set_send_max(1 << 20);
        let token = io.token();
        service.tokens.push(token);
    }

    fn received(&mut self, bytes: &[u8], _: &mut Io<'_>, _: &mut UnreadService) -> usize {
        bytes.len()
    }

    fn delivered(&mut self, sizes: Vec<usize>, io: &mut Io<'_>, service: &mut UnreadService) {
        for size in sizes {
            if io.is_finishing() {
                return;
            }
            let mut message = vec![b'x'; size];
            message[..4].copy_from_slice(&(size as u32).to_le_bytes());
            message[4..HEAD].copy_from_slice(&self.messages.to_le_bytes());
            self.messages += 1;
            if size > io.room() || io.send(&message).is_err() {
                service.accounts.borrow_mut()[self.number].is_too_slow = true;
                return io.end_slow_consumer();
            }
            service.accounts.borrow_mut()[self.number].sent += size;
        }
    }

    fn message_len(&self, bytes: &[u8]) -> Option<usize> {
        Some(u32::from_le_bytes(*bytes.first_chunk()?) as usize)
    }

    fn slow_consumer(&mut self, service: &mut UnreadService) -> &'static [u8] {
        if !service.accounts.borrow()[self.number].is_too_slow && service.finding.is_none() {
            service.finding = service.check_accounts(self.number);
        }
        service.accounts.borrow_mut()[self.number].is_disconnected = true;
        &LAST_MESSAGE
    }

    fn closed(&mut self, reason: CloseReason, service: &mut UnreadService) {
        let is_disconnected = service.accounts.borrow()[self.number].is_disconnected;
        if is_disconnected != (reason == CloseReason::SlowConsumer) && reason != CloseReason::PeerClosed {
            service.finding.get_or_insert(format!("{} is closed for {reason:?}", self.number));
        }
    }
}

/// Runs the world of `seed`.
///
/// # Errors
/// The failure found.
pub fn run(seed: u64) -> Result<UnreadReport, SeedFailure> {
    attempt(seed, || play(&mut SplitMix64::new(seed)))
}

/// Reads to the end, or until nothing more arrives. `account` receives the total read.
fn read_rest(
    world: &mut SingleShard<UnreadService>,
    peer: &mut SimPeer,
    received: &mut Vec<u8>,
    account: impl Fn(usize),
) {
    loop {
        let (bytes, is_end) = read(peer, usize::MAX);
        received.extend_from_slice(&bytes);
        account(received.len());
        world.run_turns();
        if is_end || bytes.is_empty() {
            break;
        }
    }
}

fn play(random: &mut SplitMix64) -> Result<UnreadReport, String> {
    let budget = 1 << random.between(17, 20);
    let count = random.between(3, 20) as usize;
    let accounts = Rc::new(RefCell::new(vec![ByteAccount::default(); count]));
    let service = UnreadService {
        tokens: Vec::new(),
        mail: VecDeque::new(),
        accounts: Rc::clone(&accounts),
        budget,
        finding: None,
    };
    let config = ShardConfig { capacity: 100, output_bytes_max: budget, ..ShardConfig::default() };
    let mut world = SingleShard::new(service, config, BUFFER);
    let mut peers: Vec<SimPeer> = (0..count).map(|_| world.client()).collect();
    let mut received = vec![Vec::new(); count];
    // Most bytes per read; 0: never reads.
    let read_maxima: Vec<usize> = (0..count).map(|_| [0, 3000, usize::MAX][random.index(3)]).collect();
    let size_max = 1 << random.between(5, 16);
    for _ in 0..STEPS {
        // One action per step keeps the amount held by each subscriber known.
        let number = random.index(count);
        if random.chance(400) {
            let (bytes, _) = read(&mut peers[number], read_maxima[number]);
            received[number].extend_from_slice(&bytes);
            accounts.borrow_mut()[number].read = received[number].len();
        } else {
            let sizes = (0..random.between(1, 30)).map(|_| random.between(HEAD as u64, size_max) as usize);
            let mail = (world.service().tokens[number], sizes.collect());
            world.service().mail.push_back(mail);
        }
        world.run_turns();
        if let Some(finding) = world.service().finding.take() {
            return Err(finding);
        }
        let held_bytes = world.shard.held_bytes().1;
        if held_bytes > budget {
            return Err(format!("{held_bytes} bytes are held"));
        }
    }
    let mut report = UnreadReport::default();
    for (number, peer) in peers.iter_mut().enumerate() {
        read_rest(&mut world, peer, &mut received[number], |read| accounts.borrow_mut()[number].read = read);
        report.count(&accounts.borrow()[number], &received[number])?;
    }
    drop(peers);
    world.run_turns();
    if let Some(finding) = world.service().finding.take() {
        return Err(finding);
    }
    match world.shard.held_bytes() {
        (0, 0) => Ok(report),
        held_bytes => Err(format!("{held_bytes:?} bytes are held for no connection")),
    }
}

impl UnreadReport {
    /// Checks what a subscriber received: whole messages in order, complete unless it was disconnected.
    fn count(&mut self, account: &ByteAccount, received: &[u8]) -> Result<(), String> {
        let (mut at, mut number) = (0, 0_u32);
        let mut has_last_message = false;
        while let Some(head) = received.get(at..).and_then(<[u8]>::first_chunk::<HEAD>) {
            if has_last_message {
                return Err("something follows the last message".to_owned());
            }
            has_last_message = *head == LAST_MESSAGE;
            let [length @ .., _, _, _, _] = *head;
            if !has_last_message && head[4..] != number.to_le_bytes() {
                return Err(format!("message {number} is missing"));
            }
            (at, number) = (at + u32::from_le_bytes(length) as usize, number + 1);
        }
        if !account.is_disconnected {
            self.served += 1;
            return match received.len() == account.sent {
                true => Ok(()),
                false => Err(format!("{} of {} bytes arrived", received.len(), account.sent)),
            };
        }
        if has_last_message && at != received.len() {
            return Err("the last message is cut".to_owned());
        }
        match account.is_too_slow {
            true => self.too_slow += 1,
            false => self.disconnected += 1,
        }
        self.got_last_message += u32::from(has_last_message);
        Ok(())
    }
}
