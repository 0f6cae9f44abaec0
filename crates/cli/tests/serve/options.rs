//! The command line: refusals, help, defaults.

use std::net::TcpListener;
use std::process::Output;

use crate::support::{DriverUnderTest, Metrics, ServerUnderTest, TestPeer, binary};

on_both_drivers!(
    options_reach_the_server,
    settings_reach_the_server_from_every_source,
    a_port_in_use_is_reported_as_an_error,
    the_pages_are_where_the_operator_wants_them,
);

fn run(arguments: &str) -> Output {
    binary().args(arguments.split_whitespace()).output().expect("the binary starts")
}

/// Row 4.19: exit code 64 (`EX_USAGE`), the error, and a hint to the help.
#[test]
fn a_wrong_option_is_refused_with_its_reason() {
    for (arguments, reason) in [
        ("serve -p 0", "--port: `0` is refused"),
        ("serve -p 70000", "--port: `70000` is refused"),
        ("serve -p x", "--port: `x` is refused"),
        ("serve --admin x", "--admin: `x` is refused"),
        ("serve -A 0", "--accept-threads: `0` is refused"),
        ("serve -A -1", "`-1`"),
        ("serve -A", "--accept-threads: it needs a value"),
        ("serve -C 0", "--accept-capacity: `0` is refused"),
        ("serve -w -1", "`-1`"),
        ("serve -w 100001", "--worker-threads: `100001` is refused"),
        ("serve --accept-workers -1", "`-1`"),
        ("serve --accept-workers 1025", "1025 is not in the range 0 to 1024"),
        ("serve --worker-limit 9", "--free-threshold <PERCENT>"),
        ("serve --spawn-hunk 9", "--free-threshold <PERCENT>"),
        ("serve --spawn-factor 9", "--free-threshold <PERCENT>"),
        ("serve --shrink-after 9", "--free-threshold <PERCENT>"),
        ("serve --free-threshold 51", "--free-threshold: `51` is refused: 51 is not in the range 0 to 50"),
        ("serve --spawn-hunk 0", "--spawn-hunk: `0` is refused: 0 is not in the range 1 to 50"),
        ("serve --spawn-hunk 51", "--spawn-hunk: `51` is refused: 51 is not in the range 1 to 50"),
        ("serve --spawn-factor 91", "--spawn-factor: `91` is refused: 91 is not in the range 0 to 90"),
        ("serve --worker-limit 0", "--worker-limit: `0` is refused"),
        ("serve --worker-limit x", "--worker-limit: `x` is refused"),
        ("serve --shrink-after 0", "--shrink-after: `0` is refused"),
        (
            "serve -w 0 --free-threshold 1",
            "--free-threshold 1 needs worker threads, and --worker-threads is 0",
        ),
        (
            "serve -w 1001 --free-threshold 9",
            "--free-threshold 9 cannot add worker threads: there are 1001, and --worker-limit is 1000",
        ),
        ("serve -D x", "--slow-duration: `x` is refused"),
        ("serve -D -1", "`-1`"),
        ("serve -l 127.0.0.1", "--listen: `127.0.0.1` is refused"),
        (
            "serve -l localhost:9000",
            "--listen: `localhost:9000` is refused: it must be an IP address and a port, such as 127.0.0.1:9000 or [::]:9000",
        ),
        ("serve -p 9000 -l 127.0.0.1:0", "'--port <PORT>' cannot be used with"),
        ("serve --take-over", "--take-over: it needs a value"),
        ("serve --driver kqueue", "--driver: `kqueue` is refused"),
        ("serve --max-queue 0", "--max-queue: `0` is refused"),
        ("serve --max-head-size 255", "--max-head-size: `255` is refused"),
        ("serve --max-head-size 49153", "--max-head-size: `49153` is refused"),
        ("serve --max-headers 0", "--max-headers: `0` is refused"),
        ("serve --max-body-size -1", "`-1`"),
        ("serve --max-requests-held 1", "--max-requests-held: `1` is refused"),
        ("serve --max-input-held 1", "--max-input-held: `1` is refused"),
        ("serve --max-output-held 1", "--max-output-held: `1` is refused"),
        ("serve --send-buffer 0", "--send-buffer: `0` is refused"),
        ("serve --min-body-rate 0", "--min-body-rate: `0` is refused"),
        ("serve --head-timeout 0", "--head-timeout: `0` is refused"),
        ("serve --idle-timeout x", "--idle-timeout: `x` is refused"),
        ("serve --queue-target soon", "`soon` is not auto, off, or seconds"),
        ("serve --queue-target 0", "it must be in the range"),
        ("serve --work-timeout nan", "--work-timeout: `nan` is refused"),
        ("serve --drain-timeout inf", "--drain-timeout: `inf` is refused"),
        ("serve --unknown", "`--unknown`: no such option"),
        ("serve -x", "`-x`: no such option"),
        ("serve more", "`more`: not expected here"),
        ("swerve", "'swerve'"),
        ("", "Usage:"),
    ] {
        let outcome = run(arguments);
        let stderr_text = String::from_utf8_lossy(&outcome.stderr);
        assert_eq!(outcome.status.code(), Some(64), "{arguments}: {stderr_text}");
        assert!(stderr_text.contains(reason), "{arguments}: {stderr_text}");
        assert!(
            stderr_text.contains("Usage:")
                || stderr_text.contains("try '-?'")
                || stderr_text.contains("--help"),
            "{arguments}: {stderr_text}"
        );
        assert!(outcome.stdout.is_empty(), "{arguments}");
    }
}

/// Rows 4.19, 1.24: every option of worker processes has a range and needs `--app`; options that `--app` replaces
/// contradict it.
#[test]
fn options_of_worker_processes_are_refused_out_of_range_and_without_an_app() {
    // The option, a valid value, and invalid ones with their errors.
    let seconds: &[(&str, &str)] = &[
        ("0", "it must be in the range 0.001 to 31536000"),
        ("-1", "it must be in the range 0.001 to 31536000"),
        ("31536001", "it must be in the range 0.001 to 31536000"),
        ("soon", "`soon` is not a number of seconds"),
        ("nan", "it must be in the range"),
    ];
    let count: &[(&str, &str)] = &[
        ("0", "0 is not in the range 1 to 1024"),
        ("1025", "1025 is not in the range 1 to 1024"),
        ("-1", "-1 is not in the range 1 to 1024"),
        ("some", "not a whole number"),
    ];
    let number: &[(&str, &str)] = &[
        ("-1", "not a whole number"),
        ("18446744073709551616", "too large"),
        ("many", "not a whole number"),
    ];
    let bytes: &[(&str, &str)] = &[
        ("-1", "is not a number of bytes"),
        ("1.5", "is not a number of bytes"),
        ("many", "is not a number of bytes"),
    ];
    let protocol: &[(&str, &str)] = &[("fastcgi", "it is one of http, frames")];
    let sessions: &[(&str, &str)] =
        &[("1000001", "1000001 is not in the range 0 to 1000000"), ("many", "not a whole number")];
    let options = [
        ("--app-speaks", "frames", "SPEAKS", protocol),
        ("--processes", "2", "N", count),
        ("--app-concurrency", "2", "N", count),
        ("--app-requests-max", "2", "N", number),
        ("--app-memory-max", "1GiB", "BYTES", bytes),
        ("--app-affinity-idle", "2", "S", seconds),
        ("--app-sessions", "2", "N", sessions),
        ("--app-session-idle", "2", "S", seconds),
        ("--app-timeout", "2", "S", seconds),
        ("--app-start-timeout", "2", "S", seconds),
        ("--app-drain-timeout", "2", "S", seconds),
        ("--app-stop-timeout", "2", "S", seconds),
    ];
    let help = String::from_utf8(run("serve --help").stdout).expect("help is text");
    let is_documented = |name: &str| {
        ["--app", "--app-affinity"].contains(&name) || options.iter().any(|(option, ..)| *option == name)
    };
    let of_processes = |word: &str| word == "--processes" || word.starts_with("--app");
    for word in help.split_whitespace().filter(|word| of_processes(word)) {
        assert!(is_documented(word), "{word} is not in this table");
    }
    let refused = |arguments: &str, reason: &str| {
        let outcome = run(arguments);
        let stderr_text = String::from_utf8_lossy(&outcome.stderr);
        assert_eq!(outcome.status.code(), Some(64), "{arguments}: {stderr_text}");
        assert!(stderr_text.contains(reason), "{arguments}: {stderr_text}");
    };
    for (option, good, _, bad) in options {
        refused(&format!("serve {option} {good}"), "--app <COMMAND>");
        for (wrong, reason) in bad {
            refused(&format!("serve --app true {option}={wrong}"), reason);
            refused(
                &format!("serve --app true {option}={wrong}"),
                &format!("{option}: `{wrong}` is refused"),
            );
        }
        refused(&format!("serve --app true {option}"), &format!("{option}: it needs a value"));
    }
    refused("serve --app", "--app: it needs a value");
    refused("serve --app-affinity", "--app <COMMAND>");
    for option in ["--worker-threads 1", "--demo", "--accept-workers 1", "--free-threshold 1"] {
        let name = option.split(' ').next().expect("a name");
        refused(&format!("serve --app true {option}"), "'--app <COMMAND>' cannot be used with");
        refused(&format!("serve --app true {option}"), name);
    }
}

/// Row 4.19: `-?` and `--help` list every option with its default and are no error.
#[test]
fn help_lists_all_defaults() {
    for arguments in ["serve -?", "serve --help"] {
        let outcome = run(arguments);
        assert_eq!(outcome.status.code(), Some(0), "{arguments}");
        assert!(outcome.stderr.is_empty());
        let words = String::from_utf8(outcome.stdout).expect("help is text");
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        for (option, default) in [
            ("-v, --verbose", ""),
            ("-d, --daemonize", ""),
            ("-p, --port <PORT>", "[default: 9000]"),
            ("-l, --listen <ADDRESS>", ""),
            ("--take-over <PATH>", ""),
            ("-A, --accept-threads <N>", "[default: number of cores]"),
            ("-C, --accept-capacity <N>", "[default: 100000]"),
            ("-w, --worker-threads <N>", "[default: number of accept threads]"),
            ("-D, --slow-duration <MS>", "[default: 30]"),
            ("--driver <DRIVER>", "[default: auto]"),
            ("--accept-workers <N>", "[default: 0]"),
            ("--free-threshold <PERCENT>", "[default: 0]"),
            ("--spawn-hunk <PERCENT>", "[default: 50]"),
            ("--spawn-factor <PERCENT>", "[default: 0]"),
            ("--worker-limit <N>", "[default: 1000]"),
            ("--shrink-after <S>", "[default: 10]"),
            ("--demo", ""),
            ("-?, --help", ""),
            ("--app <COMMAND>", ""),
            ("--processes <N>", "[default: 1]"),
            ("--app-concurrency <N>", "[default: 1]"),
            ("--app-requests-max <N>", "[default: 0]"),
            ("--app-timeout <S>", "[default: 60]"),
            ("--app-start-timeout <S>", "[default: 30]"),
            ("--app-drain-timeout <S>", "[default: 30]"),
            ("--app-stop-timeout <S>", "[default: 10]"),
            ("--max-queue <N>", "[default: 4096]"),
            ("--max-head-size <BYTES>", "[default: 16384]"),
            ("--max-headers <N>", "[default: 100]"),
            ("--max-body-size <BYTES>", "[default: 1048576]"),
            ("--max-input-held <BYTES>", "[default: 33554432]"),
            ("--max-output-held <BYTES>", "[default: 67108864]"),
            ("--send-buffer <BYTES>", "[default: the system's tuning]"),
            ("--congestion <NAME>", "[default: the system's]"),
            ("--first-byte-timeout <S>", "[default: 10]"),
            ("--head-timeout <S>", "[default: 10]"),
            ("--body-timeout <S>", "[default: 10]"),
            ("--min-body-rate <BYTES>", "[default: 1024]"),
            ("--idle-timeout <S>", "[default: 60]"),
            ("--write-timeout <S>", "[default: 30]"),
            ("--queue-timeout <S>", "[default: 30]"),
            ("--queue-target <S|auto|off>", "[default: auto]"),
            ("--work-timeout <S>", "[default: 60]"),
            ("--drain-timeout <S>", "[default: 30]"),
        ] {
            let at = words.find(option).unwrap_or_else(|| panic!("{option} is not in {words}"));
            let rest = &words[at + option.len()..];
            let is_documented = rest.find(default).is_some_and(|after| !rest[..after].contains(" --"));
            assert!(is_documented, "{option}: {default} is not in {rest}");
        }
    }
    assert_eq!(run("--version").status.code(), Some(0));
}

/// Rows 4.19, 4.30: the long names are those of the first server, and `--verbose` prints the resulting settings.
fn options_reach_the_server(driver: DriverUnderTest) {
    let mut command = binary();
    let options =
        "--accept-threads 3 --accept-capacity 77 --worker-threads 5 --slow-duration 1 --congestion reno";
    command.args(["serve", "--listen", "127.0.0.1:0"]).args(driver.options());
    command.args(options.split_whitespace());
    let server = ServerUnderTest::spawn(command);
    assert_eq!(server.banner_line("shards "), "3, worker threads 5, capacity 77 connections per shard");
    for (key, value) in [
        ("  accept-threads = ", "3"),
        ("  accept-capacity = ", "77"),
        ("  worker-threads = ", "5"),
        ("  slow-duration = ", "1"),
        ("  listen = ", "[\"127.0.0.1:0\"]"),
    ] {
        assert_eq!(server.banner_line(key), value);
    }
    let mut peer = server.connect();
    assert_eq!(peer.ask("GET /test/slow HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    drop(peer);
    let metrics: Metrics = server.finish();
    assert_eq!((metrics.jobs("done"), metrics.value("worker_threads")), (1, 5));
}

/// Row 4.19: the command line overrides the environment, which overrides the file.
fn settings_reach_the_server_from_every_source(driver: DriverUnderTest) {
    let folder = tempfile::TempDir::new().expect("a folder");
    let file = "listen = ['127.0.0.1:0']\naccept-threads = 3\nworker-threads = 7\nslow-duration = 1\nverbose = true\n";
    std::fs::write(folder.path().join("stilling.toml"), file).expect("it can be written");
    let mut command = binary();
    command.current_dir(folder.path()).args(["serve", "--worker-threads", "5"]).args(driver.options());
    command.env("STILLING_WORKER_THREADS", "6").env("STILLING_ACCEPT_CAPACITY", "77");
    let server = ServerUnderTest::spawn(command);
    assert_eq!(server.banner_line("shards "), "3, worker threads 5, capacity 77 connections per shard");
    assert_eq!(server.banner_line("  slow-duration = "), "1");
    server.finish();
}

/// Row 4.19: `--admin` with an address, and off.
fn the_pages_are_where_the_operator_wants_them(driver: DriverUnderTest) {
    for (option, has_address) in [("127.0.0.1:0", true), ("off", false)] {
        let mut command = binary();
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", option]).args(driver.options());
        let server = ServerUnderTest::spawn(command);
        let mut peer = server.connect();
        for (path, status) in [("/test/fast", 200), ("/metrics", 404), ("/", 404)] {
            assert_eq!(peer.ask(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")).status, status, "{path}");
        }
        if has_address {
            let address = server.banner_line("admin http://").parse().expect("an address");
            let mut admin = TestPeer::connect(address);
            for (path, status) in [("/test/fast", 404), ("/metrics", 200), ("/", 200)] {
                assert_eq!(
                    admin.ask(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")).status,
                    status,
                    "{path}"
                );
            }
        }
    }
}

/// Row 4.19: exit code 1 and the reason, also when another server shares its port.
fn a_port_in_use_is_reported_as_an_error(driver: DriverUnderTest) {
    let stranger = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let server = ServerUnderTest::start(driver, "");
    let taken = [stranger.local_addr().expect("it is bound"), server.address()];
    for address in taken {
        for arguments in [format!("--listen {address}"), format!("--port {}", address.port())] {
            let outcome = run(&format!("serve {arguments} {}", driver.options().join(" ")));
            let stderr_text = String::from_utf8_lossy(&outcome.stderr).into_owned();
            assert_eq!(outcome.status.code(), Some(1), "{stderr_text}");
            let wanted = format!(
                "stilling: cannot listen on {address}: another process listens there; stop it or choose another port\n"
            );
            assert_eq!(stderr_text, wanted);
        }
    }
    // 192.0.2.0/24 is reserved for documentation (RFC 5737).
    let outcome = run("serve --listen 192.0.2.1:9000");
    let stderr_text = String::from_utf8_lossy(&outcome.stderr).into_owned();
    assert_eq!(outcome.status.code(), Some(1), "{stderr_text}");
    let wanted = "stilling: cannot listen on 192.0.2.1:9000: no network interface of this machine has that address; 0.0.0.0 listens on all interfaces\n";
    assert_eq!(stderr_text, wanted);
    let outcome = run("serve --listen 127.0.0.1:0 --congestion nonsense");
    let stderr_text = String::from_utf8_lossy(&outcome.stderr).into_owned();
    assert_eq!(outcome.status.code(), Some(1));
    assert!(stderr_text.contains("refuses the congestion control `nonsense`"), "{stderr_text}");
    server.finish();
}
