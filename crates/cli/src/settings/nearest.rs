//! Suggestions for misspelled names: the known name with the smallest edit distance.

/// The nearest known name, if its distance is 1 or at most a third of the name's length.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let slips = |known: &&str| strsim::osa_distance(name, known);
    let most = (name.len() / 3).max(1);
    known.into_iter().min_by_key(slips).filter(|known| slips(known) <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_understood_and_a_guess_is_not_made() {
        let known = ["nats", "syslog-udp", "max-queue", "max-body-size"];
        for (name, expected) in [
            ("nast", Some("nats")),
            ("nat", Some("nats")),
            ("max_queue", Some("max-queue")),
            ("max-queues", Some("max-queue")),
            ("syslog-utp", Some("syslog-udp")),
            ("body-size-max", None),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, known), expected, "{name}");
        }
    }
}
