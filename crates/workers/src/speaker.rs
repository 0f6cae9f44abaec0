//! A job that says more than one thing: pieces of a long answer, or a wish for more of a long question.
//!
//! ```text
//!   job (worker thread)                       session (shard)
//!   say(part 1 with the Reply) ── lane ─────► delivered: Outcome::Part
//!   waits                      ◄─ mailbox ─── Reply::send(…), when it can take more
//!   say(part 2)                ── lane ─────► …
//!   returns                    ── lane ─────► Outcome::Done
//! ```
//!
//! The two alternate strictly, so at most one part is under way: memory stays bounded however long the answer is,
//! and the lane, which has two places for each job, always has room. The job waits as long as the other side
//! lives: a session that goes away drops its [`Reply`], and that is an answer, too. The shard neither locks nor
//! waits: a reply is a push into a mailbox of one place and, if the thread sleeps, one system call.

use std::fmt;
use std::thread::{self, Thread};
use std::time::Duration;

use stilling_ring::sync::Arc;
use stilling_ring::{Receiver, Sender, mailbox};

use crate::core::Core;
use crate::running::Outcome;

/// How long a waiting job sleeps before it looks whether its lane still exists.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A job's right to speak before its result. Small and cheap, for jobs that rarely need it.
pub struct Speaker<R> {
    core: Arc<Core<R>>,
    lane: usize,
    ticket: u64,
}

impl<R> Speaker<R> {
    pub(crate) fn new(core: Arc<Core<R>>, lane: usize, ticket: u64) -> Speaker<R> {
        Speaker { core, lane, ticket }
    }

    /// Begins to speak. The first part has to carry the [`Reply`] to the other side.
    #[must_use]
    pub fn begin<Q>(self) -> (Conversation<R, Q>, Reply<Q>) {
        let (sender, replies) = mailbox(1);
        let reply = Reply { sender: Some(sender), listener: thread::current() };
        (Conversation { speaker: self, replies, is_over: false }, reply)
    }
}

/// The job's side. Belongs to the thread that began it.
pub struct Conversation<R, Q> {
    speaker: Speaker<R>,
    replies: Receiver<Q>,
    is_over: bool,
}

impl<R, Q> Conversation<R, Q> {
    /// Whether anybody still listens, as far as is known: for a job that may have to wait long for its next part.
    #[must_use]
    pub fn is_heard(&self) -> bool {
        let Speaker { core, lane, .. } = &self.speaker;
        !self.is_over && !self.replies.is_closed() && !core.is_abandoned(*lane)
    }

    /// Delivers `part` and waits for the reply. `None`: nobody listens any more, and never will.
    pub fn say(&mut self, part: R) -> Option<Q> {
        if self.is_over {
            return None;
        }
        let Speaker { core, lane, ticket } = &self.speaker;
        core.deliver(*lane, *ticket, Outcome::Part(part));
        loop {
            // Closed is asked first: what was sent before is found behind it.
            let is_closed = self.replies.is_closed() || core.is_abandoned(*lane);
            if let Some(reply) = self.replies.pop() {
                return Some(reply);
            }
            if is_closed {
                self.is_over = true;
                return None;
            }
            thread::park_timeout(LOOK_AGAIN);
        }
    }
}

/// The session's side: one reply to each part. Dropping it ends the conversation.
pub struct Reply<Q> {
    sender: Option<Sender<Q>>,
    listener: Thread,
}

impl<Q> Reply<Q> {
    /// Answers the last part.
    ///
    /// # Errors
    /// The reply comes back: it was the second one to the same part.
    pub fn send(&mut self, reply: Q) -> Result<(), Q> {
        // There is a sender until the drop.
        let Some(sender) = &mut self.sender else { return Err(reply) };
        sender.push(reply).map_err(|full| full.0)?;
        sender.publish();
        self.listener.unpark();
        Ok(())
    }
}

impl<Q> fmt::Debug for Reply<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reply(..)")
    }
}

impl<Q> Drop for Reply<Q> {
    fn drop(&mut self) {
        self.sender = None;
        self.listener.unpark();
    }
}
