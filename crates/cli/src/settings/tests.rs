//! Settings from all sources at once: precedence and error messages.

use std::io::Write;
use std::time::Duration;

use stilling::ServeConfig;
use stilling::settings::{Durability, StreamConfig};
use tempfile::NamedTempFile;

use super::*;
use crate::resolved::ResolvedSettings;

/// Resolves arguments of `stilling`, variables and a file; errors name the file `FILE`.
pub(super) fn resolve(
    words: &str,
    variables: &[(&str, &str)],
    file: &str,
) -> Result<ResolvedSettings, String> {
    let mut named = NamedTempFile::new().expect("a file");
    named.write_all(file.as_bytes()).expect("it can be written");
    let path = named.path().to_str().expect("a name of letters").to_owned();
    let mut all: Vec<OsString> = vec!["stilling".into()];
    all.extend(words.split_whitespace().map(OsString::from));
    all.extend(["--config".into(), path.clone().into()]);
    let variables: Vec<_> = variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    let said = |error: &dyn ToString| error.to_string().replace(&path, "FILE");
    let (cli, sources) = load_settings(all, &variables).map_err(|stop| match stop {
        SettingsError::Usage(error, notes) => said(&format!("{}{notes}", error.render())),
        SettingsError::Settings(diagnostics) => said(&diagnostics),
    })?;
    let crate::CliCommand::Serve(arguments) = cli.command else { panic!("not to be served") };
    arguments.resolve(sources).map_err(|error| said(&error))
}

fn config(words: &str, variables: &[(&str, &str)], file: &str) -> ServeConfig {
    resolve(words, variables, file)
        .unwrap_or_else(|error| panic!("{words} {variables:?} {file}: {error}"))
        .config
}

#[track_caller]
fn refused(words: &str, variables: &[(&str, &str)], file: &str, reasons: &[&str]) {
    let error = resolve(words, variables, file).err().unwrap_or_else(|| panic!("{words} {file}: accepted"));
    for reason in reasons {
        assert!(error.contains(reason), "{words} {file}: {reason} is not in {error}");
    }
}

#[test]
fn each_source_wins_over_the_one_before() {
    let (variable, file) = ([("STILLING_MAX_QUEUE", "20")], "max-queue = 10");
    assert_eq!(config("serve", &[], "").queue_max, 4096);
    assert_eq!(config("serve", &[], file).queue_max, 10);
    assert_eq!(config("serve", &variable, file).queue_max, 20);
    assert_eq!(config("serve --max-queue 30", &variable, file).queue_max, 30);
    assert_eq!(config("serve", &[("STILLING_MAX_QUEUE", "")], file).queue_max, 10, "empty says nothing");
}

#[test]
fn a_list_comes_whole_from_the_source_with_the_highest_precedence() {
    let ports =
        |config: ServeConfig| config.listen.iter().map(std::net::SocketAddr::port).collect::<Vec<_>>();
    let (variable, file) = (
        [("STILLING_LISTEN", "127.0.0.1:3,127.0.0.1:4 127.0.0.1:5")],
        "listen = ['127.0.0.1:1', '127.0.0.1:2']",
    );
    assert_eq!(ports(config("serve", &[], "")), [9000]);
    assert_eq!(ports(config("serve", &[], file)), [1, 2]);
    assert_eq!(ports(config("serve", &[], "listen = '127.0.0.1:1'")), [1]);
    assert_eq!(ports(config("serve", &variable, file)), [3, 4, 5]);
    assert_eq!(ports(config("serve -l 127.0.0.1:6", &variable, file)), [6]);
}

#[test]
fn a_port_and_addresses_take_the_place_of_each_other() {
    let ports =
        |config: ServeConfig| config.listen.iter().map(std::net::SocketAddr::port).collect::<Vec<_>>();
    assert_eq!(ports(config("serve -p 7", &[], "listen = ['127.0.0.1:1']")), [7]);
    assert_eq!(ports(config("serve", &[("STILLING_LISTEN", "127.0.0.1:8")], "port = 1")), [8]);
    assert_eq!(ports(config("serve -p 7", &[("STILLING_PORT", "8")], "port = 1")), [7]);
    refused(
        "serve",
        &[],
        "port = 1\nlisten = ['127.0.0.1:1']",
        &["cannot be used with", "note: --port is set by FILE:1"],
    );
}

#[test]
fn a_switch_is_true_or_false_in_every_source() {
    for (words, variable, file, expected) in [
        ("serve", "", "", false),
        ("serve", "", "demo = true", true),
        ("serve", "", "demo = false", false),
        ("serve", "true", "", true),
        ("serve", "0", "demo = true", false),
        ("serve --demo", "false", "demo = false", true),
    ] {
        assert_eq!(
            config(words, &[("STILLING_DEMO", variable)], file).demo,
            expected,
            "{words} {variable} {file}"
        );
    }
}

#[test]
fn sizes_and_times_may_have_units() {
    let config = config(
        "serve --drain-timeout 2m",
        &[("STILLING_MAX_HEAD_SIZE", "4KiB")],
        "max-body-size = '2MiB'\nhead-timeout = 1.5\nidle-timeout = '500ms'",
    );
    assert_eq!((config.limits.head_size_max, config.limits.body_size_max), (4096, 2 << 20));
    let timeouts = config.timeouts;
    assert_eq!((timeouts.head, timeouts.idle), (Duration::from_millis(1500), Duration::from_millis(500)));
    assert_eq!(timeouts.drain, Duration::from_secs(120));
}

/// Options that require each other may come from different sources.
#[test]
fn sources_add_up() {
    let app = config("serve --processes 3", &[("STILLING_APP_TIMEOUT", "5s")], "app = 'run {socket}'")
        .apps
        .remove(0);
    assert_eq!(
        (app.processes.processes, app.timeout, app.command.as_str()),
        (3, Duration::from_secs(5), "run {socket}")
    );
    refused("serve --processes 3", &[], "", &["--app <COMMAND>"]);
    refused("serve", &[], "processes = 3", &["--app <COMMAND>"]);
    refused(
        "serve --app true",
        &[],
        "\nworker-threads = 3",
        &[
            "'--worker-threads <N>' cannot be used with '--app <COMMAND>'",
            "note: --worker-threads is set by FILE:2",
        ],
    );
}

#[test]
fn what_is_not_known_is_refused_with_the_nearest_name() {
    refused("serve", &[], "max-queu = 1", &["FILE:1: there is no key `max-queu`; did you mean `max-queue`?"]);
    refused(
        "serve",
        &[],
        "\n\nmax_queue = 1",
        &["FILE:3: there is no key `max_queue`; did you mean `max-queue`?"],
    );
    refused(
        "serve",
        &[],
        "colour = 'red'",
        &["FILE:1: there is no key `colour`; `stilling options` lists all"],
    );
    refused("serve", &[], "config = 'x'", &["there is no key `config`"]);
    refused("serve", &[], "help = true", &["there is no key `help`"]);
    refused("serve", &[], "[limits]\nmax-queue = 1", &["FILE:1: there is no key `limits`"]);
    refused(
        "serve",
        &[],
        "[[streams]]\nname = 'a'",
        &["FILE:1: there is no key `[[streams]]`; did you mean `stream`?"],
    );
    refused(
        "serve",
        &[],
        "[stream]\nname = 'a'",
        &["FILE:1: there may be several, so each begins with [[stream]]"],
    );
    refused(
        "serve",
        &[],
        "[[stream]]\nname = 'a'\nsubject = 'a'",
        &["FILE:3: a stream has no key `subject`; did you mean `subjects`?"],
    );
    refused(
        "serve",
        &[],
        "[[user]]\nname = 'a'\npass = 'a'",
        &["FILE:3: a user has no key `pass`; it has name, password"],
    );
}

/// Scripts and Kubernetes also use names that begin with `STILLING_`.
#[test]
fn a_variable_that_is_no_setting_is_a_warning() {
    let warnings = |variables: &[(&str, &str)]| {
        let resolved = resolve("serve", variables, "").unwrap_or_else(|error| panic!("{error}"));
        resolved.sources.warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(warnings(&[("PATH", "x"), ("STILLING_MAX_QUEUE", "1")]), [""; 0]);
    assert_eq!(
        warnings(&[("STILLING_SOCKET", "x"), ("STILLING_MAX_QUEUES", "1")]),
        [
            "STILLING_MAX_QUEUES: no such setting, not read; did you mean STILLING_MAX_QUEUE?",
            "STILLING_SOCKET: no such setting, not read"
        ]
    );
    let links = [
        ("STILLING_SERVICE_HOST", "10.0.0.1"),
        ("STILLING_SERVICE_PORT", "9000"),
        ("STILLING_SERVICE_PORT_HTTP", "9000"),
        ("STILLING_PORT", "tcp://10.0.0.1:9000"),
        ("STILLING_PORT_9000_TCP", "tcp://10.0.0.1:9000"),
        ("STILLING_PORT_9000_TCP_PROTO", "tcp"),
        ("STILLING_PORT_9000_TCP_PORT", "9000"),
        ("STILLING_PORT_9000_TCP_ADDR", "10.0.0.1"),
        ("STILLING_PORT_514_UDP", "udp://10.0.0.1:514"),
        ("STILLING_LOGS_SERVICE_HOST", "10.0.0.2"),
    ];
    assert_eq!(
        warnings(&links),
        [
            "STILLING_LOGS_SERVICE_HOST: set by Kubernetes for a service of this name (and 9 more), not read; enableServiceLinks: false removes it"
        ]
    );
    let ports = |variables: &[(&str, &str)]| config("serve", variables, "").listen[0].port();
    assert_eq!(ports(&links), 9000);
    assert_eq!(ports(&[("STILLING_PORT", "9001")]), 9001, "a number is the setting");
    refused("serve", &[("STILLING_PORT", "tpc://x")], "", &["STILLING_PORT: `tpc://x` is refused"]);
}

#[test]
fn a_wrong_value_is_refused_with_its_place_and_what_is_allowed() {
    for (file, reason) in [
        (
            "accept-threads = 0",
            "FILE:1: accept-threads = `0` is refused: 0 is not in the range 1 to 16000000",
        ),
        ("driver = 'kqueue'", "FILE:1: driver = `kqueue` is refused: it is one of auto, uring, poll"),
        ("demo = 'yes'", "FILE:1: demo = `yes` is refused: it is true or false"),
        (
            "head-timeout = 'soon'",
            "head-timeout = `soon` is refused: `soon` is not a number of seconds, nor one with ms, s, m, h or d",
        ),
        ("max-body-size = '1M'", "`1M` is not a number of bytes, such as 65536, 64KiB"),
        ("max-queue = [1, 2]", "FILE:1: max-queue takes one value, not a list"),
        ("listen = []", "FILE:1: listen is an empty list; leave it out"),
        ("user = []", "FILE:1: user is an empty list"),
        ("stream = {}", "FILE:1: there may be several, so each begins with [[stream]]"),
        ("max-queue = 1979-05-27", "FILE:1: max-queue is a date, and takes"),
        ("listen = [['a']]", "FILE:1: listen is a list of lists, and takes"),
        (
            "listen = ['127.0.0.1:1', 'localhost:2']",
            "listen = `localhost:2` is refused: it must be an IP address and a port",
        ),
        ("[[stream]]\nname = 'a'\nsubjects = 1979-05-27", "FILE:3: subjects is a date"),
        ("a = 1\n\nb = = 2", "FILE:3: invalid TOML: "),
        ("demo = true\ndemo = true", "FILE:2: invalid TOML: "),
    ] {
        refused("serve", &[], file, &[reason]);
    }
    refused(
        "serve",
        &[("STILLING_ACCEPT_THREADS", "x")],
        "",
        &["STILLING_ACCEPT_THREADS: `x` is refused: not a whole number"],
    );
}

/// One run of the command reports all errors.
#[test]
fn all_errors_are_reported_at_once() {
    let file = "demo = 'x'\nmax-queue = 1\nport = 0\n[[stream]]\nsubject = 'x'\n";
    let error = resolve("serve", &[("STILLING_DRIVER", "x")], file).err().expect("nothing of it is right");
    let places: Vec<_> = error
        .lines()
        .map(|line| line.split(": ").find(|word| !word.starts_with("stilling")).unwrap_or(""))
        .collect();
    assert_eq!(places, ["FILE:1", "FILE:3", "FILE:5", "STILLING_DRIVER"], "{error}");
    let file = "[[stream]]\nname = 'a'\nsubjects = ['a']\n[[stream]]\nname = 'b'\nsubjects = ['*']\nmax-message-size = 0\n";
    refused(
        "serve",
        &[],
        file,
        &[
            "FILE:6: `*` of the stream `b` overlaps `a` of the stream `a`; a subject belongs to one stream",
            "FILE:7: 0 is not in the range 1 to 8388608",
        ],
    );
}

/// The same for options of the command line, in every notation.
#[test]
fn every_wrong_option_is_reported_in_one_run() {
    let words = "serve -w abc -C0 -A=0 --driver kqueue --nats=here --listn 127.0.0.1:1 --drain-timeout --stream x extra --user ann";
    let error =
        resolve(words, &[("STILLING_MAX_QUEUE", "many")], "max-queue = 'few'").err().expect("all wrong");
    for line in [
        "`--listn`: no such option; did you mean `--listen`?",
        "`extra`: not expected here",
        "FILE:1: max-queue = `few` is refused: not a whole number",
        "STILLING_MAX_QUEUE: `many` is refused: not a whole number",
        "--accept-capacity: `0` is refused: 0 is not in the range 1 to 16000000",
        "--accept-threads: `0` is refused: 0 is not in the range 1 to 16000000",
        "--drain-timeout: it needs a value",
        "--driver: `kqueue` is refused: it is one of auto, uring, poll",
        "--nats: `here` is refused: it must be an IP address and a port",
        "--stream: `x` is not a stream, such as orders=orders.>",
        "--user: the user `ann` has no credential",
        "--worker-threads: `abc` is refused: not a whole number",
    ] {
        assert!(
            error.lines().any(|one| one.trim_start_matches("stilling: ").starts_with(line)),
            "{line} is not in {error}"
        );
    }
    assert_eq!(error.lines().count(), 12, "{error}");
}

/// A refused option satisfies the options that require it, and still conflicts with those that it excludes.
#[test]
fn an_error_that_follows_from_another_is_not_reported() {
    let error = resolve("serve --free-threshold x --spawn-hunk 5", &[], "").err().expect("one is wrong");
    assert_eq!(error, "--free-threshold: `x` is refused: not a whole number");
    let error = resolve("serve -A x -p 1 -l 127.0.0.1:2", &[], "").err().expect("two are wrong");
    assert_eq!(error.lines().count(), 2, "{error}");
    assert!(error.contains("cannot be used with"), "{error}");
}

#[test]
fn streams_and_users_come_from_tables_or_arguments() {
    assert_eq!(config("serve", &[], "").hub.streams, [StreamConfig::new("events", ["events.>"])]);
    let file = "
        data = 'somewhere'
        [[stream]]
        name = 'orders'
        subjects = ['orders.>', 'returns']
        durability = 'memory'
        retention-records = 7
        [[stream]]
        name = 'logs'
        subjects = 'logs.>'
        [[user]]
        name = 'ann'
        password = 'x'
        publish = []
    ";
    let hub = config("serve", &[], file).hub;
    assert_eq!(hub.streams[0].subjects, ["orders.>", "returns"]);
    assert_eq!((hub.streams[0].durability, hub.streams[0].retention.records), (Durability::Memory, Some(7)));
    assert_eq!(hub.streams[1], StreamConfig::new("logs", ["logs.>"]));
    assert!(hub.users[0].publish.is_empty() && hub.users[0].subscribe == [">"]);
    assert!(hub.data.is_absolute() && hub.data.ends_with("somewhere"), "{}", hub.data.display());
    // Words replace all tables of the file, as with every list.
    let variables = [("STILLING_STREAM", "a=a.>,b:memory c=c"), ("STILLING_USER", "bo:token=y")];
    let hub = config("serve", &variables, file).hub;
    let names: Vec<_> = hub.streams.iter().map(|stream| stream.name.as_str()).collect();
    assert_eq!((names, hub.users[0].name.as_str()), (vec!["a", "c"], "bo"));
    let hub = config("serve --stream d=d", &variables, file).hub;
    assert_eq!(hub.streams, [StreamConfig::new("d", ["d"])]);
    refused("serve --stream d", &[], "", &["--stream: `d` is not a stream, such as orders=orders.>"]);
    refused(
        "serve",
        &[("STILLING_STREAM", "a=a b=*")],
        "",
        &["STILLING_STREAM: `*` of the stream `b` overlaps"],
    );
    refused("serve", &[], "[[user]]\nname = 'ann'", &["FILE:1: the user `ann` has no credential"]);
    refused(
        "serve",
        &[],
        "[[user]]\nname = 'ann'\npassword = ''",
        &["FILE:3: the password of `ann` is empty"],
    );
    refused(
        "serve",
        &[],
        "[[stream]]\nname = 'a b'\nsubjects = ['a']",
        &["FILE:2: `a b` is not a valid stream name"],
    );
}

#[test]
fn naming_a_listener_opens_only_the_named_ones() {
    assert_eq!(config("serve --syslog-udp 127.0.0.1:5514", &[], "").listen, []);
    let both = config("serve", &[], "nats = ['127.0.0.1:1']\nlisten = ['127.0.0.1:2']");
    assert_eq!((both.listen.len(), both.hub.nats.len()), (1, 1));
    assert!(config("serve -p 1", &[], "").hub.nats.is_empty());
    refused(
        "serve",
        &[],
        "listen = ['0.0.0.0:4222']\nnats = ['127.0.0.1:4222']",
        &["FILE:2: 127.0.0.1:4222 is taken: `listen` listens on 0.0.0.0:4222"],
    );
}

/// Only the commands with settings read them.
#[test]
fn other_commands_do_not_read_settings() {
    let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
    let variables = [("STILLING_MAX_QUEUE".into(), "wrong".into())];
    assert!(load_settings(words("stilling options"), &variables).is_ok());
    for command in ["stilling serve", "stilling check"] {
        let wrong = load_settings(words(command), &variables).ok().expect("the rest is read").1.wrong;
        assert_eq!(wrong.len(), 1, "{command}");
    }
    assert!(matches!(
        load_settings(words("stilling serve --help"), &variables),
        Err(SettingsError::Usage(..))
    ));
}

#[test]
fn a_file_that_is_named_has_to_be_there() {
    let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
    let said = |words, variables: &[_]| match load_settings(words, variables) {
        Ok((_, sources)) => Diagnostics(sources.wrong).to_string(),
        Err(_) => panic!("the rest is read"),
    };
    assert_eq!(said(words("stilling serve --config no/file"), &[]), "--config: there is no file `no/file`");
    let variable = [("STILLING_CONFIG".into(), "no/file".into())];
    assert_eq!(said(words("stilling serve"), &variable), "STILLING_CONFIG: there is no file `no/file`");
    assert!(said(words("stilling serve --config ."), &[]).starts_with("--config: cannot read `.`: "));
    let mut file = NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("a name of letters").to_owned();
    file.write_all(b"# \xff").expect("it can be written");
    let serve = || words(&format!("stilling serve --config {path}"));
    assert!(said(serve(), &[]).ends_with("is not UTF-8 at byte 2"));
    let mebibyte = usize::try_from(file::FILE_SIZE_MAX).expect("it fits");
    file.write_all(&vec![b'#'; mebibyte]).expect("it can be written");
    assert!(said(serve(), &[]).contains("has more than 1048576 bytes"));
}

/// The output of `--verbose` is a file with the same meaning.
#[test]
fn the_printed_settings_can_be_read_back() {
    for words in [
        "serve",
        "serve --port 9001 --verbose --demo --open-publish",
        "serve --listen 127.0.0.1:1 --listen [::1]:1 --admin 127.0.0.1:2 -A 3 -w 4 --queue-target off",
        "serve --free-threshold 10 --spawn-hunk 5 --worker-limit 99 --shrink-after 1.5 --max-body-size 2MiB",
        "serve --accept-workers 2 --send-buffer 65536 --driver poll --hub-thread dedicated --queue-timeout 500ms",
        "serve --app true --processes 2 --app-timeout 5s --idle-timeout 0.25",
        "serve --nats 127.0.0.1:4222 --syslog-udp 127.0.0.1:514 --syslog-source 10.0.0.0/8 --syslog-unix log",
        "serve --stream a=a.>,b:memory:retention-bytes=1MiB --stream c=c:none --data kept",
        "serve --coap [::]:5683 --datagram-drop newest --datagram-receive-buffer 1MiB --coap-unproven all",
        "serve --coap [::1]:5683 --coap-slow-time 250ms",
        "serve --coap 127.0.0.1:5683 --coap-source 10.0.0.0/8",
        "serve --packet-log packets --packet-log-files 3 --packet-log-file-size 2MiB",
    ] {
        let printed = resolve(words, &[], "").unwrap_or_else(|error| panic!("{words}: {error}"));
        let read = resolve("serve", &[], &printed.toml);
        let read = read.unwrap_or_else(|error| panic!("{words}: {error}:\n{}", printed.toml));
        // An address that is named must open.
        let expected = stilling::ServeConfig { coap_is_optional: false, ..printed.config };
        assert_eq!(format!("{:?}", read.config), format!("{expected:?}"), "{}", printed.toml);
        assert_eq!(read.toml.matches('=').count(), printed.toml.matches('=').count(), "{}", printed.toml);
    }
}

#[test]
fn printed_settings_hold_no_secret() {
    let words = "serve --user ann:password=hunter2:publish= --user bo:token-file=/dev/null";
    let error = resolve(words, &[], "").err().expect("an empty token");
    assert!(error.contains("bo"), "{error}");
    let words = "serve --user ann:password=hunter2:publish= --user bo:token=swordfish:subscribe=a.>,b";
    let toml = resolve(words, &[], "").unwrap_or_else(|error| panic!("{error}")).toml;
    assert!(!toml.contains("hunter2") && !toml.contains("swordfish"), "{toml}");
    for line in [
        "[[user]]",
        "name = \"ann\"",
        "# password is not shown",
        "publish = []",
        "subscribe = [\"a.>\", \"b\"]",
    ] {
        assert!(toml.lines().any(|said| said.trim() == line), "{line}: {toml}");
    }
}

/// An address belongs to one listener, whichever sources name it.
#[test]
fn an_address_that_is_named_twice_is_refused_with_its_source() {
    refused(
        "serve --listen 127.0.0.1:1 --listen 127.0.0.1:1",
        &[],
        "",
        &["--listen: 127.0.0.1:1 is named twice"],
    );
    let file = "listen = ['127.0.0.1:1']\nadmin = '127.0.0.1:1'";
    refused("serve", &[], file, &["FILE:2: 127.0.0.1:1 is taken: `listen` listens there"]);
    refused("serve --port 1", &[], file, &["FILE:2: 127.0.0.1:1 is taken"]);
    refused("serve --admin 127.0.0.1:9000", &[], "", &["--admin: 127.0.0.1:9000 is taken"]);
    refused("serve --nats 127.0.0.1:1 --nats 127.0.0.1:1", &[], "", &["--nats: 127.0.0.1:1 is named twice"]);
    refused(
        "serve --syslog-udp [::1]:1 --syslog-udp [::1]:1",
        &[],
        "",
        &["--syslog-udp: [::1]:1 is named twice"],
    );
    for words in [
        "serve --listen 127.0.0.1:1 --listen 0.0.0.0:1 --admin 127.0.0.2:1",
        "serve --listen 127.0.0.1:0 --listen 127.0.0.1:0 --admin 127.0.0.1:0",
        "serve --listen 127.0.0.1:1 --syslog-udp 127.0.0.1:1",
    ] {
        config(words, &[], "");
    }
    assert_eq!(config("serve --listen 127.0.0.1:1", &[], "listen = ['127.0.0.1:1']").listen.len(), 1);
}
