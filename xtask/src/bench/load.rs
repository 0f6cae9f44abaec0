//! What puts load on a server: `ab` and `wrk`, and how to read what they print.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::server::Server;
use crate::Outcome;
use crate::steps::shown;

/// Requests per send of the pipelined workload.
pub(super) const PIPELINE: u32 = 16;

/// What one run of a generator found.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Sample {
    /// Requests that were answered.
    pub(super) requests: u64,
    /// How long all took.
    pub(super) took_s: f64,
    /// Answers per second.
    pub(super) rate: f64,
    /// Latencies in milliseconds, where the generator measured them.
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
    pub(super) max_ms: Option<f64>,
    /// Requests without an answer, or with a broken one.
    pub(super) failures: u64,
    /// Requests with a whole answer that is not 2xx.
    pub(super) refused: u64,
    /// Seconds of CPU that the server used per million requests.
    pub(super) cpu_s: f64,
}

/// A way of asking.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Load {
    /// `ab`: so many requests over so many connections, kept or closed after each.
    Ab { requests: u64, connections: u32, keep: bool },
    /// `wrk`: for so long over so many kept connections, pipelined or not.
    Wrk { seconds: u32, connections: u32, pipelined: bool },
}

impl Load {
    /// The command, with `folder` for the generator's own files.
    fn command(&self, url: &str, folder: &Path) -> Outcome<Command> {
        let mut command;
        match self {
            Load::Ab { requests, connections, keep } => {
                command = Command::new("ab");
                command.arg("-q").args(keep.then_some("-k"));
                command.args(["-n", &requests.to_string(), "-c", &connections.to_string()]);
                command.arg("-e").arg(folder.join("ab.csv")).arg(url);
            }
            Load::Wrk { seconds, connections, pipelined } => {
                command = Command::new("wrk");
                command.args(["-t1", &format!("-c{connections}"), &format!("-d{seconds}"), "--latency"]);
                if *pipelined {
                    let script = folder.join("pipeline.lua");
                    std::fs::write(&script, pipeline_script())?;
                    command.arg("-s").arg(script);
                }
                command.arg(url);
            }
        }
        Ok(command)
    }

    /// The command as a reader would type it.
    pub(super) fn shown(&self, path: &str) -> String {
        match self {
            Load::Ab { requests, connections, keep } => {
                format!("ab -q{} -n {requests} -c {connections} URL{path}", if *keep { " -k" } else { "" })
            }
            Load::Wrk { seconds, connections, pipelined } => {
                let script = if *pipelined { " -s pipeline.lua" } else { "" };
                format!("wrk -t1 -c{connections} -d{seconds} --latency{script} URL{path}")
            }
        }
    }

    /// Puts the load on a server and measures both.
    ///
    /// # Errors
    /// If the generator gives up, or prints what cannot be read.
    pub(super) fn measure(&self, server: &Server, path: &str, folder: &Path) -> Outcome<Sample> {
        let mut command = self.command(&server.url(path), folder)?;
        // What an earlier run left must not be taken for what this one found.
        let _ = std::fs::remove_file(folder.join("ab.csv"));
        let before = server.cpu_s();
        let output = command.output().map_err(|error| format!("`{}`: {error}", shown(&command)))?;
        let used = server.cpu_s() - before;
        let printed = String::from_utf8_lossy(&output.stdout);
        let unreadable = || {
            let complaint = String::from_utf8_lossy(&output.stderr);
            format!("`{}` against {} said:\n{printed}{complaint}", shown(&command), server.name)
        };
        if !output.status.success() {
            return Err(unreadable().into());
        }
        let sample = match self {
            Load::Ab { requests, .. } => {
                let table = std::fs::read_to_string(folder.join("ab.csv"))?;
                read_ab(&printed, &table, *requests)
            }
            Load::Wrk { pipelined, .. } => read_wrk(&printed, *pipelined),
        };
        let sample = sample.ok_or_else(unreadable)?;
        Ok(Sample { cpu_s: used * 1e6 / sample.requests.max(1) as f64, ..sample })
    }

    /// Puts the load on a server until the returned guard is dropped.
    pub(super) fn keep_up(&self, server: &Server, path: &str, folder: &Path) -> Outcome<Background> {
        let mut command = self.command(&server.url(path), folder)?;
        Ok(Background(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?))
    }
}

/// A generator that runs beside another.
pub(super) struct Background(Child);

impl Background {
    /// Whether it is still asking; if not, what was measured beside it counts for nothing.
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

fn pipeline_script() -> String {
    format!(
        "local all\nfunction init()\n  local one = {{}}\n  for at = 1, {PIPELINE} do one[at] = wrk.format() end\n  \
         all = table.concat(one)\nend\nfunction request() return all end\n"
    )
}

/// The number after a label that begins a line.
fn number(printed: &str, label: &str) -> Option<f64> {
    let rest = printed.lines().find_map(|line| line.trim_start().strip_prefix(label))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Reads what `ab` printed and its table of percentiles; `asked` is how many requests it was told to make.
fn read_ab(printed: &str, table: &str, asked: u64) -> Option<Sample> {
    let complete = number(printed, "Complete requests:")? as u64;
    let failed = number(printed, "Failed requests:")? as u64;
    let refused = number(printed, "Non-2xx responses:").unwrap_or(0.0) as u64;
    // `ab` calls an answer failed when its length differs from the first one's. A refusal has another length, so
    // it is in both counts; only what refusals do not explain is a failure.
    let odd_lengths = between(printed, ", Length: ", ',').unwrap_or(0);
    let failures = failed - odd_lengths.min(refused).min(failed) + asked.saturating_sub(complete);
    let percentile = |wanted: u64| {
        // `ab` looks this far into its sorted times; of few requests that is beyond the last one.
        if (50 + complete * wanted) / 100 >= complete {
            return None;
        }
        let mut rows = table.lines().filter_map(|line| line.split_once(','));
        rows.find_map(|(at, ms)| (at.parse() == Ok(wanted)).then(|| ms.parse::<f64>().ok())?)
    };
    // Of one request there is one time.
    let only = if complete == 1 { number(printed, "Time per request:") } else { None };
    Some(Sample {
        requests: complete,
        took_s: number(printed, "Time taken for tests:")?,
        rate: number(printed, "Requests per second:")?,
        p50_ms: percentile(50).or(only),
        p99_ms: percentile(99).or(only),
        max_ms: number(printed, "100%").or(only),
        failures,
        refused,
        cpu_s: 0.0,
    })
}

/// The whole number between a label and what ends it, anywhere in the text.
fn between(printed: &str, label: &str, end: char) -> Option<u64> {
    let rest = &printed[printed.find(label)? + label.len()..];
    rest.split(end).next()?.trim().parse().ok()
}

/// Reads what `wrk --latency` printed.
///
/// With pipelining `wrk` spreads its correction for waiting over single answers although it waits for batches:
/// its percentiles then contradict each other (a 99th below the 50th), so none of them is taken.
fn read_wrk(printed: &str, pipelined: bool) -> Option<Sample> {
    let line = |label: &str| printed.lines().find_map(|line| line.trim_start().strip_prefix(label));
    let total = printed.lines().find(|line| line.contains(" requests in "))?;
    let requests: u64 = total.split_whitespace().next()?.parse().ok()?;
    let took_s = milliseconds(total.split(" requests in ").nth(1)?.split(',').next()?)? / 1e3;
    let sockets = line("Socket errors:").unwrap_or("");
    let failures = sockets.split([' ', ',']).filter_map(|word| word.parse::<u64>().ok()).sum();
    // `Latency  avg  stdev  max  share`
    let max_ms = printed.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words.len() == 5 && words[0] == "Latency").then(|| milliseconds(words[3]))?
    })?;
    let (p50_ms, p99_ms) = (milliseconds(line("50%")?)?, milliseconds(line("99%")?)?);
    let is_possible = !pipelined && p50_ms <= p99_ms && p99_ms <= max_ms;
    let taken = |ms: f64| is_possible.then_some(ms);
    Some(Sample {
        requests,
        took_s,
        rate: number(printed, "Requests/sec:")?,
        p50_ms: taken(p50_ms),
        p99_ms: taken(p99_ms),
        max_ms: taken(max_ms),
        failures,
        refused: number(printed, "Non-2xx or 3xx responses:").unwrap_or(0.0) as u64,
        cpu_s: 0.0,
    })
}

/// A span as `wrk` prints it, such as `1.23ms`.
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
        let expected = Sample {
            requests: 1000,
            took_s: 2.5,
            rate: 400.0,
            p50_ms: Some(24.125),
            p99_ms: Some(60.5),
            max_ms: Some(61.0),
            failures: 10,
            refused: 3,
            cpu_s: 0.0,
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
    fn percentiles_beyond_the_last_request_are_not_believed() {
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
";

    #[test]
    fn wrk_is_read_with_all_that_went_wrong() {
        let sample = read_wrk(WRK, false).expect("it is complete");
        assert_eq!((sample.requests, sample.took_s, sample.rate), (240_000, 4.0, 60_000.5));
        assert_eq!((sample.p50_ms, sample.p99_ms, sample.max_ms), (Some(0.812), Some(12.0), Some(31.5)));
        assert_eq!((sample.failures, sample.refused), (1 + 2 + 4, 5));
        assert_eq!(read_wrk("unable to connect", false), None);
    }

    #[test]
    fn impossible_percentiles_are_not_taken() {
        let none = |sample: Sample| (sample.p50_ms, sample.p99_ms, sample.max_ms) == (None, None, None);
        assert!(none(read_wrk(WRK, true).expect("it is complete")));
        let contradiction = WRK.replace("99%   12.00ms", "99%    0.00us");
        assert!(none(read_wrk(&contradiction, false).expect("it is complete")));
    }

    #[test]
    fn a_load_is_shown_as_it_is_typed() {
        let load = Load::Ab { requests: 5, connections: 2, keep: true };
        assert_eq!(load.shown("/x"), "ab -q -k -n 5 -c 2 URL/x");
        let load = Load::Wrk { seconds: 4, connections: 64, pipelined: true };
        assert_eq!(load.shown("/x"), "wrk -t1 -c64 -d4 --latency -s pipeline.lua URL/x");
    }
}
