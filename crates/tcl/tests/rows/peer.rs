//! A peer of scripts' sockets that does what a script tells it, step by step.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::SockRef;

/// Defined for scripts with a peer: `peer COMMAND NAME ?ARGUMENT?` returns when the peer has carried out the command.
/// Its connections have names:
/// - `accept NAME` accepts a connection that the script has made to `$peer_port`
/// - `connect NAME PORT` connects to a listener of the script
/// - `write NAME COUNT`, `read NAME COUNT` (returns the bytes before the end of the stream), `drain NAME`
/// - `shutdown NAME`, `close NAME`, `reset NAME`
const PEER_COMMAND: &str = r#"
set peer_control [socket 127.0.0.1 $control_port]
proc peer {args} {
    puts $::peer_control $args
    flush $::peer_control
    if {[gets $::peer_control answer] < 0} { error "the peer has failed" }
    return $answer
}
"#;

/// Seconds until a read of the peer fails.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct ScriptedPeer {
    thread: JoinHandle<()>,
    /// The script that defines the command `peer`.
    pub(crate) prelude: String,
}

impl ScriptedPeer {
    /// Starts a peer for one script.
    pub(crate) fn start() -> ScriptedPeer {
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let (listener, control) = (listen(), listen());
        let port = |listener: &TcpListener| listener.local_addr().expect("it is bound").port();
        let ports = format!("set peer_port {}\nset control_port {}\n", port(&listener), port(&control));
        let thread = std::thread::spawn(move || {
            let (control, _) = control.accept().expect("the script connects");
            Connections { listener, by_name: HashMap::new() }.serve(&control);
        });
        ScriptedPeer { thread, prelude: ports + PEER_COMMAND }
    }

    /// Ends with the script.
    pub(crate) fn join(self) {
        self.thread.join().expect("the peer has not failed");
    }
}

struct Connections {
    listener: TcpListener,
    by_name: HashMap<String, TcpStream>,
}

impl Connections {
    fn serve(mut self, control: &TcpStream) {
        for line in BufReader::new(control).lines() {
            let Ok(line) = line else { return };
            let words: Vec<&str> = line.split_whitespace().collect();
            let answer = self.perform(&words);
            let mut control = control;
            if control.write_all(format!("{answer}\n").as_bytes()).is_err() {
                return;
            }
        }
    }

    fn perform(&mut self, words: &[&str]) -> usize {
        let (command, name) = (words[0], words[1]);
        let number = || words[2].parse::<usize>().expect("a number");
        match command {
            "accept" => {
                let (stream, _) = self.listener.accept().expect("the script has connected");
                self.insert(name, stream);
            }
            "connect" => {
                let port = words[2].parse().expect("a port");
                let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the script listens");
                self.insert(name, stream);
            }
            "write" => self.stream(name).write_all(&vec![b'x'; number()]).expect("there is room"),
            "read" => return read_up_to(self.stream(name), number()),
            "drain" => return read_up_to(self.stream(name), usize::MAX),
            "shutdown" => self.stream(name).shutdown(Shutdown::Write).expect("it is connected"),
            "close" => drop(self.by_name.remove(name)),
            "reset" => {
                let stream = self.by_name.remove(name).expect("a connection of this name");
                SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a socket takes options");
                let ends = (stream.peer_addr(), stream.local_addr());
                drop(stream);
                if let (Ok(SocketAddr::V4(of_script)), Ok(SocketAddr::V4(own))) = ends {
                    wait_until_reset(of_script, own);
                }
            }
            other => panic!("unknown command {other}"),
        }
        0
    }

    fn insert(&mut self, name: &str, stream: TcpStream) {
        stream.set_read_timeout(Some(READ_TIMEOUT)).expect("a socket takes options");
        self.by_name.insert(name.to_owned(), stream);
    }

    fn stream(&mut self, name: &str) -> &mut TcpStream {
        self.by_name.get_mut(name).expect("a connection of this name")
    }
}

/// Waits until the system has delivered the reset, which can take a moment: the other end has no entry any more.
fn wait_until_reset(local: SocketAddrV4, remote: SocketAddrV4) {
    let hex = |it: SocketAddrV4| format!("{:08X}:{:04X}", u32::from_ne_bytes(it.ip().octets()), it.port());
    let entry = format!(" {} {} ", hex(local), hex(remote));
    while std::fs::read_to_string("/proc/net/tcp").expect("a table of connections").contains(&entry) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Reads until the end of the stream, or that many bytes.
fn read_up_to(stream: &mut TcpStream, count: usize) -> usize {
    let (mut buffer, mut total) = (vec![0; 64 * 1024], 0);
    while total < count {
        let wanted = buffer.len().min(count - total);
        match stream.read(&mut buffer[..wanted]).expect("the script sends or ends") {
            0 => break,
            read => total += read,
        }
    }
    total
}
