//! Programs needed by tests and measurements; missing ones are installed from Debian packages.

use std::path::Path;
use std::process::Command;

use crate::XtaskResult;
use crate::steps;

pub(crate) struct RequiredProgram {
    name: &'static str,
    package: &'static str,
}

const fn program(name: &'static str, package: &'static str) -> RequiredProgram {
    RequiredProgram { name, package }
}

pub(crate) const FOR_TESTS: [RequiredProgram; 21] = [
    program("ab", "apache2-utils"),
    program("chromium", "chromium"),
    program("coap-server-notls", "libcoap3-bin"),
    program("curl", "curl"),
    program("go", "golang-go"),
    program("ip", "iproute2"),
    program("logger", "bsdutils"),
    program("mount", "mount"),
    program("nginx", "nginx-light"),
    program("node", "nodejs"),
    program("npm", "npm"),
    program("nsenter", "util-linux"),
    program("prlimit", "util-linux"),
    program("promtool", "prometheus"),
    program("python3", "python3"),
    program("rsyslogd", "rsyslog"),
    program("ss", "iproute2"),
    program("strace", "strace"),
    program("tshark", "tshark"),
    program("unshare", "util-linux"),
    program("wrk", "wrk"),
];

pub(crate) const FOR_BENCH: [RequiredProgram; 6] = [
    program("ab", "apache2-utils"),
    program("ip", "iproute2"),
    program("nginx", "nginx-light"),
    program("perf", "linux-perf"),
    program("prlimit", "util-linux"),
    program("wrk", "wrk"),
];

/// Programs for `cargo xtask bench app`, besides gunicorn.
pub(crate) const FOR_BENCH_APP: [RequiredProgram; 5] = [
    program("ip", "iproute2"),
    program("nginx", "nginx-light"),
    program("node", "nodejs"),
    program("perf", "linux-perf"),
    program("python3", "python3"),
];

/// Programs for `cargo xtask bench collect` and `cargo xtask crash`, besides nats-server.
pub(crate) const FOR_BENCH_COLLECT: [RequiredProgram; 3] =
    [program("ip", "iproute2"), program("redis-server", "redis-server"), program("rsyslogd", "rsyslog")];

/// Programs for `cargo xtask bench broadcast`, besides nats-server.
pub(crate) const FOR_BENCH_BROADCAST: [RequiredProgram; 4] = [
    program("ip", "iproute2"),
    program("mosquitto", "mosquitto"),
    program("redis-server", "redis-server"),
    program("strace", "strace"),
];

/// Programs for `cargo xtask bench coap`.
pub(crate) const FOR_BENCH_COAP: [RequiredProgram; 4] = [
    program("coap-server-notls", "libcoap3-bin"),
    program("ip", "iproute2"),
    program("javac", "default-jdk-headless"),
    program("mvn", "maven"),
];

/// Programs for `cargo xtask bench tcl`, besides those of Tcl.
pub(crate) const FOR_BENCH_TCL: [RequiredProgram; 6] = [
    program("ab", "apache2-utils"),
    program("ip", "iproute2"),
    program("nsenter", "util-linux"),
    program("prlimit", "util-linux"),
    program("tc", "iproute2"),
    program("unshare", "util-linux"),
];

/// Programs, headers and packages of Tcl 8.6 for the Tcl extension and its tests. A package without a program is there
/// if one of its files is.
pub(crate) const FOR_TCL: [RequiredProgram; 9] = [
    program("/usr/include/tcl8.6/tcl.h", "tcl8.6-dev"),
    program("/usr/share/doc/tcl-thread/copyright", "tcl-thread"),
    program("/usr/share/doc/tcl-tls/copyright", "tcl-tls"),
    program("/usr/share/doc/tcllib/copyright", "tcllib"),
    program("cc", "gcc"),
    program("groff", "groff-base"),
    program("openssl", "openssl"),
    program("tclsh8.6", "tcl8.6"),
    program("valgrind", "valgrind"),
];

/// Programs for `cargo xtask tcl-valgrind`, besides those of Tcl.
pub(crate) const FOR_TCL_VALGRIND: [RequiredProgram; 3] =
    [program("ip", "iproute2"), program("prlimit", "util-linux"), program("unshare", "util-linux")];

/// Programs and headers that fetch sources of Tcl and build Tcl 9.0.
pub(crate) const FOR_TCL_SOURCES: [RequiredProgram; 5] = [
    program("/usr/include/tommath.h", "libtommath-dev"),
    program("/usr/include/zlib.h", "zlib1g-dev"),
    program("cc", "gcc"),
    program("dpkg-source", "dpkg-dev"),
    program("make", "make"),
];

pub(crate) const FOR_SOAK: [RequiredProgram; 6] = [
    program("ab", "apache2-utils"),
    program("curl", "curl"),
    program("ip", "iproute2"),
    program("node", "nodejs"),
    program("prlimit", "util-linux"),
    program("wrk", "wrk"),
];

/// Installs the packages of missing programs.
///
/// # Errors
/// If there is no apt-get, the user may not install packages, or the installation fails; the message gives the remedy.
pub(crate) fn install(programs: &[RequiredProgram]) -> XtaskResult {
    let missing = missing(programs, is_there);
    if missing.is_empty() {
        println!("all {} programs are installed", programs.len());
        return Ok(());
    }
    let by_hand = format!("install by hand: {}", missing.join(" "));
    if !is_there("apt-get") {
        return Err(format!("programs are missing and there is no apt-get here; {by_hand}").into());
    }
    let is_root = is_root();
    if !is_root && !is_there("sudo") {
        return Err(format!("programs are missing, and only root may install; {by_hand}").into());
    }
    let apt = |arguments: &[&str]| {
        // No password prompt: a test run must not wait for input.
        let mut command = Command::new(if is_root { "env" } else { "sudo" });
        if !is_root {
            command.args(["-n", "env"]);
        }
        command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]).args(arguments);
        steps::run(&mut command).map_err(|error| format!("{error}\n{by_hand}"))
    };
    apt(&["update"])?;
    apt(&[&["install", "--no-install-recommends"][..], &missing].concat())?;
    Ok(())
}

/// Packages of the programs that `is_there` does not find, without duplicates.
fn missing<'a>(programs: &[RequiredProgram], is_there: impl Fn(&str) -> bool) -> Vec<&'a str> {
    let mut packages: Vec<_> =
        programs.iter().filter(|program| !is_there(program.name)).map(|program| program.package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// Whether a program is in the path or in Debian's folders for administrators, or a file given by its absolute path
/// exists.
fn is_there(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    directories.map(|directory| directory.join(name)).any(|file| Path::is_file(&file))
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_requested_once_and_only_when_a_program_of_it_is_missing() {
        assert_eq!(missing(&FOR_TESTS, |_| true), [""; 0]);
        assert_eq!(missing(&FOR_TESTS, |name| name != "ip" && name != "ss"), ["iproute2"]);
        assert_eq!(
            missing(&FOR_BENCH, |_| false),
            ["apache2-utils", "iproute2", "linux-perf", "nginx-light", "util-linux", "wrk"]
        );
    }

    #[test]
    fn a_file_given_by_its_path_is_found_only_there() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path().to_str().expect("a path");
        assert!(is_there(path) && !is_there(&format!("{path}x")));
    }
}
