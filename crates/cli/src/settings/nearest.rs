//! Suggestions for misspelled names: the known name with the smallest edit distance.

/// The nearest known name, if its distance is 1 or at most a third of the name's length.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distance = |known: &&str| strsim::osa_distance(name, known);
    let distance_max = (name.len() / 3).max(1);
    known.into_iter().min_by_key(distance).filter(|known| distance(known) <= distance_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_misspellings_get_a_suggestion_and_others_none() {
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
