//! `stilling check`, `stilling options`, and settings from files.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// Status, output and errors of the command in a folder with this `stilling.toml`.
struct CommandOutput {
    status: Option<i32>,
    out: String,
    err: String,
}

fn run(folder: &Path, arguments: &str, variables: &[(&str, &str)]) -> CommandOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stilling"));
    command.args(arguments.split_whitespace()).current_dir(folder).stdin(Stdio::null());
    command.env_clear().envs(variables.iter().copied());
    let output = command.output().expect("the binary runs");
    let text = |bytes| String::from_utf8(bytes).expect("it says text");
    CommandOutput { status: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

fn folder(settings: &str) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    if !settings.is_empty() {
        std::fs::write(folder.path().join("stilling.toml"), settings).expect("it can be written");
    }
    folder
}

#[track_caller]
fn expect_lines(actual: &CommandOutput, lines: &[&str]) {
    for line in lines {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let found = actual.out.lines().chain(actual.err.lines()).any(|actual| words(actual).contains(line));
        assert!(found, "{line} is not in\n{}{}", actual.out, actual.err);
    }
}

/// Row 4.19: each command has help, and an unknown option is a usage error (`EX_USAGE`) everywhere.
#[test]
fn every_command_has_help_and_refuses_unknown_options() {
    let folder = folder("");
    let commands = [
        "serve",
        "check",
        "options",
        "pub",
        "sub",
        "journal",
        "journal ls",
        "journal cat",
        "journal verify",
        "bench",
        "bench http",
        "bench broadcast",
        "bench collect",
        "bench crash",
    ];
    for command in commands {
        for help in ["-h", "--help"] {
            let actual = run(folder.path(), &format!("{command} {help}"), &[]);
            assert_eq!(actual.status, Some(0), "{command} {help}: {}", actual.err);
            assert!(actual.out.contains("Usage: stilling "), "{command} {help}: {}", actual.out);
        }
        let actual = run(folder.path(), &format!("{command} --no-such-option"), &[]);
        assert_eq!(actual.status, Some(64), "{command}: {}", actual.err);
        assert!(actual.err.contains("--no-such-option"), "{command}: {}", actual.err);
    }
}

/// Row 4.19: one named listener closes the defaults of the other protocols, and the output shows how to open them.
#[test]
fn a_default_that_is_closed_is_named() {
    let folder = folder("");
    let lines = |arguments: &str| {
        let actual = run(folder.path(), &format!("check {arguments}"), &[]);
        assert_eq!(actual.status, Some(0), "{}", actual.err);
        actual.out.lines().filter(|line| line.contains("not opened")).map(str::to_owned).collect::<Vec<_>>()
    };
    let coap = "coap       not opened: add --coap 127.0.0.1:5683";
    assert_eq!(lines(""), [""; 0]);
    assert_eq!(lines("-l 127.0.0.1:1"), ["nats       not opened: add --nats 127.0.0.1:4222", coap]);
    assert_eq!(lines("--nats 127.0.0.1:1"), ["http       not opened: add --listen 127.0.0.1:9000", coap]);
    assert_eq!(lines("--nats 127.0.0.1:1 -p 2"), [coap]);
    assert_eq!(lines("--nats 127.0.0.1:1 -p 2 --coap 127.0.0.1:3"), [""; 0]);
    assert_eq!(lines("--coap 127.0.0.1:1").len(), 2);
    assert_eq!(lines("--syslog-udp 127.0.0.1:1").len(), 3);
}

/// Expects no warning but the one of a test machine whose disk is smaller than the default streams.
fn expect_no_warning(actual: &CommandOutput) {
    let is_of_disk = |line: &str| line.contains("the streams may store up to");
    let warning = actual.out.lines().find(|line| line.contains("warning") && !is_of_disk(line));
    assert_eq!(warning, None, "{}", actual.out);
}

/// Row 4.19: without a file and options the default listeners are shown, without a warning.
#[test]
fn the_defaults_are_well() {
    let folder = folder("");
    let actual = run(folder.path(), "check", &[]);
    assert_eq!((actual.status, actual.err.as_str()), (Some(0), ""));
    expect_lines(&actual, &["settings no file", "http 127.0.0.1:9000 (default)", "no errors"]);
    expect_no_warning(&actual);
}

#[test]
fn the_file_of_the_folder_is_read_and_every_place_is_named() {
    let folder = folder("accept-threads = 1\nlisten = ['127.0.0.1:1']\nadmin = '127.0.0.1:2'\n");
    let actual = run(folder.path(), "check --listen 127.0.0.1:3", &[("STILLING_ADMIN", "127.0.0.1:4")]);
    assert_eq!(actual.status, Some(0), "{}", actual.err);
    expect_lines(
        &actual,
        &["settings stilling.toml", "http 127.0.0.1:3 (--listen)", "admin 127.0.0.1:4 (STILLING_ADMIN)"],
    );
    let actual = run(folder.path(), "check", &[]);
    expect_lines(&actual, &["http 127.0.0.1:1 (stilling.toml:2)", "admin 127.0.0.1:2 (stilling.toml:3)"]);
}

#[test]
fn errors_name_their_line_and_exit_with_1() {
    let folder = folder("max-queue = 0\nlisten = ['0.0.0.0:9']\nlimit = 3\n");
    for command in ["check", "serve"] {
        let actual = run(folder.path(), command, &[]);
        assert_eq!((actual.status, actual.out.as_str()), (Some(1), ""), "{command}");
        let expected = "stilling: stilling.toml:1: max-queue = `0` is refused: 0 is not in the range 1 to 1000000\n\
                        stilling: stilling.toml:3: there is no key `limit`; `stilling options` lists all\n";
        assert_eq!(actual.err, expected, "{command}");
    }
    let actual = run(folder.path(), "check --config other.toml", &[]);
    assert_eq!(
        (actual.status, actual.err.as_str()),
        (Some(64), "stilling: --config: there is no file `other.toml`\nstilling: --help lists all options\n")
    );
    // A wrong command line is EX_USAGE, also beside other errors, and all of them are reported.
    let actual = run(folder.path(), "check --max-body-size x --stream y", &[]);
    assert_eq!((actual.status, actual.err.lines().count()), (Some(64), 5), "{}", actual.err);
}

#[test]
fn streams_users_and_the_data_folder_are_printed_and_nothing_is_created() {
    let folder = folder(
        "nats = ['127.0.0.1:4222']\nsyslog-unix = ['log']\ndata = 'kept/here'\n\
         [[stream]]\nname = 'orders'\nsubjects = ['orders.>', 'events.>']\nretention-age = '1d'\nretention-bytes = '1MiB'\n\
         [[user]]\nname = 'ann'\npassword-env = 'ANN'\npublish = ['orders.>']\n",
    );
    let actual = run(folder.path(), "check", &[("ANN", "x")]);
    assert_eq!(actual.status, Some(0), "{}", actual.err);
    expect_lines(
        &actual,
        &[
            "nats 127.0.0.1:4222 (stilling.toml:1)",
            "syslog log (stilling.toml:2)",
            "stream orders: orders.>, events.>; disk; keeps 1MiB, 1d",
            "user ann: password; publishes orders.>; subscribes >",
            "kept/here (stilling.toml:3): created at the first durable publish,",
        ],
    );
    expect_lines(&actual, &["http not opened: add --listen 127.0.0.1:9000"]);
    assert!(!folder.path().join("kept").exists() && !folder.path().join("log").exists());
    let actual = run(folder.path(), "check", &[]);
    assert_eq!(actual.status, Some(1));
    expect_lines(&actual, &["stilling.toml:11: password-env: cannot read the variable `ANN`"]);
    std::fs::write(folder.path().join("kept"), "").expect("it can be written");
    let actual = run(folder.path(), "check", &[("ANN", "x")]);
    assert_eq!(actual.status, Some(1), "{}", actual.out);
    expect_lines(&actual, &["stilling.toml:3: `", "kept` is not a directory, so `"]);
    assert!(!actual.out.contains("no errors"));
}

#[test]
fn risky_settings_cause_warnings() {
    let folder = folder(
        "nats = ['0.0.0.0:4222']\nsyslog-udp = ['0.0.0.0:514']\nsyslog-subject = 'logs.{host}'\n\
         nats-websocket = ['0.0.0.0:9222', '127.0.0.1:9223']\n[[stream]]\nname = 'all'\nsubjects = ['events.>']\nretention-bytes = '1024TiB'\n",
    );
    let actual = run(folder.path(), "check", &[("STILLING_SERVICE_HOST", "10.0.0.1")]);
    assert_eq!(actual.status, Some(0), "{}", actual.err);
    expect_lines(
        &actual,
        &[
            "warning: stilling.toml:1: 0.0.0.0:4222 is reachable from other machines, and without users",
            "warning: stilling.toml:2: 0.0.0.0:514 is reachable from other machines, and their messages are rejected",
            "warning: stilling.toml:3: no stream stores `logs.{host}`",
            "warning: stilling.toml:4: 0.0.0.0:9222 is reachable from other machines, and without users its clients are refused",
            "the streams may store up to 1024TiB, but only",
            "warning: STILLING_SERVICE_HOST: set by Kubernetes for a service of this name, not read",
        ],
    );
    let path = folder.path().join("stilling.toml");
    std::fs::write(&path, "nats = ['0.0.0.0:4222']\n[[user]]\nname = 'ann'\npassword = 'x'\n")
        .expect("it can be written");
    for (mode, is_warned) in [(0o644, true), (0o600, false)] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("it is ours");
        let actual = run(folder.path(), "check", &[]);
        assert_eq!(actual.status, Some(0), "{}", actual.err);
        assert!(!actual.out.contains("without users"), "{}", actual.out);
        assert_eq!(
            actual.out.contains("every user of this machine can read `stilling.toml`"),
            is_warned,
            "{}",
            actual.out
        );
    }
}

/// Listeners that are reachable from other machines without credentials cause a warning of `check` and of `serve`.
#[test]
fn check_and_serve_warn_of_listeners_reachable_from_other_machines() {
    let folder = folder(
        "listen = ['0.0.0.0:0']\nopen-publish = true\ndemo = true\nnats = ['0.0.0.0:0']\n\
         syslog-udp = ['0.0.0.0:0']\nsyslog-source = ['0.0.0.0/0']\naccept-threads = 1\n\
         [[stream]]\nname = 'all'\nsubjects = ['all.>']\ndurability = 'memory'\n",
    );
    let expected = |port: &str| {
        [
            (1, "/status and /metrics there need no credentials; move them with admin ="),
            (2, "without users every HTTP client there may publish to everything (/publish/*)"),
            (3, "every client there may occupy the workers with /test/slow"),
            (4, "without users every NATS client there may publish and subscribe to everything"),
            (5, "syslog-source lets every address send"),
        ]
        .map(|(line, reason)| (format!("warning: stilling.toml:{line}: 0.0.0.0:{port}"), reason))
    };
    let is_there = |text: &str, (start, reason): &(String, &str)| {
        text.lines().any(|line| line.contains(start.as_str()) && line.contains(reason))
    };
    let actual = run(folder.path(), "check", &[]);
    assert_eq!(actual.status, Some(0), "{}", actual.err);
    for line in expected("0 ") {
        assert!(is_there(&actual.out, &line), "{line:?} is not in\n{}", actual.out);
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_stilling"));
    command.arg("serve").current_dir(folder.path()).env_clear();
    let mut server =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut banner = BufReader::new(server.stdout.take().expect("it is piped")).lines();
    while !banner.next().expect("it goes on").expect("text").starts_with("shards ") {}
    // The warnings come before the banner.
    server.kill().and_then(|()| server.wait()).expect("it runs");
    let mut warned = String::new();
    server.stderr.take().expect("it is piped").read_to_string(&mut warned).expect("text");
    for line in expected("") {
        assert!(is_there(&warned, &line), "{line:?} is not in\n{warned}");
    }
}

/// No path is taken from the app silently.
#[test]
fn paths_that_are_not_the_apps_are_shown() {
    let folder = folder("");
    let options = "--app true --listen 127.0.0.1:1 --nats 127.0.0.1:2 --nats-websocket 127.0.0.1:3";
    let actual = run(folder.path(), &format!("check {options}"), &[]);
    assert_eq!(actual.status, Some(0), "{}", actual.err);
    let answered = "(answered here, not by the app)";
    expect_lines(
        &actual,
        &[
            &format!("publish http://127.0.0.1:1/publish/* {answered}"),
            &format!("subscribe http://127.0.0.1:1/subscribe/* {answered}"),
            &format!("nats ws://127.0.0.1:1/nats {answered}"),
            "nats-websocket 127.0.0.1:3 (--nats-websocket)",
        ],
    );
}

#[test]
fn an_address_that_is_named_twice_is_an_error_of_serve_and_check() {
    let folder = folder("");
    for command in ["check", "serve"] {
        for (options, reason) in [
            ("--listen 127.0.0.1:9 --listen 127.0.0.1:9", "stilling: --listen: 127.0.0.1:9 is named twice\n"),
            (
                "--listen 127.0.0.1:9 --listen 127.0.0.1:9 --admin 127.0.0.1:8 --nats 127.0.0.1:7",
                "stilling: --listen: 127.0.0.1:9 is named twice\n",
            ),
            (
                "--port 9 --admin 127.0.0.1:9",
                "stilling: --admin: 127.0.0.1:9 is taken: `listen` listens there; give each its own address\n",
            ),
        ] {
            let actual = run(folder.path(), &format!("{command} {options}"), &[]);
            assert_eq!(
                (actual.status, actual.err.trim_end_matches("stilling: --help lists all options\n")),
                (Some(64), reason),
                "{command} {options}"
            );
        }
    }
}

/// A folder that cannot hold streams is an error at the start, like in `check`, and nothing is created.
#[test]
fn a_folder_that_cannot_hold_streams_is_an_error_before_the_first_message() {
    let folder = folder("");
    std::fs::write(folder.path().join("file"), "").expect("it can be written");
    let options = "--nats 127.0.0.1:0 --data file/streams";
    for (command, start) in [("check", "stilling: --data: `"), ("serve", "stilling: cannot store streams: `")]
    {
        let actual = run(folder.path(), &format!("{command} {options}"), &[]);
        assert_eq!(actual.status, Some(1), "{command}: {}", actual.out);
        assert!(
            actual.err.starts_with(start) && actual.err.contains("file` is not a directory, so `"),
            "{}",
            actual.err
        );
    }
    // A file system of 16 MiB, visible only to the commands inside.
    let script = r#"mount -t tmpfs -o size=16m none "$0" && exec "$@""#;
    for (command, start) in [("check", "stilling: --data: `"), ("serve", "stilling: cannot store streams: `")]
    {
        let mut small = Command::new("unshare");
        small.args(["--map-root-user", "--mount", "sh", "-c", script]).arg(folder.path());
        small.arg(env!("CARGO_BIN_EXE_stilling")).args([command, "--nats", "127.0.0.1:0", "--data"]);
        let output =
            small.arg(folder.path().join("streams")).stdin(Stdio::null()).output().expect("unshare runs");
        let actual = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command}: {actual}");
        assert!(actual.starts_with(start), "{command}: {actual}");
        assert!(
            actual.contains("bytes free, and the first segment of the stream events takes 67108864"),
            "{actual}"
        );
    }
    assert!(!folder.path().join("streams").exists());
}

/// A folder in use prevents a second server from starting; `check` names the process and succeeds.
#[test]
fn a_folder_in_use_is_an_error_of_a_second_server() {
    let folder = folder("");
    let data = folder.path().join("streams");
    std::fs::create_dir(&data).expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_stilling"));
    command.args(["serve", "--nats", "127.0.0.1:0", "--data"]).arg(&data).current_dir(folder.path());
    let mut server = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut banner = BufReader::new(server.stdout.take().expect("it is piped")).lines();
    while !banner.next().expect("it goes on").expect("text").starts_with("shards ") {}
    let actual = run(folder.path(), "check --nats 127.0.0.1:0 --data streams", &[]);
    let process = server.id();
    assert_eq!(actual.status, Some(0), "{}", actual.err);
    expect_lines(&actual, &[&format!("warning: --data: process {process} uses the stream events now")]);
    let actual = run(folder.path(), "serve --nats 127.0.0.1:0 --data streams", &[]);
    server.kill().and_then(|()| server.wait()).expect("it runs");
    assert_eq!(actual.status, Some(1), "{}", actual.out);
    assert!(actual.err.contains(&format!("is in use by process {process}")), "{}", actual.err);
}

/// The page of the documentation is the output of the binary; `cargo xtask configuration --write` updates it.
#[test]
fn the_page_of_the_documentation_is_current() {
    let folder = folder("");
    let actual = run(folder.path(), "options", &[]);
    assert_eq!(actual.status, Some(0), "{}", actual.err);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    for (number, (page, actual)) in page.lines().zip(actual.out.lines()).enumerate() {
        assert_eq!(
            page,
            actual,
            "line {} of docs/configuration.md; run `cargo xtask configuration --write`",
            number + 1
        );
    }
    assert_eq!(page.len(), actual.out.len(), "run `cargo xtask configuration --write`");
}

/// Rule of access: the server's own paths are never given to a pool, and a pattern for one is not ignored silently.
#[test]
fn a_pool_at_a_path_of_the_server_is_warned_of() {
    let pool = |pattern: &str| format!("[[app]]\nname = 'a'\nmatch = '{pattern}'\ncommand = 'true'\n");
    for (pattern, own) in [
        ("/publish/*", "/publish/*"),
        ("/publish/orders.new", "/publish/*"),
        ("/subscribe/a/*", "/subscribe/*"),
        ("/nats", "/nats"),
        ("/status", "/status"),
        ("/metrics", "/metrics"),
        ("/livez", "/livez"),
        ("/readyz", "/readyz"),
    ] {
        let actual = run(folder(&pool(pattern)).path(), "check", &[]);
        assert_eq!(actual.status, Some(0), "{}", actual.err);
        let warning =
            format!("the server answers {own} itself, so the app `a` gets no request for {pattern}");
        assert!(actual.out.contains(&warning), "{}", actual.out);
    }
    for pattern in ["/*", "/publisher/*", "/p/*", "/status/*"] {
        let actual = run(folder(&pool(pattern)).path(), "check", &[]);
        expect_lines(&actual, &["no errors"]);
        expect_no_warning(&actual);
    }
    // Without its own pages, the server leaves their paths to pools.
    let actual = run(folder(&pool("/status")).path(), "check --admin off", &[]);
    expect_no_warning(&actual);
}

#[test]
fn errors_in_pools_are_reported() {
    for (settings, reason) in [
        ("[[app]]\nname = 'a'\n", "stilling.toml:1: this app has no command, such as command = "),
        ("[[app]]\ncommand = 'true'\n", "stilling.toml:1: this app has no name, such as name = "),
        ("[[app]]\nnmae = 'a'\n", "stilling.toml:2: an app has no key `nmae`; did you mean `name`?"),
        (
            "[[app]]\nname = 'a'\ncommand = 'b'\nmatch = 'shop'\n",
            "stilling.toml:4: match: `shop` is not a path",
        ),
        (
            "demo = true\n[[app]]\nname = 'a'\ncommand = 'b'\n",
            "stilling.toml:2: an app replaces the worker threads",
        ),
        ("[[app]]\nname = 'a b'\ncommand = 'c'\n", "`a b` is not a name of a pool"),
        (
            "[[app]]\nname = 'a'\ncommand = 'b'\nspeaks = 'fastcgi'\n",
            "stilling.toml:4: speaks: `fastcgi` is not http or frames",
        ),
        (
            "[[app]]\nname = 'a'\ncommand = 'b'\nspeaks = 'frames'\nconcurrency = 2\n",
            "a process that speaks frames serves one request at a time",
        ),
    ] {
        let actual = run(folder(settings).path(), "check", &[]);
        assert_eq!(actual.status, Some(1), "{settings}{}", actual.out);
        assert!(actual.err.contains(reason), "{settings}{}", actual.err);
    }
}
