//! A client that observes a resource of the server that changes every five seconds. It ends observations, and is deaf
//! for a time.

use std::time::{Duration, Instant};

use stilling_client::coap::{
    CoapClientConfig, CoapClientCore, CoapClientEvent, CoapRequest, CoapResponse, CoapUrl,
};
use stilling_ring::Time;
use stilling_wire::coap::Code;

use super::CoapTotals;
use super::conversation::Conversation;
use super::parameters::ObserverParameters;
use crate::SplitMix64;
use crate::network::{Network, SimDatagramPeer};

/// How often the resources change.
const CHANGE_INTERVAL: Duration = Duration::from_secs(5);

/// Bytes of a state of the resource with long states.
const LONG_STATE_SIZE: usize = 1700;

/// Changes that each observer must get once faults have stopped.
const LAST_CHANGES: u32 = 5;

/// Longest time of an observation before it is ended or its client is deaf, in milliseconds.
const OBSERVATION_MS_MAX: u64 = 60_000;

/// What an observer sees of the world during a step.
pub(super) struct ObserverContext<'a> {
    pub(super) now: Time,
    pub(super) totals: &'a mut CoapTotals,
    /// Faults have not stopped: observations are ended, and observers are deaf.
    pub(super) has_faults: bool,
    /// Faults and their consequences have ended.
    pub(super) is_calm: bool,
}

/// See the [module](self).
pub(super) struct SimulatedObserver {
    parameters: ObserverParameters,
    random: SplitMix64,
    peer: SimDatagramPeer,
    core: CoapClientCore,
    /// The client's clock at the start of the world.
    origin: Instant,
    conversation: Conversation,
    /// When it registers next; `None` while it observes.
    registers_at: Option<Time>,
    /// When it ends the observation, or is deaf.
    interrupts_at: Time,
    /// It ignores what arrives before this time.
    deaf_until: Time,
    /// The number of the last change that it got since faults have stopped.
    last_change: Option<u64>,
    /// Changes that it got since then, one after the other.
    changes: u32,
}

impl SimulatedObserver {
    pub(super) fn new(
        parameters: ObserverParameters,
        network: &Network,
        mut random: SplitMix64,
    ) -> SimulatedObserver {
        let core = CoapClientCore::new(CoapClientConfig::default(), random.bits());
        let mut observer = SimulatedObserver {
            parameters,
            peer: network.bind_as_peer(parameters.address),
            core,
            origin: Instant::now(),
            conversation: Conversation::default(),
            registers_at: Some(Time::ZERO.after(Duration::from_millis(random.below(5000)))),
            interrupts_at: Time::ZERO,
            deaf_until: Time::ZERO,
            last_change: None,
            changes: 0,
            random,
        };
        observer.interrupts_at = observer.later(Time::ZERO);
        observer
    }

    pub(super) fn is_done(&self) -> bool {
        self.changes >= LAST_CHANGES
    }

    pub(super) fn describe(&self) -> String {
        let SimulatedObserver { parameters, registers_at, last_change, .. } = self;
        format!(
            "observer of {} at {}: {} changes, last {last_change:?}, registers at {registers_at:?}",
            parameters.path, parameters.address, self.changes
        )
    }

    fn later(&mut self, now: Time) -> Time {
        now.after(Duration::from_millis(self.random.between(1, OBSERVATION_MS_MAX)))
    }

    /// When [`step`](Self::step) is due.
    pub(super) fn wake_at(&self, has_faults: bool) -> Option<Time> {
        let timer = self.core.next_timer();
        let timer = timer.map(|at| Time::ZERO.after(at.saturating_duration_since(self.origin)));
        let interrupt = has_faults.then_some(self.interrupts_at);
        timer.into_iter().chain(self.registers_at).chain(interrupt).min()
    }

    /// Receives and sends what is possible at this time. Returns whether there was anything.
    pub(super) fn step(&mut self, context: &mut ObserverContext<'_>) -> Result<bool, String> {
        self.advance(context).map_err(|why| format!("{why}; {}", self.describe()))
    }

    fn advance(&mut self, context: &mut ObserverContext<'_>) -> Result<bool, String> {
        let now = self.origin + Duration::from_nanos(context.now.as_nanos());
        let mut any = false;
        while let Some((from, datagram)) = self.peer.receive() {
            any = true;
            if from != self.parameters.server {
                return Err(format!("a datagram from {from}"));
            }
            self.conversation.check(&datagram, context.now)?;
            if !context.has_faults || context.now >= self.deaf_until {
                self.core.handle_datagram(&datagram, now);
                self.flush(context)?;
            }
        }
        if self.core.next_timer().is_some_and(|at| at <= now) {
            any = true;
            self.core.handle_timer(now);
        }
        if self.registers_at.is_some_and(|at| at <= context.now) {
            any = true;
            self.registers_at = None;
            self.core.observe(self.request(), now);
        }
        if context.has_faults && self.interrupts_at <= context.now {
            any = true;
            self.interrupt(context.now, now);
        }
        self.flush(context)?;
        Ok(any)
    }

    /// Ends the observation, or is deaf for a time.
    fn interrupt(&mut self, time: Time, now: Instant) {
        self.interrupts_at = self.later(time);
        if self.random.chance(500) {
            self.deaf_until = self.later(time);
        } else if self.registers_at.is_none() && self.core.end_observation(now) {
            self.registers_at = Some(self.later(time));
        }
    }

    fn request(&self) -> CoapRequest {
        let url = CoapUrl {
            host: "10.0.0.1".to_owned(),
            port: 5683,
            path: vec![self.parameters.path.to_owned()],
            query: Vec::new(),
        };
        CoapRequest::new(Code::GET, &url)
    }

    /// Sends the messages of the core, and handles its events.
    fn flush(&mut self, context: &mut ObserverContext<'_>) -> Result<(), String> {
        while let Some(datagram) = self.core.poll_transmit() {
            self.conversation.note_sent(&datagram);
            // A datagram of the core is never too long for the network.
            let _ = self.peer.send(self.parameters.server, &datagram);
        }
        while let Some(event) = self.core.poll_event() {
            match event {
                CoapClientEvent::Notification(response) => self.check_state(&response, context)?,
                // The end of an observation, a refusal, or a failure that faults explain.
                CoapClientEvent::Response(_) | CoapClientEvent::Failed(_) => {
                    if self.registers_at.is_none() {
                        self.registers_at = Some(context.now.after(CHANGE_INTERVAL));
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks the bytes of a state; without faults, that none is missing.
    fn check_state(
        &mut self,
        response: &CoapResponse,
        context: &mut ObserverContext<'_>,
    ) -> Result<(), String> {
        let wrong = || format!("a notification {} {}", response.code, response.payload.escape_ascii());
        let is_long = self.parameters.path == "obs-large";
        let text = std::str::from_utf8(&response.payload).map_err(|_| wrong())?;
        let number = text.trim_end_matches('.').strip_prefix("change ").and_then(|text| text.parse().ok());
        let number: u64 = number.ok_or_else(wrong)?;
        let size = if is_long { LONG_STATE_SIZE } else { text.trim_end_matches('.').len() };
        let current = context.now.as_nanos() / CHANGE_INTERVAL.as_nanos() as u64;
        if number > current || text.len() != size || !response.code.is_success() {
            return Err(wrong());
        }
        context.totals.notifications += 1;
        if !context.is_calm {
            return Ok(());
        }
        let last = self.last_change.replace(number);
        match last.map(|last| number.checked_sub(last)) {
            Some(Some(0)) | None => {}
            // A long state may change while its blocks are read.
            Some(Some(distance)) if distance == 1 || is_long => self.changes += 1,
            _ => return Err(format!("change {number} after {last:?}")),
        }
        Ok(())
    }
}
