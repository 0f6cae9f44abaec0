//! Problems of streams, individually and together.

use std::time::Duration;

use stilling_hub::limits::GATE_NAME_SIZE_MAX;
use stilling_hub::{GateRegistry, StreamConfig};

use super::filters::{RESERVED, filter, overlap};
use super::limits::{
    CATCH_UP_TIME_MAX, DEDUP_TIME_MAX, RETENTION_BYTES_MAX, RETENTION_BYTES_MIN, STREAM_MESSAGE_SIZE_MAX,
    STREAM_NAME_SIZE_MAX, STREAM_PENDING_MAX, STREAM_SUBJECTS_MAX, STREAMS_MAX,
};
use super::{SettingError, SettingKey};

/// Problems of the stream with this index.
fn stream_problems(
    stream: &StreamConfig,
    gates: &GateRegistry,
    index: usize,
    errors: &mut Vec<SettingError>,
) {
    let mut add_problem = |key, reason| errors.push(SettingError::stream(index, key, reason));
    if !is_name(&stream.name) {
        add_problem(
            "name",
            format!(
                "`{}` is not a valid stream name; it must have 1 to {STREAM_NAME_SIZE_MAX} letters, digits, `-` or `_`",
                stream.name
            ),
        );
    }
    subject_problems(stream, &mut |reason| add_problem("subjects", reason));
    retention_problems(stream, &mut add_problem);
    if stream.dedup_time > DEDUP_TIME_MAX {
        let (time, most) = (stream.dedup_time.as_secs_f64(), DEDUP_TIME_MAX.as_secs());
        add_problem("dedup-time", format!("{time} s is not in the range 0 to {most} s (1d)"));
    }
    if !(1..=STREAM_MESSAGE_SIZE_MAX).contains(&stream.message_size_max) {
        add_problem(
            "max-message-size",
            format!("{} is not in the range 1 to {STREAM_MESSAGE_SIZE_MAX}", stream.message_size_max),
        );
    }
    if !(1..=STREAM_PENDING_MAX).contains(&stream.pending_max) {
        add_problem(
            "max-pending",
            format!("{} is not in the range 1 to {STREAM_PENDING_MAX}", stream.pending_max),
        );
    }
    if let Some(time) = stream.catch_up_time {
        catch_up_time_problems(time, &mut add_problem);
    }
    if let Some(gate) = &stream.gate {
        let names = gates.names().collect::<Vec<_>>().join(", ");
        if !gates.contains(gate) {
            add_problem("gate", format!("there is no gate `{gate}`; there are {names}"));
        } else if gate.len() > GATE_NAME_SIZE_MAX {
            add_problem("gate", format!("`{gate}` has more than {GATE_NAME_SIZE_MAX} bytes"));
        }
    }
}

fn catch_up_time_problems(catch_up_time: Duration, add_problem: &mut impl FnMut(&'static str, String)) {
    if catch_up_time.is_zero() || catch_up_time > CATCH_UP_TIME_MAX {
        let (time, most) = (catch_up_time.as_secs_f64(), CATCH_UP_TIME_MAX.as_secs());
        add_problem("catch-up-time", format!("{time} s is not above 0 and at most {most} s (1d)"));
    }
}

fn subject_problems(stream: &StreamConfig, add_problem: &mut impl FnMut(String)) {
    let StreamConfig { name, subjects, .. } = stream;
    if subjects.is_empty() {
        add_problem(format!(
            "the stream `{name}` has no subjects, so it could not store anything; use for example [\"{name}.>\"]"
        ));
    }
    if subjects.len() > STREAM_SUBJECTS_MAX {
        let count = subjects.len();
        add_problem(format!("{count} filters exceed the maximum of {STREAM_SUBJECTS_MAX} per stream"));
    }
    for text in subjects {
        match filter(text) {
            Err(reason) => add_problem(reason),
            Ok(parsed) => {
                let reserved = RESERVED.iter().find(|reserved_filter| {
                    filter(reserved_filter).is_ok_and(|reserved_filter| overlap(parsed, reserved_filter))
                });
                if let Some(reserved_filter) = reserved {
                    add_problem(format!(
                        "`{text}` matches subjects of `{reserved_filter}`, which the server reserves; use another first token, such as `{name}.>`"
                    ));
                }
            }
        }
    }
}

fn retention_problems(stream: &StreamConfig, add_problem: &mut impl FnMut(&'static str, String)) {
    let retention = &stream.retention;
    if !(RETENTION_BYTES_MIN..=RETENTION_BYTES_MAX).contains(&retention.bytes) {
        let bytes = retention.bytes;
        add_problem(
            "retention-bytes",
            format!(
                "{bytes} is not in the range {RETENTION_BYTES_MIN} to {RETENTION_BYTES_MAX} (1MiB to 1024TiB)"
            ),
        );
    }
    if retention.records == Some(0) {
        add_problem(
            "retention-records",
            "0 would keep nothing; leave the key out to keep as many as there is room for".to_owned(),
        );
    }
    if retention.age == Some(Duration::ZERO) {
        add_problem(
            "retention-age",
            "0 would keep nothing; leave the key out to keep records as long as there is room for them"
                .to_owned(),
        );
    }
}

fn is_name(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=STREAM_NAME_SIZE_MAX).contains(&text.len()) && text.bytes().all(is_letter)
}

/// Problems of all streams, individually and together.
pub(super) fn problems(streams: &[StreamConfig], gates: &GateRegistry, errors: &mut Vec<SettingError>) {
    if streams.len() > STREAMS_MAX {
        let reason = format!("{} streams exceed the maximum of {STREAMS_MAX}", streams.len());
        errors.push(SettingError { setting: SettingKey::Option("stream"), reason });
        return;
    }
    for (index, stream) in streams.iter().enumerate() {
        stream_problems(stream, gates, index, errors);
        if let Some(first) = streams[..index].iter().position(|before| before.name == stream.name) {
            let reason =
                format!("`{}` is the name of stream {}, too; each needs its own", stream.name, first + 1);
            errors.push(SettingError::stream(index, "name", reason));
        }
        for text in &stream.subjects {
            if let Some((before, other_filter)) = overlapping_filter(&streams[..index], text) {
                let reason = format!(
                    "`{text}` of the stream `{}` overlaps `{other_filter}` of the stream `{}`; a subject belongs to one stream",
                    stream.name, before.name
                );
                errors.push(SettingError::stream(index, "subjects", reason));
            }
        }
    }
}

/// A stream with a filter that overlaps `text`, and that filter.
fn overlapping_filter<'a>(streams: &'a [StreamConfig], text: &str) -> Option<(&'a StreamConfig, &'a str)> {
    let parsed = filter(text).ok()?;
    streams.iter().find_map(|stream| {
        let overlaps = |other_filter: &&String| {
            filter(other_filter).is_ok_and(|other_filter| overlap(parsed, other_filter))
        };
        stream.subjects.iter().find(overlaps).map(|other_filter| (stream, other_filter.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use stilling_hub::{Retention, SlowSubscribers};

    use super::*;

    type StreamsChange = fn(&mut Vec<StreamConfig>);

    fn problem_texts(change: StreamsChange) -> Vec<String> {
        let mut streams = vec![StreamConfig::default()];
        change(&mut streams);
        let mut errors = Vec::new();
        problems(&streams, &GateRegistry::default(), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn streams_without_overlap_are_accepted() {
        for change in [
            (|_| ()) as StreamsChange,
            |streams| streams.clear(),
            |streams| streams.push(StreamConfig::new("orders-2_b", ["orders.*", "orders.*.new"])),
            |streams| streams[0].subjects.push("events.more".to_owned()),
            |streams| streams[0].dedup_time = Duration::ZERO,
            |streams| streams[0].gate = Some("auction".to_owned()),
            |streams| streams[0].catch_up_time = Some(Duration::from_secs(1)),
            |streams| {
                streams[0].slow_subscribers = SlowSubscribers::Disconnect;
                streams[0].catch_up_time = Some(Duration::from_secs(1));
            },
            |streams| {
                streams[0].retention =
                    Retention { bytes: 1 << 20, records: Some(1), age: Some(Duration::from_nanos(1)) }
            },
        ] {
            assert_eq!(problem_texts(change), [""; 0]);
        }
    }

    #[test]
    fn an_invalid_stream_is_refused_with_its_key_and_the_allowed_values() {
        let cases: [(StreamsChange, &str); 15] = [
            (
                |streams| streams[0].catch_up_time = Some(Duration::ZERO),
                "stream 1, catch-up-time: 0 s is not above 0 and at most 86400 s (1d)",
            ),
            (|streams| streams[0].name.clear(), "stream 1, name: `` is not a valid stream name"),
            (
                |streams| streams[0].name = "a/b".to_owned(),
                "it must have 1 to 64 letters, digits, `-` or `_`",
            ),
            (|streams| streams[0].name = "a".repeat(65), "stream 1, name: "),
            (
                |streams| streams[0].subjects.clear(),
                "stream 1, subjects: the stream `events` has no subjects",
            ),
            (
                |streams| streams[0].subjects = vec!["a.".repeat(70) + "b"],
                "is not a valid subject or filter: too many tokens",
            ),
            (
                |streams| streams[0].subjects = vec!["a..b".to_owned()],
                "`a..b` is not a valid subject or filter: empty token at byte 2",
            ),
            (|streams| streams[0].subjects = vec![">".to_owned()], "`>` matches subjects of `$JS.>`"),
            (
                |streams| streams[0].retention.bytes = 1,
                "stream 1, retention-bytes: 1 is not in the range 1048576 to ",
            ),
            (
                |streams| streams[0].retention.records = Some(0),
                "stream 1, retention-records: 0 would keep nothing",
            ),
            (
                |streams| streams[0].dedup_time = Duration::from_secs(86_401),
                "stream 1, dedup-time: 86401 s is not in the range 0 to 86400 s",
            ),
            (
                |streams| streams[0].gate = Some("auctoin".to_owned()),
                "stream 1, gate: there is no gate `auctoin`; there are accept-all, auction",
            ),
            (
                |streams| streams[0].message_size_max = 0,
                "stream 1, max-message-size: 0 is not in the range 1 to 8388608",
            ),
            (
                |streams| streams.push(StreamConfig::new("events", ["a"])),
                "stream 2, name: `events` is the name of stream 1",
            ),
            (
                |streams| streams.push(StreamConfig::new("new", ["a", "*.new"])),
                "stream 2, subjects: `*.new` of the stream `new` overlaps `events.>` of the stream `events`; a subject belongs to one stream",
            ),
        ];
        for (change, expected) in cases {
            let problem_texts = problem_texts(change);
            assert!(
                problem_texts.iter().any(|problem_texts| problem_texts.contains(expected)),
                "{expected}: {problem_texts:?}"
            );
        }
        assert_eq!(problem_texts(|streams| streams[0].retention.age = Some(Duration::ZERO)).len(), 1);
        assert_eq!(
            problem_texts(|streams| *streams = vec![StreamConfig::new("a", ["a"]); STREAMS_MAX + 1]).len(),
            1
        );
        assert_eq!(
            problem_texts(
                |streams| streams[0].subjects = (0..=STREAM_SUBJECTS_MAX).map(|n| n.to_string()).collect()
            )
            .len(),
            1
        );
    }
}
