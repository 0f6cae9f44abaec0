//! `stilling check` and `stilling options` as a user meets them, and settings from files as the binary finds them.
#![cfg(target_os = "linux")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// What the command said in a folder with this `stilling.toml`: its status, output and errors.
struct Said {
    status: Option<i32>,
    out: String,
    err: String,
}

fn run(folder: &Path, arguments: &str, variables: &[(&str, &str)]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stilling"));
    command.args(arguments.split_whitespace()).current_dir(folder).stdin(Stdio::null());
    command.env_clear().envs(variables.iter().copied());
    let output = command.output().expect("the binary runs");
    let text = |bytes| String::from_utf8(bytes).expect("it says text");
    Said { status: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

fn folder(settings: &str) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    if !settings.is_empty() {
        std::fs::write(folder.path().join("stilling.toml"), settings).expect("it can be written");
    }
    folder
}

#[track_caller]
fn told(said: &Said, lines: &[&str]) {
    for line in lines {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let found = said.out.lines().chain(said.err.lines()).any(|said| words(said).contains(line));
        assert!(found, "{line} is not in\n{}{}", said.out, said.err);
    }
}

/// Row 4.19: without a file and options, what will be opened is said, and that is well.
#[test]
fn the_defaults_are_well() {
    let folder = folder("");
    let said = run(folder.path(), "check", &[]);
    assert_eq!((said.status, said.err.as_str()), (Some(0), ""));
    told(&said, &["settings no file", "http 127.0.0.1:9000 (default)", "nothing is wrong"]);
    assert!(!said.out.contains("warning"), "{}", said.out);
}

#[test]
fn the_file_of_the_folder_is_read_and_every_place_is_named() {
    let folder = folder("accept-threads = 1\nlisten = ['127.0.0.1:1']\nadmin = '127.0.0.1:2'\n");
    let said = run(folder.path(), "check --listen 127.0.0.1:3", &[("STILLING_ADMIN", "127.0.0.1:4")]);
    assert_eq!(said.status, Some(0), "{}", said.err);
    told(
        &said,
        &["settings stilling.toml", "http 127.0.0.1:3 (--listen)", "admin 127.0.0.1:4 (STILLING_ADMIN)"],
    );
    let said = run(folder.path(), "check", &[]);
    told(&said, &["http 127.0.0.1:1 (stilling.toml:2)", "admin 127.0.0.1:2 (stilling.toml:3)"]);
}

#[test]
fn what_is_wrong_is_said_with_its_line_and_exit_status_1() {
    let folder = folder("max-queue = 0\nlisten = ['0.0.0.0:9']\nlimit = 3\n");
    for command in ["check", "serve"] {
        let said = run(folder.path(), command, &[]);
        assert_eq!((said.status, said.out.as_str()), (Some(1), ""), "{command}");
        let expected = "stilling: stilling.toml:1: max-queue = `0` is refused: 0 is not in 1..=1000000\n\
                        stilling: stilling.toml:3: there is no key `limit`; `stilling options` lists all\n";
        assert_eq!(said.err, expected, "{command}");
    }
    let said = run(folder.path(), "check --config other.toml", &[]);
    assert_eq!(
        (said.status, said.err.as_str()),
        (Some(1), "stilling: --config: there is no file `other.toml`\n")
    );
    // A wrong command line is EX_USAGE, as ever.
    assert_eq!(run(folder.path(), "check --max-queue 0", &[]).status, Some(64));
}

#[test]
fn streams_users_and_the_folder_of_streams_are_told_and_nothing_is_made() {
    let folder = folder(
        "nats = ['127.0.0.1:4222']\nsyslog-unix = ['log']\ndata = 'kept/here'\n\
         [[stream]]\nname = 'orders'\nsubjects = ['orders.>', 'events.>']\nretention-age = '1d'\nretention-bytes = '1MiB'\n\
         [[user]]\nname = 'ann'\npassword-env = 'ANN'\npublish = ['orders.>']\n",
    );
    let said = run(folder.path(), "check", &[("ANN", "x")]);
    assert_eq!(said.status, Some(0), "{}", said.err);
    told(
        &said,
        &[
            "nats 127.0.0.1:4222 (stilling.toml:1)",
            "syslog log (stilling.toml:2)",
            "stream orders: orders.>, events.>; disk; keeps 1MiB, 1d",
            "user ann: password; publishes orders.>; subscribes >",
            "kept/here (stilling.toml:3): made at the first durable publish,",
        ],
    );
    assert!(!said.out.contains("http"), "a listener is named, so no other is opened: {}", said.out);
    assert!(!folder.path().join("kept").exists() && !folder.path().join("log").exists());
    let said = run(folder.path(), "check", &[]);
    assert_eq!(said.status, Some(1));
    told(&said, &["stilling.toml:11: password-env: the environment has no `ANN`"]);
    std::fs::write(folder.path().join("kept"), "").expect("it can be written");
    let said = run(folder.path(), "check", &[("ANN", "x")]);
    assert_eq!(said.status, Some(1), "{}", said.out);
    told(&said, &["stilling.toml:3: `", "kept` is no folder, so nothing can be kept in"]);
    assert!(!said.out.contains("nothing is wrong"));
}

#[test]
fn what_is_not_wise_is_warned_of() {
    let folder = folder(
        "nats = ['0.0.0.0:4222']\nsyslog-udp = ['0.0.0.0:514']\nsyslog-subject = 'logs.{host}'\n\
         [[stream]]\nname = 'all'\nsubjects = ['events.>']\nretention-bytes = '1024TiB'\n",
    );
    let said = run(folder.path(), "check", &[("STILLING_SERVICE_HOST", "10.0.0.1")]);
    assert_eq!(said.status, Some(0), "{}", said.err);
    told(
        &said,
        &[
            "warning: stilling.toml:1: 0.0.0.0:4222 can be reached from other machines, and without a user",
            "warning: stilling.toml:2: 0.0.0.0:514 can be reached from other machines, and what they send is refused",
            "warning: stilling.toml:3: no stream keeps `logs.{host}`",
            "the streams may come to keep 1024TiB, and there are",
            "warning: STILLING_SERVICE_HOST: there is no such setting; it is not read",
        ],
    );
    let path = folder.path().join("stilling.toml");
    std::fs::write(&path, "nats = ['0.0.0.0:4222']\n[[user]]\nname = 'ann'\npassword = 'x'\n")
        .expect("it can be written");
    for (mode, is_warned) in [(0o644, true), (0o600, false)] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("it is ours");
        let said = run(folder.path(), "check", &[]);
        assert_eq!(said.status, Some(0), "{}", said.err);
        assert!(!said.out.contains("without a user"), "{}", said.out);
        assert_eq!(
            said.out.contains("everybody on this machine can read `stilling.toml`"),
            is_warned,
            "{}",
            said.out
        );
    }
}

/// The page of the documentation is what the binary says; `cargo xtask configuration --write` makes it so.
#[test]
fn the_page_of_the_documentation_is_current() {
    let folder = folder("");
    let said = run(folder.path(), "options", &[]);
    assert_eq!(said.status, Some(0), "{}", said.err);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    for (number, (page, said)) in page.lines().zip(said.out.lines()).enumerate() {
        assert_eq!(
            page,
            said,
            "line {} of docs/configuration.md; run `cargo xtask configuration --write`",
            number + 1
        );
    }
    assert_eq!(page.len(), said.out.len(), "run `cargo xtask configuration --write`");
}
