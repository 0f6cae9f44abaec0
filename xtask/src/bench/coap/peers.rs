//! The CoAP servers, each with one resource of a given size.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::XtaskResult;
use crate::bench::copy_binary;
use crate::bench::figures::BARE;
use crate::bench::harness::NamedServer;
use crate::bench::server::{BenchDriver, BenchServer};
use crate::steps::run;
use crate::tree;

/// Folder of the peer on Californium, with its list of jars.
const CALIFORNIUM: &str = "peers/californium";

/// The class of that peer.
const CALIFORNIUM_CLASS: &str = "CoapPeer";

/// Program of Debian's libcoap3-bin.
pub(super) const LIBCOAP: &str = "coap-server-notls";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CoapPeer {
    StillingUring,
    StillingPoll,
    Libcoap,
    Californium,
    CaliforniumWithoutDuplicates,
    Bare,
}

/// All servers, in the order of the tables.
pub(super) const ALL: [CoapPeer; 6] = [
    CoapPeer::StillingUring,
    CoapPeer::StillingPoll,
    CoapPeer::Libcoap,
    CoapPeer::Californium,
    CoapPeer::CaliforniumWithoutDuplicates,
    CoapPeer::Bare,
];

/// The programs, with a folder that is removed with its guard.
pub(super) struct CoapPrograms {
    pub(super) folder: PathBuf,
    pub(super) stilling: PathBuf,
    pub(super) bare: PathBuf,
    /// Whether this build of Stilling has a CoAP listener.
    pub(super) serves_coap: bool,
}

/// A started server and the path of its resource.
pub(super) struct RunningPeer {
    pub(super) server: BenchServer,
    pub(super) path: &'static str,
}

impl NamedServer for CoapPeer {
    fn name(&self) -> &'static str {
        CoapPeer::name(*self)
    }
}

fn californium_classes() -> PathBuf {
    tree::target().join("tools").join("californium")
}

/// Downloads the jars of Californium from Maven Central and compiles its peer, unless it is there.
pub(super) fn install_californium() -> XtaskResult {
    let classes = californium_classes();
    if classes.join(format!("{CALIFORNIUM_CLASS}.class")).is_file() {
        return Ok(());
    }
    fs::create_dir_all(&classes)?;
    let classes = classes.canonicalize()?;
    let source = tree::root().join(CALIFORNIUM);
    let mut maven = Command::new("mvn");
    maven.args(["-q", "-B", "-f"]).arg(source.join("pom.xml"));
    maven.arg("org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies");
    run(maven.arg(format!("-DoutputDirectory={}", classes.display())))?;
    let mut javac = Command::new("javac");
    javac.arg("-cp").arg(class_path(&classes)).arg("-d").arg(&classes);
    run(javac.arg(source.join(format!("{CALIFORNIUM_CLASS}.java"))))
}

fn class_path(classes: &Path) -> String {
    format!("{0}:{0}/*", classes.display())
}

impl CoapPrograms {
    pub(super) fn find() -> XtaskResult<(tempfile::TempDir, CoapPrograms)> {
        let guard = tempfile::tempdir()?;
        let folder = guard.path().to_owned();
        let stilling = copy_binary("stilling", &folder)?;
        let help = Command::new(&stilling).args(["serve", "--help"]).output()?;
        let serves_coap = String::from_utf8_lossy(&help.stdout).contains("--coap ");
        let bare = copy_binary("stilling-peer-bare", &folder)?;
        Ok((guard, CoapPrograms { folder, stilling, bare, serves_coap }))
    }
}

impl CoapPeer {
    pub(super) fn name(self) -> &'static str {
        match self {
            CoapPeer::StillingUring => BenchDriver::Uring.name(),
            CoapPeer::StillingPoll => BenchDriver::Poll.name(),
            CoapPeer::Libcoap => "libcoap",
            CoapPeer::Californium => "Californium",
            CoapPeer::CaliforniumWithoutDuplicates => "Californium without duplicate suppression",
            CoapPeer::Bare => BARE,
        }
    }

    /// Its command, as a reader sees it.
    pub(super) fn words(self) -> &'static str {
        match self {
            CoapPeer::StillingUring | CoapPeer::StillingPoll => {
                "`stilling serve --coap … --accept-threads 1`, a demo resource"
            }
            CoapPeer::Libcoap => "`coap-server-notls`, which does not suppress duplicates",
            CoapPeer::Californium => "`peers/californium`, its defaults: duplicates are suppressed",
            CoapPeer::CaliforniumWithoutDuplicates => "the same with `NO_DEDUPLICATOR`",
            CoapPeer::Bare => "`stilling-peer-bare coap`: recvmmsg and sendmmsg, a fixed answer",
        }
    }

    /// Whether it can be measured with a body of this size.
    pub(super) fn is_available(self, programs: &CoapPrograms, size: u32) -> bool {
        match self {
            CoapPeer::StillingUring | CoapPeer::StillingPoll => programs.serves_coap,
            // It knows no blocks.
            CoapPeer::Bare => size <= 1024,
            _ => true,
        }
    }

    /// Starts it with a body of `size` bytes.
    ///
    /// # Errors
    /// If it does not answer.
    pub(super) fn start(self, programs: &CoapPrograms, size: u32) -> XtaskResult<RunningPeer> {
        // Not all servers can report the port they took.
        let address = UdpSocket::bind("127.0.0.1:0")?.local_addr()?;
        let words = self.command(programs, address, size);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdout(Stdio::null()).stderr(Stdio::null());
        let server = BenchServer::with_datagrams(self.name(), words.join(" "), address, command)?;
        let path = match self {
            CoapPeer::StillingUring | CoapPeer::StillingPoll => "large-update",
            CoapPeer::Libcoap => "example_data",
            _ => "small",
        };
        if path != "small" {
            store_body(programs, address, path, size)?;
        }
        Ok(RunningPeer { server, path })
    }

    fn command(self, programs: &CoapPrograms, address: SocketAddr, size: u32) -> Vec<String> {
        let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let (address, size) = (address.to_string(), size.to_string());
        let stilling = |driver: BenchDriver| {
            let program = programs.stilling.display().to_string();
            let driver = driver.option();
            text(&[&program, "serve", "--coap", &address, "--accept-threads", "1", "--driver", driver])
        };
        let californium = |duplicates: &str| {
            let classes = class_path(&californium_classes());
            text(&["java", "-cp", &classes, CALIFORNIUM_CLASS, &ip, &port, &size, "0", duplicates])
        };
        match self {
            CoapPeer::StillingUring => stilling(BenchDriver::Uring),
            CoapPeer::StillingPoll => stilling(BenchDriver::Poll),
            CoapPeer::Libcoap => text(&[LIBCOAP, "-A", &ip, "-p", &port, "-v", "0"]),
            CoapPeer::Californium => californium("duplicates"),
            CoapPeer::CaliforniumWithoutDuplicates => californium("none"),
            CoapPeer::Bare => text(&[&programs.bare.display().to_string(), "coap", &address, &size]),
        }
    }
}

/// Stores the body that the load reads.
fn store_body(programs: &CoapPrograms, address: SocketAddr, path: &str, size: u32) -> XtaskResult {
    let file = programs.folder.join("body");
    fs::write(&file, vec![b'x'; size as usize])?;
    let mut command = Command::new(&programs.stilling);
    command.arg("request").arg(format!("coap://{address}/{path}")).args(["-m", "put", "--file"]).arg(file);
    run(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_all_peers_apart() {
        let mut names: Vec<_> = ALL.iter().map(NamedServer::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn a_build_without_coap_and_bodies_in_blocks_limit_the_servers() {
        let programs = CoapPrograms {
            folder: PathBuf::new(),
            stilling: PathBuf::new(),
            bare: PathBuf::new(),
            serves_coap: false,
        };
        let names = |size| -> Vec<_> {
            ALL.iter().filter(|peer| peer.is_available(&programs, size)).map(NamedServer::name).collect()
        };
        assert_eq!(names(64).first(), Some(&"libcoap"));
        assert_eq!(names(64).last(), Some(&BARE));
        assert_eq!(names(10_240).len(), names(64).len() - 1);
    }
}
