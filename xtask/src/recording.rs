//! `cargo xtask recording`: renders the picture of the README, a terminal with the output of a real run.

use std::fmt::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::XtaskResult;
use crate::bench::enter_namespace;
use crate::steps::{cargo, run};
use crate::tree;

const PICTURE: &str = "docs/stilling.svg";

/// Command lines as shown. `stilling` is the release build; the first line is the server and runs until the end.
const COMMANDS: [&str; 6] = [
    "stilling serve --worker-threads 4 --max-queue 100",
    "stilling pub events.door open",
    "curl -s -d closed http://127.0.0.1:9000/publish/events.door",
    "stilling bench collect --size 128 --seconds 2 | grep -E 'receives|max send|accounting'",
    "stilling journal ls",
    "stilling bench http http://127.0.0.1:9000/test/slow --connections 500 --duration 2 | grep -E 'correct|shed|failures'",
];

const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Characters per line; longer lines are cut.
const COLUMNS: usize = 118;

const CHARACTER_WIDTH: f64 = 7.85;
const LINE_HEIGHT: usize = 19;
const MARGIN: usize = 18;

pub(crate) fn run_commands() -> XtaskResult {
    enter_namespace(|| run(&mut cargo(["build", "--release", "-p", "stilling-cli"])))?;
    let folder = tempfile::tempdir_in(tree::target().canonicalize()?)?;
    let log = folder.path().join("server");
    let mut server = Server(shell(COMMANDS[0], folder.path()).stdout(std::fs::File::create(&log)?).spawn()?);
    await_server(&mut server.0)?;
    let mut lines = terminal_lines(COMMANDS[0], &std::fs::read_to_string(&log)?);
    for command in &COMMANDS[1..] {
        let output = shell(command, folder.path()).stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            return Err(format!("`{command}` ends with {}", output.status).into());
        }
        lines.extend(terminal_lines(command, &String::from_utf8_lossy(&output.stdout)));
    }
    tree::write(PICTURE, &svg(&lines))
}

/// The server process; dropping it ends it.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct TerminalLine {
    text: String,
    is_command: bool,
}

fn shell(command: &str, folder: &Path) -> Command {
    let program = tree::target().join("release/stilling");
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("exec 3>&1; stilling() {{ \"$STILLING\" \"$@\"; }}; {command}"));
    // The server replaces the shell, so that ending the child ends the server.
    if let Some(arguments) = command.strip_prefix("stilling serve ") {
        shell = Command::new(&program);
        shell.arg("serve").args(arguments.split(' '));
    }
    shell.current_dir(folder).env("STILLING", program);
    shell
}

fn await_server(server: &mut Child) -> XtaskResult {
    let deadline = Instant::now() + START_TIMEOUT;
    while TcpStream::connect("127.0.0.1:4222").is_err() {
        if server.try_wait()?.is_some() || Instant::now() > deadline {
            return Err("the server does not start; ports 9000 and 4222 have to be free".into());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A command with its output.
fn terminal_lines(command: &str, output: &str) -> Vec<TerminalLine> {
    let mut lines = vec![TerminalLine { text: format!("$ {command}"), is_command: true }];
    lines.extend(
        output
            .lines()
            .filter(|line| !line.trim().is_empty())
            .map(|line| TerminalLine { text: line.chars().take(COLUMNS).collect(), is_command: false }),
    );
    lines
}

fn svg(lines: &[TerminalLine]) -> String {
    let width = (COLUMNS as f64 * CHARACTER_WIDTH) as usize + 2 * MARGIN;
    let commands = lines.iter().filter(|line| line.is_command).count();
    let height = lines.len() * LINE_HEIGHT + commands * LINE_HEIGHT / 2 + 2 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-label=\"Terminal: stilling serve, publishing, and two loads\">\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#0f172a\"/>\n\
         <g font-family=\"ui-monospace,SFMono-Regular,Menlo,Consolas,monospace\" font-size=\"13\" fill=\"#cbd5e1\">\n"
    );
    let mut y = MARGIN;
    for line in lines {
        y += LINE_HEIGHT + if line.is_command { LINE_HEIGHT / 2 } else { 0 };
        let color = if line.is_command { " fill=\"#7dd3fc\"" } else { "" };
        let text = line.text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let _ =
            writeln!(svg, "<text x=\"{MARGIN}\" y=\"{}\" xml:space=\"preserve\"{color}>{text}</text>", y - 5);
    }
    svg + "</g>\n</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_long_lines_are_cut() {
        let lines = terminal_lines("a <b> & c", &format!("\n{}\n", "x".repeat(COLUMNS + 1)));
        let svg = svg(&lines);
        assert!(svg.contains("$ a &lt;b&gt; &amp; c"), "{svg}");
        assert!(svg.contains(&"x".repeat(COLUMNS)) && !svg.contains(&"x".repeat(COLUMNS + 1)));
        assert_eq!(svg.matches("<text").count(), 2, "empty lines are left out");
    }
}
