//! Figures that Stilling publishes at `/metrics`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::XtaskResult;

/// Timeout of the response under load.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads a figure without labels, such as `connections`, from the HTTP server at `address`.
///
/// # Errors
/// If the server does not answer or does not publish this figure.
pub(crate) fn figure(address: SocketAddr, name: &str) -> XtaskResult<u64> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(value(&answer, name).ok_or_else(|| format!("the metrics of {address} have no `{name}`"))?)
}

fn value(metrics: &str, name: &str) -> Option<u64> {
    metrics.lines().find_map(|line| {
        let (metric_name, value) = line.strip_prefix("stilling_")?.rsplit_once(' ')?;
        (metric_name == name).then(|| value.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_found_by_its_whole_name() {
        let metrics = "HTTP/1.1 200 OK\r\n\r\n# TYPE stilling_connections gauge\n\
                       stilling_former_connections 9\nstilling_connections_max 8\nstilling_connections 7\n";
        assert_eq!(value(metrics, "connections"), Some(7));
        assert_eq!(value(metrics, "connection"), None);
    }
}
