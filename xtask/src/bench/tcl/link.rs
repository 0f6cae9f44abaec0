//! One connection over a link of 100 Mbit/s, with the settings of IOCPSOCK's author.

use std::process::{Child, Command, Stdio};

use super::TclBench;
use super::peers::{COMPARED, TclPeer, TclServer, wrapped};
use crate::XtaskResult;
use crate::bench::figures::{self, PageSection};
use crate::bench::targets::BenchTarget;
use crate::steps::run;

pub(super) const TITLE: &str = "A link of 100 Mbit/s";

const SCRIPT: &str = "xtask/src/bench/tcl/link.tcl";

const LINK_MEGABITS: f64 = 100.0;

/// Row 3.17: least part of the link's rate that payload uses. Headers take 5 % of it.
const USED_MIN: f64 = 0.9;

/// Bytes of one connection, 5 seconds of the link.
const BYTES: usize = 60_000_000;

const RECEIVER: &str = "10.78.0.1";

const SENDER: &str = "10.78.0.2";

/// Clock ticks per second in `/proc`.
const TICKS_PER_SECOND: f64 = 100.0;

/// A network namespace for the sender, joined by a slow link to this process's; ends with this value.
struct SlowLink {
    holder: Child,
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

impl SlowLink {
    fn create() -> XtaskResult<SlowLink> {
        let mut command = Command::new("unshare");
        // It runs until its input ends.
        command.args(["--net", "sh", "-c", "echo && exec cat >/dev/null"]);
        let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        std::io::Read::read_exact(holder.stdout.as_mut().expect("it is piped"), &mut [0])?;
        let link = SlowLink { holder };
        let pid = link.holder.id();
        run(Command::new("sh").arg("-c").arg(format!(
            "ip link add name receiver type veth peer name sender netns {pid} && \
             ip address add {RECEIVER}/24 dev receiver && ip link set receiver up"
        )))?;
        run(link.enter(&Command::new("sh")).arg("-c").arg(format!(
            "ip address add {SENDER}/24 dev sender && ip link set sender up && \
             tc qdisc add dev sender root tbf rate {LINK_MEGABITS}mbit burst 32k latency 50ms"
        )))?;
        Ok(link)
    }

    /// The command, run in the sender's namespace.
    fn enter(&self, command: &Command) -> Command {
        let mut entered = Command::new("nsenter");
        entered.args(["--target", &self.holder.id().to_string(), "--net", "--"]);
        wrapped(entered, command)
    }
}

/// What the sender prints.
struct SenderReport {
    seconds: f64,
    cpu_s: f64,
}

impl SenderReport {
    fn parse(text: &str) -> Option<SenderReport> {
        let (micros, ticks) = text.trim().split_once(' ')?;
        Some(SenderReport {
            seconds: micros.parse::<f64>().ok()? / 1e6,
            cpu_s: ticks.parse::<f64>().ok()? / TICKS_PER_SECOND,
        })
    }
}

impl TclBench {
    pub(super) fn slow_link(&self) -> XtaskResult<PageSection> {
        let link = SlowLink::create()?;
        let bytes = self.quick_or_full(BYTES);
        let mut table = figures::table("sockets | Mbit/s | of the link | receiver's CPU | sender's CPU");
        for peer in self.available(&COMPARED) {
            table.push(self.send_over(&link, peer, bytes)?);
        }
        let description = format!(
            "`link.tcl` sends {} bytes from one network namespace to another over a pair of virtual devices that `tc … tbf` \
             limits to 100 Mbit/s, with `-buffersize 4096`, for `socket2` with `-sendcap 12`. The rate is that of payload until \
             the receiver's answer; CPU is a part of one core, of which IOCPSOCK's author reported 35 % for the receiver and 60 % \
             for the sender.",
            figures::thousands(bytes as f64)
        );
        Ok(PageSection { title: TITLE.to_owned(), description, table })
    }

    fn send_over(&self, link: &SlowLink, peer: TclPeer, bytes: usize) -> XtaskResult<Vec<String>> {
        let count = bytes.to_string();
        let server = self
            .programs
            .start(peer, TclServer { script: SCRIPT, arguments: &["receive", RECEIVER, &count] })?;
        let before = server.cpu_s();
        let mut sender = self.programs.script(peer, SCRIPT);
        sender.args(["send", RECEIVER, &count, &server.address.port().to_string()]);
        let output = link.enter(&sender).stderr(Stdio::inherit()).output()?;
        let received_cpu_s = server.cpu_s() - before;
        let text = String::from_utf8_lossy(&output.stdout);
        let report = SenderReport::parse(&text).ok_or_else(|| format!("the sender printed {text:?}"))?;
        let megabits = bytes as f64 * 8.0 / 1e6 / report.seconds;
        let used = megabits / LINK_MEGABITS;
        let name = peer.name();
        println!("{TITLE}: {name}: {megabits:.1} Mbit/s");
        if peer != TclPeer::Stock {
            let what = format!("row 3.17, part of the link used, {name}: {TITLE}");
            self.add_target(BenchTarget::at_least(what, USED_MIN, Some(used), ""));
        }
        let percent = |part: f64| format!("{:.0} %", part * 100.0);
        Ok(vec![
            name.to_owned(),
            format!("{megabits:.1}"),
            percent(used),
            percent(received_cpu_s / report.seconds),
            percent(report.cpu_s / report.seconds),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_a_sender_is_parsed() {
        let report = SenderReport::parse("2500000 30\n").expect("two numbers");
        assert_eq!((report.seconds, report.cpu_s), (2.5, 0.3));
        assert!(SenderReport::parse("2500000").is_none());
    }
}
