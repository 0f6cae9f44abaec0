//! Demo resources that can be observed: they change every few seconds, and when a client changes them.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stilling_ring::Time;
use stilling_wire::coap::{Code, ContentFormat};

use super::answer::Answer;
use super::limits::DEMO_STORED_SIZE_MAX;
use super::request::CoapRequest;

/// How often the resources change.
const CHANGE_INTERVAL: Duration = Duration::from_secs(5);

/// Max-Age of their states in seconds.
const MAX_AGE_SECONDS: u32 = 10;

/// Bytes of `obs-large`.
const LARGE_SIZE: usize = 1700;

/// An observable demo resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum DemoObservable {
    /// Its notifications are confirmable.
    Obs,
    ObsNon,
    /// Its states are longer than a block.
    ObsLarge,
}

impl DemoObservable {
    pub(super) const ALL: [DemoObservable; 3] =
        [DemoObservable::Obs, DemoObservable::ObsNon, DemoObservable::ObsLarge];

    pub(super) fn of(path: &[u8]) -> Option<DemoObservable> {
        Some(match path {
            b"obs" => DemoObservable::Obs,
            b"obs-non" => DemoObservable::ObsNon,
            b"obs-large" => DemoObservable::ObsLarge,
            _ => return None,
        })
    }
}

/// What clients have made of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum ResourceContent {
    /// The number of the change.
    #[default]
    Counter,
    Stored(Vec<u8>, ContentFormat),
    Deleted,
}

#[derive(Debug, Default)]
struct SharedState {
    contents: Mutex<[ResourceContent; DemoObservable::ALL.len()]>,
    /// Changes by clients.
    changes: [AtomicU64; DemoObservable::ALL.len()],
}

/// The resources. Clones share their state: a client of one shard changes what those of others observe.
#[derive(Clone, Debug, Default)]
pub(super) struct DemoObservables(Arc<SharedState>);

impl DemoObservables {
    /// Another number for each state.
    pub(super) fn version(&self, of: DemoObservable, now: Time) -> u64 {
        self.0.changes[of as usize].load(Ordering::Acquire) << 32 | change_number(now)
    }

    /// Writes the state at this time.
    pub(super) fn write_state(&self, of: DemoObservable, now: Time, answer: &mut Answer) {
        match &self.contents()[of as usize] {
            ResourceContent::Counter => {
                // Writing to a vector does not fail.
                let _ = write!(answer.text(Code::CONTENT, b"").body, "change {}", change_number(now));
                if of == DemoObservable::ObsLarge {
                    answer.body.resize(LARGE_SIZE, b'.');
                }
            }
            ResourceContent::Stored(body, format) => {
                answer.text(Code::CONTENT, body).format = Some(*format);
            }
            ResourceContent::Deleted => {
                answer.start(Code::NOT_FOUND);
                return;
            }
        }
        answer.max_age = Some(MAX_AGE_SECONDS);
    }

    pub(super) fn respond(
        &self,
        of: DemoObservable,
        request: &CoapRequest<'_>,
        now: Time,
        answer: &mut Answer,
    ) {
        match request.code {
            Code::GET => return self.write_state(of, now, answer),
            Code::PUT if request.payload.len() > DEMO_STORED_SIZE_MAX => {
                let too_large = answer.start(Code::REQUEST_ENTITY_TOO_LARGE);
                too_large.size1 = Some(DEMO_STORED_SIZE_MAX as u32);
                return;
            }
            Code::PUT => {
                let format = request.format.unwrap_or(ContentFormat::TEXT);
                let content = ResourceContent::Stored(request.payload.to_vec(), format);
                let old = std::mem::replace(&mut self.contents()[of as usize], content);
                let is_new = old == ResourceContent::Deleted;
                answer.start(if is_new { Code::CREATED } else { Code::CHANGED });
            }
            Code::DELETE => {
                self.contents()[of as usize] = ResourceContent::Deleted;
                answer.start(Code::DELETED);
            }
            _ => {
                answer.start(Code::METHOD_NOT_ALLOWED);
                return;
            }
        }
        self.0.changes[of as usize].fetch_add(1, Ordering::Release);
    }

    fn contents(&self) -> MutexGuard<'_, [ResourceContent; DemoObservable::ALL.len()]> {
        self.0.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn change_number(now: Time) -> u64 {
    now.as_nanos() / CHANGE_INTERVAL.as_nanos() as u64
}
