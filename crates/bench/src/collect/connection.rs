//! Opens connections to the measured server.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub(crate) fn connect(to: SocketAddr, timeout: Duration) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, timeout)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
