//! Compares what the clients have seen with the stream.

/// What one client has seen.
pub(super) struct ClientRecord {
    pub(super) name: &'static str,
    /// `<sequence> <number>` per message, and notices.
    pub(super) lines: Vec<String>,
}

/// Requires that each client has seen every message once and in order, and nothing else.
///
/// # Errors
/// The client, and the first difference.
pub(super) fn check_records(records: &[ClientRecord], expected: &[String]) -> Result<(), String> {
    let difference = |record: &ClientRecord| {
        first_difference(&record.lines, expected).map(|difference| format!("{}: {difference}", record.name))
    };
    records.iter().find_map(difference).map_or(Ok(()), Err)
}

fn first_difference(lines: &[String], expected: &[String]) -> Option<String> {
    let count = lines.len().max(expected.len());
    let at = (0..count).find(|&at| lines.get(at) != expected.get(at))?;
    let (found, wanted) = (lines.get(at), expected.get(at));
    let is_missing = wanted.is_some_and(|wanted| !lines[at..].contains(wanted));
    let kind = match found {
        None => "lost",
        Some(found) if expected[..at].contains(found) => "doubled",
        Some(found) if !expected.contains(found) => "not of the stream",
        Some(_) if is_missing => "lost",
        Some(_) => "reordered",
    };
    Some(format!("{kind}: line {at} is {found:?}, expected {wanted:?}"))
}

/// The run of real clients fails if the record of any client is not the stream's.
#[test]
fn a_lost_doubled_or_reordered_message_of_any_client_is_found() {
    type Damage = fn(&mut Vec<String>);
    let expected: Vec<_> = (1..=9).map(|number| format!("{} {number}", 2 * number)).collect();
    let damages: [(&str, Damage); 11] = [
        ("lost", |lines| drop(lines.remove(0))),
        ("lost", |lines| drop(lines.remove(4))),
        ("lost", |lines| drop(lines.pop())),
        ("lost", Vec::clear),
        ("doubled", |lines| lines.insert(1, lines[0].clone())),
        ("doubled", |lines| lines.insert(7, lines[2].clone())),
        ("doubled", |lines| lines.push(lines[8].clone())),
        ("reordered", |lines| lines.swap(0, 1)),
        ("reordered", |lines| lines.swap(2, 7)),
        ("not of the stream", |lines| lines.insert(3, "gap {\"gap\":{\"first\":2}}".to_owned())),
        ("not of the stream", |lines| lines[5] = "12 7".to_owned()),
    ];
    let names = ["curl", "websockets", "ws"];
    let records = || names.map(|name| ClientRecord { name, lines: expected.clone() });
    assert_eq!(check_records(&records(), &expected), Ok(()));
    for (at, name) in names.into_iter().enumerate() {
        for (number, (kind, damage)) in damages.into_iter().enumerate() {
            let mut records = records();
            damage(&mut records[at].lines);
            let error = check_records(&records, &expected).expect_err("a damaged record");
            assert!(error.starts_with(&format!("{name}: {kind}: line ")), "damage {number}: {error}");
        }
    }
}
