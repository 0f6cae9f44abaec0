//! Results of each step and of each tenth of a second: the course of an overload and the recovery from it.
//!
//! A request belongs to the step and the window of its intended start, whenever it is answered. Only a step's goodput
//! counts answers by their arrival. All memory is allocated at the start.

use std::time::Duration;

use hdrhistogram::Histogram;
use stilling_ring::Time;

use super::schedule::RateStep;
use crate::statistics::histogram;

pub(crate) const WINDOW: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    start: Time,
    /// End of each step, relative to the start.
    ends: Vec<Duration>,
    pub(crate) steps: Vec<StepTally>,
    pub(crate) windows: Vec<WindowTally>,
}

#[derive(Clone, Debug)]
pub(crate) struct StepTally {
    pub(crate) started: u64,
    pub(crate) ok: u64,
    pub(crate) shed: u64,
    /// Correct answers that arrived during the step, whenever their requests were due.
    pub(crate) ok_arrived: u64,
    /// From the intended start to the end of a correct answer.
    pub(crate) latency: Histogram<u64>,
    /// From the intended start to the end of a 503.
    pub(crate) refusal_latency: Histogram<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WindowTally {
    pub(crate) ok: u64,
    pub(crate) latency_nanos: u64,
    pub(crate) latency_max_nanos: u64,
}

impl Timeline {
    pub(crate) fn new(steps: &[RateStep], start: Time) -> Timeline {
        let mut end = Duration::ZERO;
        let ends = steps.iter().map(|step| {
            end += step.span;
            end
        });
        let ends: Vec<Duration> = ends.collect();
        let step = || StepTally {
            started: 0,
            ok: 0,
            shed: 0,
            ok_arrived: 0,
            latency: histogram(),
            refusal_latency: histogram(),
        };
        let windows = end.as_nanos().div_ceil(WINDOW.as_nanos()) as usize;
        Timeline {
            start,
            steps: ends.iter().map(|_| step()).collect(),
            ends,
            windows: vec![WindowTally::default(); windows],
        }
    }

    /// The step at a time; `None` after the end.
    fn step(&mut self, at: Time) -> Option<&mut StepTally> {
        let since = at.since(self.start);
        let step = self.ends.partition_point(|end| *end <= since);
        self.steps.get_mut(step)
    }

    pub(crate) fn record_started(&mut self, intended: Time) {
        if let Some(step) = self.step(intended) {
            step.started += 1;
        }
    }

    /// Uncounts a started request that will start again.
    pub(crate) fn record_requeued(&mut self, intended: Time) {
        if let Some(step) = self.step(intended) {
            step.started = step.started.saturating_sub(1);
        }
    }

    pub(crate) fn record_success(&mut self, intended: Time, now: Time) {
        if let Some(step) = self.step(now) {
            step.ok_arrived += 1;
        }
        let nanos = now.since(intended).as_nanos() as u64;
        if let Some(step) = self.step(intended) {
            step.ok += 1;
            step.latency.saturating_record(nanos);
        }
        let window = (intended.since(self.start).as_nanos() / WINDOW.as_nanos()) as usize;
        if let Some(window) = self.windows.get_mut(window) {
            window.ok += 1;
            window.latency_nanos += nanos;
            window.latency_max_nanos = window.latency_max_nanos.max(nanos);
        }
    }

    pub(crate) fn record_shed(&mut self, intended: Time, now: Time) {
        if let Some(step) = self.step(intended) {
            step.shed += 1;
            step.refusal_latency.saturating_record(now.since(intended).as_nanos() as u64);
        }
    }

    pub(crate) fn absorb(&mut self, other: &Timeline) {
        for (mine, theirs) in self.steps.iter_mut().zip(&other.steps) {
            mine.started += theirs.started;
            mine.ok += theirs.ok;
            mine.shed += theirs.shed;
            mine.ok_arrived += theirs.ok_arrived;
            // All histograms have the same bounds.
            let _ = mine.latency.add(&theirs.latency);
            let _ = mine.refusal_latency.add(&theirs.refusal_latency);
        }
        for (mine, theirs) in self.windows.iter_mut().zip(&other.windows) {
            mine.ok += theirs.ok;
            mine.latency_nanos += theirs.latency_nanos;
            mine.latency_max_nanos = mine.latency_max_nanos.max(theirs.latency_max_nanos);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::from_nanos(7_000);

    fn at(millis: u64) -> Time {
        START.after(Duration::from_millis(millis))
    }

    fn timeline() -> Timeline {
        let step = |millis| RateStep { rate: 1.0, span: Duration::from_millis(millis) };
        Timeline::new(&[step(250), step(50)], START)
    }

    #[test]
    fn a_request_belongs_to_the_step_in_which_it_should_have_begun() {
        let mut line = timeline();
        line.record_started(at(249));
        line.record_started(at(250));
        line.record_success(at(249), at(260));
        line.record_shed(at(250), at(251));
        let counts = |step: &StepTally| (step.started, step.ok, step.shed, step.ok_arrived);
        assert_eq!(line.steps.iter().map(counts).collect::<Vec<_>>(), [(1, 1, 0, 0), (1, 0, 1, 1)]);
        assert_eq!((line.steps[0].latency.len(), line.steps[1].refusal_latency.len()), (1, 1));
        line.record_requeued(at(249));
        assert_eq!(line.steps[0].started, 0);
    }

    #[test]
    fn windows_are_tenths_of_a_second_and_what_is_beyond_the_end_is_in_none() {
        let mut line = timeline();
        assert_eq!(line.windows.len(), 3);
        line.record_success(at(199), at(209));
        line.record_success(at(100), at(130));
        line.record_success(at(300), at(301));
        let millis = 1_000_000;
        let second = WindowTally { ok: 2, latency_nanos: 40 * millis, latency_max_nanos: 30 * millis };
        assert_eq!(line.windows, [WindowTally::default(), second, WindowTally::default()]);
    }

    #[test]
    fn threads_add_up() {
        let (mut one, mut other) = (timeline(), timeline());
        one.record_success(at(0), at(1));
        other.record_started(at(0));
        other.record_success(at(0), at(3));
        one.absorb(&other);
        assert_eq!((one.steps[0].started, one.steps[0].ok, one.steps[0].latency.len()), (1, 2, 2));
        assert_eq!((one.windows[0].ok, one.windows[0].latency_max_nanos), (2, 3_000_000));
    }
}
