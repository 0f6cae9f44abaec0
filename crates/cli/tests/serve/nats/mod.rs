//! NATS clients, streams, and what is there after the server has died.

mod faults;
mod lines;
mod python;
mod users;

use std::net::SocketAddr;
use std::path::Path;

use stilling_probe::Peer;
use tempfile::TempDir;

use crate::support::{Driver, Server};

/// A server for NATS clients, its streams in a folder of its own.
pub(crate) struct Hub {
    pub(crate) server: Server,
    pub(crate) data: TempDir,
}

impl Hub {
    /// With further options, separated by blanks.
    pub(crate) fn start(driver: Driver, options: &str) -> Hub {
        let data = tempfile::tempdir().expect("a folder");
        let server = serve(driver, data.path(), options);
        Hub { server, data }
    }

    /// Where it listens for NATS clients.
    pub(crate) fn nats(&self) -> SocketAddr {
        address(&self.server)
    }

    /// A connection that has said who it is.
    pub(crate) fn client(&self) -> Client {
        Client::connect(self.nats())
    }

    /// Kills the server and starts another one on the same folder.
    pub(crate) fn crash(self, driver: Driver, options: &str) -> Hub {
        let Hub { server, data } = self;
        // What is left of it dies without a word.
        drop(server);
        let server = serve(driver, data.path(), options);
        Hub { server, data }
    }
}

/// Where a server listens for NATS clients.
pub(crate) fn address(server: &Server) -> SocketAddr {
    server.banner_line("listening nats://").parse().expect("an address")
}

fn serve(driver: Driver, data: &Path, options: &str) -> Server {
    let data = data.join("streams");
    let options = format!("--nats 127.0.0.1:0 --data {} {options}", data.display());
    Server::start(driver, &options)
}

/// A client that says what the test says.
pub(crate) struct Client {
    peer: Peer,
}

impl Client {
    /// A connection that has said that it can everything.
    pub(crate) fn connect(to: SocketAddr) -> Client {
        let mut client = Client::silent(to);
        client.say("CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}\r\nPING\r\n");
        assert_eq!(client.line(), "PONG");
        client
    }

    /// A connection that has been greeted and has said nothing.
    pub(crate) fn silent(to: SocketAddr) -> Client {
        let mut client = Client { peer: Peer::connect(to) };
        let info = client.line();
        assert!(info.starts_with("INFO {"), "{info}");
        client
    }

    pub(crate) fn say(&mut self, bytes: impl AsRef<[u8]>) {
        self.peer.send(bytes);
    }

    /// The next line, without its end.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        self.peer.line()
    }

    /// The next lines.
    #[track_caller]
    pub(crate) fn lines(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.line()).collect()
    }

    /// Everything up to the end of the connection.
    #[track_caller]
    pub(crate) fn rest(&mut self) -> String {
        String::from_utf8(self.peer.whatever_comes()).expect("text")
    }

    /// Asks whether all has been processed, and returns what came before the answer.
    #[track_caller]
    pub(crate) fn flush(&mut self) -> Vec<String> {
        self.say("PING\r\n");
        let mut lines = Vec::new();
        loop {
            match self.line() {
                line if line == "PONG" => return lines,
                line => lines.push(line),
            }
        }
    }
}
