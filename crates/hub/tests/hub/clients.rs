//! For any client input the hub's output is valid protocol, and its accounts balance.

use stilling_ring::SplitMix64;

use crate::fixture::clients::{ScriptCounts, run_script};

fn commands() -> Vec<String> {
    let id = |id: &str| format!("NATS/1.0\r\nNats-Msg-Id: {id}\r\n\r\n");
    let after = |last: u64| format!("NATS/1.0\r\nNats-Expected-Last-Sequence: {last}\r\n\r\n");
    let to_inbox = r#"{"config":{"deliver_subject":"inbox.c","deliver_policy":"all","ack_policy":"none"}}"#;
    let with_flow = r#"{"config":{"deliver_subject":"inbox.m","ack_policy":"none","flow_control":true,"idle_heartbeat":1000000000}}"#;
    let mut commands: Vec<String> = [
        "CONNECT {\"headers\":true,\"no_responders\":true}",
        "CONNECT {\"echo\":false}",
        "SUB inbox.* 2",
        "SUB disk.> 3",
        "SUB memory.a 4",
        "SUB > q 5",
        "SUB *.* q 6",
        "SUB plain.> 7",
        "SUB none.> 8",
        "SUB $JS.> 9",
        "SUB disk.a.b 10",
        "UNSUB 1",
        "UNSUB 3 2",
        "UNSUB 5",
        "PING",
        "PING",
        "PING",
        "PONG",
        "PUB a..b 0\r\n",
        "PUB disk.a 20000",
        "CONNECT ",
    ]
    .map(|line| format!("{line}\r\n"))
    .to_vec();
    for subject in ["disk.a", "disk.b", "disk.a.b", "memory.a", "none.a", "plain.a", "nobody"] {
        commands.push(published(subject, "inbox.1", "", "hello"));
        commands.push(published(subject, "", "", ""));
        commands.push(published(subject, "inbox.2.3", &id("x"), "x"));
        commands.push(published(subject, "inbox.2.3", &id("y"), ""));
    }
    commands.push(published("disk.a", "inbox.1", &after(1), "once"));
    commands.push(published("memory.a", "inbox.1", &after(2), "once"));
    for (api_request, payload) in [
        ("INFO", ""),
        ("STREAM.INFO.disk", ""),
        ("STREAM.NAMES", ""),
        ("CONSUMER.CREATE.disk.c", to_inbox),
        ("CONSUMER.CREATE.memory.m", with_flow),
        ("CONSUMER.CREATE.disk.p", r#"{"config":{"ack_policy":"none"}}"#),
        ("CONSUMER.CREATE.disk.a", r#"{"config":[null,null,null,null,"all",0,null,"none"]}"#),
        ("CONSUMER.CREATE.disk.a", r#"["disk",{"ack_policy":"none"}]"#),
        ("CONSUMER.MSG.NEXT.disk.p", "[1,0,true]"),
        ("STREAM.CREATE.disk", r#"[[["disk.>"]]]"#),
        ("STREAM.MSG.GET.disk", r#"[1,null,"disk.>"]"#),
        ("CONSUMER.MSG.NEXT.disk.p", "3"),
        ("CONSUMER.MSG.NEXT.disk.p", r#"{"batch":2,"expires":1000000000}"#),
        ("CONSUMER.INFO.disk.c", ""),
        ("CONSUMER.DELETE.disk.c", ""),
        ("DIRECT.GET.disk", r#"{"seq":1}"#),
        ("STREAM.MSG.GET.disk", r#"{"seq":2}"#),
        ("STREAM.MSG.GET.memory", r#"{"seq":1,"next_by_subj":"memory.*"}"#),
    ] {
        commands.push(published(&format!("$JS.API.{api_request}"), "inbox.1", "", payload));
    }
    commands
}

fn published(subject: &str, reply: &str, headers: &str, payload: &str) -> String {
    let size = headers.len() + payload.len();
    match headers.len() {
        0 => format!("PUB {subject} {reply} {size}\r\n{payload}\r\n"),
        heads => format!("HPUB {subject} {reply} {heads} {size}\r\n{headers}{payload}\r\n"),
    }
}

/// A script that is mostly valid protocol: commands, some split, some with a flipped bit, some noise.
fn script(commands: &[String], seed: u64) -> Vec<u8> {
    let mut random = SplitMix64::new(seed);
    let mut script = Vec::new();
    let is_faulty = random.below(3) == 0;
    let mut push_step = |step: u8, counts: &[u8]| {
        if counts.is_empty() {
            script.push(step);
        }
        for piece in counts.chunks(255) {
            script.push(step);
            script.push(piece.len() as u8);
            script.extend_from_slice(piece);
        }
    };
    for peer in 0..4 {
        push_step(peer, commands[0].as_bytes());
        push_step(peer, b"SUB inbox.> 1\r\n");
    }
    for _ in 0..40 + random.below(120) {
        let step = random.below(252) as u8;
        if step / 4 % 16 >= 9 {
            // Steps of the disk, a shard or the clock; rarely a disconnect or a disk failure.
            let step = if step / 4 % 16 >= 14 && random.below(8) != 0 { 48 + step % 4 } else { step };
            push_step(if is_faulty && random.below(200) == 0 { 255 } else { step }, b"");
            continue;
        }
        let mut counts = commands[random.index(commands.len())].clone().into_bytes();
        if is_faulty {
            match random.below(40) {
                0 => counts = (0..random.below(60)).map(|_| random.below(256) as u8).collect(),
                1 => counts = vec![b'x'; 600],
                2 => {
                    let at = random.index(counts.len());
                    counts[at] ^= 1 << random.below(8);
                }
                3 => counts = format!("PUB disk.long inbox.1 600\r\n{}\r\n", "y".repeat(600)).into_bytes(),
                _ => {}
            }
        }
        let rest = counts.split_off(if random.below(4) == 0 { counts.len() / 2 } else { counts.len() });
        push_step(step, &counts);
        if !rest.is_empty() {
            // Another step in between.
            push_step(36 + random.below(16) as u8, b"");
            push_step(step, &rest);
        }
    }
    script
}

/// "No panic, the ledger equation, bounded memory", for any client input: the short run of `cargo xtask fuzz nats_hub`.
#[test]
fn the_accounting_balances_for_any_client_input() {
    let (commands, mut all) = (commands(), ScriptCounts::default());
    for seed in 0..3000 {
        let script = script(&commands, seed);
        let counts = std::panic::catch_unwind(|| run_script(&script));
        let counts = counts.unwrap_or_else(|_| panic!("seed {seed}"));
        all.stored += counts.stored;
        all.delivered += counts.delivered;
        all.pongs += counts.pongs;
        all.duplicates += counts.duplicates;
        all.refused += counts.refused;
        all.closed += counts.closed;
        all.consumers += counts.consumers;
        all.parked += counts.parked;
    }
    // A check that never occurred proves nothing.
    let ScriptCounts { stored, delivered, pongs, duplicates, refused, closed, consumers, parked } = all;
    for (what, count) in [
        ("stored", stored),
        ("delivered", delivered),
        ("pongs", pongs),
        ("duplicates", duplicates),
        ("refused", refused),
        ("closed", closed),
        ("consumers", consumers),
        ("parked", parked),
    ] {
        assert!(count > 300, "only {count} {what}: {all:?}");
    }
}
