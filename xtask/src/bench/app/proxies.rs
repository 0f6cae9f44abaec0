//! The apps and the servers before them: how each is started, so that all get the same requests.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::CONNECTIONS;
use crate::bench::machine;
use crate::bench::server::{self, BenchDriver, BenchServer, READY_TIMEOUT};
use crate::steps::command_text;
use crate::{XtaskResult, python};

const BODY: &str = "hello from behind\n";

pub(super) const PROCESSES: u32 = 2;

/// Kernel backlog of gunicorn: its default.
const GUNICORN_BACKLOG: u32 = 2048;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum UpstreamReuse {
    /// Keep-alive connections (`keepalive`).
    Kept,
    /// A connection per request, its default.
    Fresh,
}

impl UpstreamReuse {
    pub(super) fn name(self) -> &'static str {
        match self {
            UpstreamReuse::Kept => "nginx, upstream keepalive",
            UpstreamReuse::Fresh => "nginx",
        }
    }
}

/// An app on a Unix socket behind nginx; dropping it ends it.
pub(super) struct BackendApp {
    child: Child,
    socket: PathBuf,
}

impl BackendApp {
    pub(super) fn node(folder: &Path) -> XtaskResult<BackendApp> {
        let socket = folder.join("node.socket");
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("exec {}", node_command(folder))).env("STILLING_SOCKET", &socket);
        BackendApp::start(command, socket)
    }

    pub(super) fn gunicorn(folder: &Path) -> XtaskResult<BackendApp> {
        let socket = folder.join("gunicorn.socket");
        let bind = format!("unix:{}", socket.display());
        let command_words = gunicorn_command(folder, &bind, PROCESSES);
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("exec {command_words}"));
        BackendApp::start(command, socket)
    }

    /// Starts the app and returns when it accepts connections.
    fn start(mut command: Command, socket: PathBuf) -> XtaskResult<BackendApp> {
        // An old socket file would be mistaken for a listener until the new one replaces it.
        let _ = fs::remove_file(&socket);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let mut app = BackendApp { child, socket };
        let start = Instant::now();
        while UnixStream::connect(&app.socket).is_err() {
            if let Some(status) = app.child.try_wait()? {
                return Err(
                    format!("`{}` ended with {status} before it listened", command_text(&command)).into()
                );
            }
            if start.elapsed() > READY_TIMEOUT {
                return Err(format!("`{}` does not listen", command_text(&command)).into());
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Ok(app)
    }
}

impl Drop for BackendApp {
    fn drop(&mut self) {
        // SIGTERM, because a killed gunicorn would leave its workers behind.
        let _ = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        let start = Instant::now();
        while start.elapsed() < READY_TIMEOUT {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes the programs to a folder that all of their processes can read and write.
pub(super) fn write_programs(folder: &Path) -> XtaskResult {
    fs::write(folder.join("answers.js"), include_str!("answers.js"))?;
    Ok(fs::write(folder.join("works.py"), include_str!("works.py"))?)
}

pub(super) fn node_command(folder: &Path) -> String {
    format!("node '{}'", folder.join("answers.js").display())
}

/// The command that starts gunicorn with its default, synchronous workers; `bind` is its option.
pub(super) fn gunicorn_command(folder: &Path, bind: &str, workers: u32) -> String {
    format!(
        "'{}' --no-control-socket --log-level critical --graceful-timeout 1 --chdir '{}' --backlog {GUNICORN_BACKLOG} \
         --workers {workers} --bind {bind} works:answer",
        python::GUNICORN.directory().join("bin/gunicorn").display(),
        folder.display()
    )
}

/// Stilling before an app that it starts; `called` is the app's command for readers.
pub(super) fn stilling(
    binary: &Path,
    driver: BenchDriver,
    options: &[&str],
    app: &str,
    called: &str,
) -> XtaskResult<BenchServer> {
    let mut command = Command::new(binary);
    command.args(["serve", "--listen", "127.0.0.1:0", "--driver", driver.option()]).args(options);
    command.args(["--app", app]);
    let command_words =
        format!("stilling serve --driver {} {} --app '{called}'", driver.option(), options.join(" "));
    Ok(BenchServer::announced(driver.name(), command_words, command)?.with_app())
}

/// nginx with a worker per core before a running app.
pub(super) fn nginx(folder: &Path, app: &BackendApp, upstream: UpstreamReuse) -> XtaskResult<BenchServer> {
    let keep = match upstream {
        UpstreamReuse::Kept => ", upstream keepalive",
        UpstreamReuse::Fresh => "",
    };
    let command_words =
        format!("nginx, {} workers, reuseport, no access log, proxy_pass{keep}", machine::cores());
    let config = |address| nginx_config(folder, address, &app.socket, upstream);
    BenchServer::nginx_with(upstream.name(), command_words, folder, config)
}

pub(super) fn gunicorn_alone(folder: &Path) -> XtaskResult<BenchServer> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("exec {}", gunicorn_command(folder, &address.to_string(), PROCESSES)));
    BenchServer::with_address("gunicorn alone", "gunicorn".to_owned(), address, command)
}

fn nginx_config(folder: &Path, address: SocketAddr, socket: &Path, upstream: UpstreamReuse) -> String {
    let (port, socket) = (address.port(), socket.display());
    let (keep, version) = match upstream {
        UpstreamReuse::Kept => (
            format!(" keepalive {CONNECTIONS}; keepalive_requests 1000000000;"),
            "proxy_http_version 1.1; proxy_set_header Connection \"\";",
        ),
        UpstreamReuse::Fresh => Default::default(),
    };
    let http = format!(
        " error_log {}/nginx-{port}.log crit;\n upstream app {{ server unix:{socket};{keep} }}\n",
        folder.display()
    );
    let locations = format!(
        "  location / {{\n   proxy_pass http://app; {version}\n\
         \x20  proxy_set_header Host $http_host;\n\
         \x20  proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\n\
         \x20  proxy_set_header X-Forwarded-Proto $scheme;\n\
         \x20  proxy_set_header X-Forwarded-Host $http_host;\n  }}\n"
    );
    server::nginx_config(folder, machine::cores(), address, &http, &locations)
}

/// Checks that the app's response arrives: a rate of anything else is meaningless.
pub(super) fn answers(server: &BenchServer) -> XtaskResult {
    let mut stream = TcpStream::connect(server.address)?;
    stream.set_read_timeout(Some(READY_TIMEOUT))?;
    write!(stream, "GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", server.address)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if is_the_apps(&answer) {
        return Ok(());
    }
    Err(format!("{} answers with {answer:?} instead of the app's {BODY:?}", server.name).into())
}

fn is_the_apps(answer: &str) -> bool {
    answer.starts_with("HTTP/1.1 200 ") && answer.split_once("\r\n\r\n").is_some_and(|(_, body)| body == BODY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_apps_answer_is_worth_measuring() {
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{BODY}", BODY.len());
        assert!(is_the_apps(&answer));
        assert!(!is_the_apps(&answer.replace("200", "502")));
        assert!(!is_the_apps(answer.trim_end()));
        assert!(!is_the_apps(""));
        for program in [include_str!("answers.js"), include_str!("works.py")] {
            assert!(program.contains(&BODY.escape_default().to_string()), "{program}");
        }
    }

    #[test]
    fn nginx_keeps_connections_to_the_app_only_where_configured() {
        let config = |upstream| {
            nginx_config(Path::new("a"), SocketAddr::from(([127, 0, 0, 1], 81)), Path::new("b"), upstream)
        };
        let (kept, fresh) = (config(UpstreamReuse::Kept), config(UpstreamReuse::Fresh));
        assert!(kept.contains("server unix:b; keepalive 32;") && kept.contains("proxy_http_version 1.1;"));
        assert!(fresh.contains("server unix:b; }") && !fresh.contains("proxy_http_version"));
        assert!([kept, fresh].iter().all(|config| config.contains("X-Forwarded-For")));
    }
}
