//! Load generators for HTTP: `ab`, `wrk` and this repository's own, and parsers of their output.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::instructions::{self, Instructions};
use super::load_generator::{LoadPlan, LoadShape};
use super::programs::copy_binary;
use super::sample::BenchSample;
use super::server::{BenchServer, PIPELINE};
use crate::XtaskResult;
use crate::steps::{command_text, run};

/// Environment of a generator.
#[derive(Clone, Debug)]
pub(crate) struct BenchEnvironment {
    /// Folder for the generators' files.
    pub(crate) folder: PathBuf,
    pub(crate) binary: PathBuf,
    pub(crate) counts_instructions: bool,
}

impl BenchEnvironment {
    /// Creates an environment in a folder readable by all users: the workers of nginx run as another user.
    pub(super) fn of(folder: &Path) -> XtaskResult<BenchEnvironment> {
        run(Command::new("chmod").arg("755").arg(folder))?;
        let (binary, counts_instructions) = (copy_binary("stilling", folder)?, instructions::are_counted());
        Ok(BenchEnvironment { folder: folder.to_owned(), binary, counts_instructions })
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum HttpLoad {
    /// `ab`: a number of requests over a number of connections, kept or closed after each.
    Ab { requests: u64, connections: u32, keep: bool },
    /// `wrk`: a duration over a number of keep-alive connections, pipelined or not.
    Wrk { seconds: u32, connections: u32, pipelined: bool },
    /// `stilling bench http`: a duration over a number of connections, closed after each request or with `pipeline`
    /// requests in flight.
    Own { seconds: u32, connections: u32, close: bool, pipeline: u32 },
}

impl HttpLoad {
    /// Builds the command; the generator's own files go to the folder of `environment`.
    fn command(&self, url: &str, environment: &BenchEnvironment) -> XtaskResult<Command> {
        let folder = &environment.folder;
        let mut command;
        match self {
            HttpLoad::Ab { requests, connections, keep } => {
                command = Command::new("ab");
                command.arg("-q").args(keep.then_some("-k"));
                command.args(["-n", &requests.to_string(), "-c", &connections.to_string()]);
                command.arg("-e").arg(folder.join("ab.csv")).arg(url);
            }
            HttpLoad::Wrk { seconds, connections, pipelined } => {
                command = Command::new("wrk");
                command.args(["-t1", &format!("-c{connections}"), &format!("-d{seconds}"), "--latency"]);
                let (name, text) = if *pipelined {
                    ("pipeline.lua", pipeline_script())
                } else {
                    ("tail.lua", TAIL_SCRIPT.to_owned())
                };
                let script = folder.join(name);
                std::fs::write(&script, text)?;
                command.arg("-s").arg(script).arg(url);
            }
            HttpLoad::Own { .. } => command = self.own().command(&environment.binary, url),
        }
        Ok(command)
    }

    /// The command as a reader types it.
    pub(crate) fn command_line(&self, path: &str) -> String {
        match self {
            HttpLoad::Ab { requests, connections, keep } => {
                format!("ab -q{} -n {requests} -c {connections} URL{path}", if *keep { " -k" } else { "" })
            }
            HttpLoad::Wrk { seconds, connections, pipelined } => {
                let script = if *pipelined { " -s pipeline.lua" } else { "" };
                format!("wrk -t1 -c{connections} -d{seconds} --latency{script} URL{path}")
            }
            HttpLoad::Own { .. } => self.own().command_line(path),
        }
    }

    /// The plan of our own generator, with the timeout of the others.
    fn own(&self) -> LoadPlan {
        let HttpLoad::Own { seconds, connections, close, pipeline } = *self else {
            unreachable!("only called for our own generator")
        };
        let manner = LoadShape::Closed { seconds: seconds.into(), close, pipeline };
        LoadPlan { connections, timeout_s: 30.0, manner }
    }

    /// Puts the load on a server and measures both.
    ///
    /// # Errors
    /// If the generator fails or its output cannot be parsed.
    pub(crate) fn measure(
        &self,
        server: &BenchServer,
        path: &str,
        environment: &BenchEnvironment,
    ) -> XtaskResult<BenchSample> {
        let folder = &environment.folder;
        let counting = environment
            .counts_instructions
            .then(|| Instructions::of(&server.processes(), folder))
            .transpose()?;
        let (before, switches_before) = (server.cpu_s(), server.context_switches());
        let sample = self.run(&server.url(path), environment)?;
        let used = server.cpu_s() - before;
        let switches = server.context_switches().since(&switches_before);
        let instructions = counting.and_then(Instructions::stop);
        let requests = sample.requests.max(1) as f64;
        let instructions = instructions.map(|instructions| instructions / requests);
        let switches = switches.map(|switches| switches as f64 * 1e3 / requests);
        Ok(BenchSample { cpu_s: used * 1e6 / requests, instructions, switches, ..sample })
    }

    /// Puts the load on the server at `url` and measures only the clients.
    ///
    /// # Errors
    /// Those of [`measure`](Self::measure).
    pub(crate) fn run(&self, url: &str, environment: &BenchEnvironment) -> XtaskResult<BenchSample> {
        let folder = &environment.folder;
        let mut command = self.command(url, environment)?;
        // Output of an earlier run must not be mistaken for this one's.
        let _ = std::fs::remove_file(folder.join("ab.csv"));
        let output = command.output().map_err(|error| format!("`{}`: {error}", command_text(&command)))?;
        let printed = String::from_utf8_lossy(&output.stdout);
        let unreadable = || {
            let complaint = String::from_utf8_lossy(&output.stderr);
            format!("`{}` printed:\n{printed}{complaint}", command_text(&command))
        };
        // The exit status of our own generator reports failures, which are a figure here.
        if !output.status.success() && !matches!(self, HttpLoad::Own { .. }) {
            return Err(unreadable().into());
        }
        let sample = match self {
            HttpLoad::Ab { requests, .. } => {
                let table = std::fs::read_to_string(folder.join("ab.csv"))?;
                read_ab(&printed, &table, *requests)
            }
            HttpLoad::Wrk { pipelined, .. } => read_wrk(&printed, *pipelined),
            HttpLoad::Own { .. } => read_own(&printed),
        };
        Ok(sample.ok_or_else(unreadable)?)
    }

    /// Puts the load on a server until the returned guard is dropped.
    pub(super) fn run_in_background(
        &self,
        server: &BenchServer,
        path: &str,
        environment: &BenchEnvironment,
    ) -> XtaskResult<Background> {
        let mut command = self.command(&server.url(path), environment)?;
        Ok(Background(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?))
    }
}

/// A generator that runs beside another.
pub(super) struct Background(Child);

impl Background {
    /// Whether it still sends requests; if not, measurements beside it are invalid.
    pub(super) fn is_running(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes `wrk` print the percentile missing in its table.
const TAIL_SCRIPT: &str = "function done(summary, latency)\n  print(string.format('p99.9 %.3fms', latency:percentile(99.9) / 1000))\nend\n";

fn pipeline_script() -> String {
    format!(
        "local all\nfunction init()\n  local one = {{}}\n  for at = 1, {PIPELINE} do one[at] = wrk.format() end\n  \
         all = table.concat(one)\nend\nfunction request() return all end\n"
    )
}

/// The number after a label at the beginning of a line.
fn number(printed: &str, label: &str) -> Option<f64> {
    let rest = printed.lines().find_map(|line| line.trim_start().strip_prefix(label))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Parses the output of `ab` and its table of percentiles; `asked` is the number of requests in its options.
fn read_ab(printed: &str, table: &str, asked: u64) -> Option<BenchSample> {
    let complete = number(printed, "Complete requests:")? as u64;
    let failed = number(printed, "Failed requests:")? as u64;
    let refused = number(printed, "Non-2xx responses:").unwrap_or(0.0) as u64;
    // `ab` counts a response as failed when its length differs from the first one's. A refusal has another length, so
    // it is in both counts; only the rest are failures.
    let odd_lengths = section_between(printed, ", Length: ", ',').unwrap_or(0);
    let failures = failed - odd_lengths.min(refused).min(failed) + asked.saturating_sub(complete);
    let percentile = |wanted: u64| {
        // `ab` indexes its sorted times this far; with few requests that is beyond the last one.
        if (50 + complete * wanted) / 100 >= complete {
            return None;
        }
        let mut rows = table.lines().filter_map(|line| line.split_once(','));
        rows.find_map(|(at, ms)| (at.parse() == Ok(wanted)).then(|| ms.parse::<f64>().ok())?)
    };
    // A single request has a single time.
    let only = if complete == 1 { number(printed, "Time per request:") } else { None };
    Some(BenchSample {
        requests: complete,
        took_s: number(printed, "Time taken for tests:")?,
        rate: number(printed, "Requests per second:")?,
        p50_ms: percentile(50).or(only),
        p99_ms: percentile(99).or(only),
        p999_ms: None,
        max_ms: number(printed, "100%").or(only),
        failures,
        refused,
        ..BenchSample::default()
    })
}

/// The whole number between a label and a delimiter, anywhere in the text.
fn section_between(printed: &str, label: &str, end: char) -> Option<u64> {
    let rest = &printed[printed.find(label)? + label.len()..];
    rest.split(end).next()?.trim().parse().ok()
}

/// Parses the output of `wrk --latency`.
///
/// With pipelining, `wrk` spreads its correction for waiting over single responses although it waits for batches: its
/// percentiles then contradict each other (a 99th below the 50th), so none of them is used.
fn read_wrk(printed: &str, pipelined: bool) -> Option<BenchSample> {
    let line = |label: &str| printed.lines().find_map(|line| line.trim_start().strip_prefix(label));
    let total = printed.lines().find(|line| line.contains(" requests in "))?;
    let requests: u64 = total.split_whitespace().next()?.parse().ok()?;
    let took_s = milliseconds(total.split(" requests in ").nth(1)?.split(',').next()?)? / 1e3;
    let sockets = line("Socket errors:").unwrap_or("");
    let failures = sockets.split([' ', ',']).filter_map(|word| word.parse::<u64>().ok()).sum();
    // `Latency  avg  stdev  max  share`
    let max_ms = printed.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.len() == 5 && fields[0] == "Latency").then(|| milliseconds(fields[3]))?
    })?;
    let (p50_ms, p99_ms) = (milliseconds(line("50%")?)?, milliseconds(line("99%")?)?);
    let is_possible = !pipelined && p50_ms <= p99_ms && p99_ms <= max_ms;
    let if_possible = |ms: f64| is_possible.then_some(ms);
    Some(BenchSample {
        requests,
        took_s,
        rate: number(printed, "Requests/sec:")?,
        p50_ms: if_possible(p50_ms),
        p99_ms: if_possible(p99_ms),
        p999_ms: line("p99.9 ").and_then(milliseconds).and_then(if_possible),
        max_ms: if_possible(max_ms),
        failures,
        refused: number(printed, "Non-2xx or 3xx responses:").unwrap_or(0.0) as u64,
        ..BenchSample::default()
    })
}

fn read_own(printed: &str) -> Option<BenchSample> {
    let report = super::load_generator::read(printed)?;
    let ms = |us: f64| (report.ok > 0).then_some(us / 1e3);
    Some(BenchSample {
        requests: report.ok + report.shed,
        took_s: report.elapsed_s,
        rate: report.rate_per_s,
        p50_ms: ms(report.latency.p50_us),
        p99_ms: ms(report.latency.p99_us),
        p999_ms: ms(report.latency.p999_us),
        max_ms: ms(report.latency.max_us),
        failures: report.failures_total,
        refused: report.shed,
        ..BenchSample::default()
    })
}

/// A duration as `wrk` prints it, such as `1.23ms`.
fn milliseconds(text: &str) -> Option<f64> {
    let text = text.trim();
    let units = [("us", 1e-3), ("ms", 1.0), ("s", 1e3), ("m", 60e3), ("h", 3600e3)];
    units
        .iter()
        .find_map(|(unit, factor)| Some(text.strip_suffix(unit)?.trim().parse::<f64>().ok()? * factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AB: &str = "\
Document Length:        0 bytes

Concurrency Level:      100
Time taken for tests:   2.500 seconds
Complete requests:      1000
Failed requests:        2
   (Connect: 0, Receive: 0, Length: 2, Exceptions: 0)
Non-2xx responses:      3
Requests per second:    400.00 [#/sec] (mean)
Time per request:       25.000 [ms] (mean)

Percentage of the requests served within a certain time (ms)
  50%     24
 100%     61 (longest request)
";

    #[test]
    fn ab_is_read_with_all_that_went_wrong() {
        let table = "Percentage served,Time in ms\n0,1.000\n50,24.125\n99,60.500\n";
        let sample = read_ab(AB, table, 1010).expect("it is complete");
        let expected = BenchSample {
            requests: 1000,
            took_s: 2.5,
            rate: 400.0,
            p50_ms: Some(24.125),
            p99_ms: Some(60.5),
            max_ms: Some(61.0),
            failures: 10,
            refused: 3,
            ..BenchSample::default()
        };
        assert_eq!(sample, expected);
        assert_eq!(read_ab("apr_socket_recv: Connection reset by peer (104)", "", 10), None);
    }

    #[test]
    fn a_refusal_of_another_length_is_counted_once() {
        let read = |failed: u64, lengths: u64, refused: u64| {
            let printed = format!(
                "Document Length:        0 bytes\nTime taken for tests: 1.5 seconds\nComplete requests: 500\nFailed requests: {failed}\n   \
                 (Connect: 0, Receive: 0, Length: {lengths}, Exceptions: 0)\nNon-2xx responses: {refused}\n\
                 Requests per second: 317 [#/sec] (mean)\n"
            );
            let sample = read_ab(&printed, "", 500).expect("it is complete");
            (sample.failures, sample.refused)
        };
        assert_eq!(read(448, 448, 448), (0, 448));
        assert_eq!(read(7, 7, 0), (7, 0));
        assert_eq!(read(450, 448, 448), (2, 448));
        assert_eq!(read(0, 0, 500), (0, 500));
    }

    #[test]
    fn percentiles_beyond_the_last_request_are_rejected() {
        let table = "50,0.257\n99,0.257\n";
        let read = |requests: u64| {
            let printed = format!(
                "Time taken for tests: 1 seconds\nComplete requests: {requests}\nFailed requests: 0\n\
                 Requests per second: 1 [#/sec] (mean)\nTime per request: 30.429 [ms] (mean)\n"
            );
            let sample = read_ab(&printed, table, requests).expect("it is complete");
            (sample.p50_ms, sample.p99_ms)
        };
        assert_eq!(read(1), (Some(30.429), Some(30.429)));
        assert_eq!(read(50), (Some(0.257), None));
        assert_eq!(read(51), (Some(0.257), Some(0.257)));
    }

    const WRK: &str = "\
Running 4s test @ http://127.0.0.1:1/
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.10ms    2.00ms  31.50ms   97.00%
    Req/Sec    60.00k     1.00k   70.00k    80.00%
  Latency Distribution
     50%  812.00us
     75%    1.00ms
     90%    1.50ms
     99%   12.00ms
  240000 requests in 4.00s, 20.00MB read
  Socket errors: connect 1, read 2, write 0, timeout 4
  Non-2xx or 3xx responses: 5
Requests/sec:  60000.50
Transfer/sec:      5.00MB
p99.9 21.250ms
";

    #[test]
    fn wrk_is_read_with_all_that_went_wrong() {
        let sample = read_wrk(WRK, false).expect("it is complete");
        assert_eq!((sample.requests, sample.took_s, sample.rate), (240_000, 4.0, 60_000.5));
        assert_eq!((sample.p50_ms, sample.p99_ms, sample.max_ms), (Some(0.812), Some(12.0), Some(31.5)));
        assert_eq!(sample.p999_ms, Some(21.25));
        assert_eq!((sample.failures, sample.refused), (1 + 2 + 4, 5));
        assert_eq!(read_wrk("unable to connect", false), None);
    }

    #[test]
    fn our_own_report_is_read_with_all_that_went_wrong() {
        let printed = r#"{"elapsed_s":4.0,"requests":10,"ok":7,"rate_per_s":1.75,"shed":2,"failures_total":1,
            "evidence":{"timeout":"no answer within 30 s"},"steps":[],"windows":[],
            "latency":{"p50_us":100.0,"p99_us":200.0,"p999_us":300.0,"max_us":400.0}}"#;
        let expected = BenchSample {
            requests: 9,
            took_s: 4.0,
            rate: 1.75,
            p50_ms: Some(0.1),
            p99_ms: Some(0.2),
            p999_ms: Some(0.3),
            max_ms: Some(0.4),
            failures: 1,
            refused: 2,
            ..BenchSample::default()
        };
        assert_eq!(read_own(printed), Some(expected));
        assert_eq!(read_own("stilling: connection refused"), None);
    }

    #[test]
    fn impossible_percentiles_are_rejected() {
        let none = |sample: BenchSample| {
            [sample.p50_ms, sample.p99_ms, sample.p999_ms, sample.max_ms].iter().all(Option::is_none)
        };
        assert!(none(read_wrk(WRK, true).expect("it is complete")));
        let contradiction = WRK.replace("99%   12.00ms", "99%    0.00us");
        assert!(none(read_wrk(&contradiction, false).expect("it is complete")));
    }

    #[test]
    fn a_load_is_shown_as_it_is_typed() {
        let load = HttpLoad::Ab { requests: 5, connections: 2, keep: true };
        assert_eq!(load.command_line("/x"), "ab -q -k -n 5 -c 2 URL/x");
        let load = HttpLoad::Wrk { seconds: 4, connections: 64, pipelined: true };
        assert_eq!(load.command_line("/x"), "wrk -t1 -c64 -d4 --latency -s pipeline.lua URL/x");
    }
}
