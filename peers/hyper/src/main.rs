//! Stilling's test pages on hyper: the peer that `cargo xtask bench http` measures beside Stilling.
//!
//! As plain as hyper's own examples, to represent common use: one runtime, a task per connection, `spawn_blocking` for
//! blocking work. Its answers are byte-identical to Stilling's.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the program prints its address")]

use std::convert::Infallible;
use std::error::Error;
use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// Connections waiting to be accepted, as many as in the other servers.
const BACKLOG: i32 = 4096;

type HyperResult<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> HyperResult {
    let mut arguments = std::env::args().skip(1);
    let mut number = |name: &str, default: u64| match arguments.next() {
        None => Ok(default),
        Some(text) => text.parse().map_err(|_| format!("{name}: `{text}` is not a number")),
    };
    let workers = usize::try_from(number("WORKERS", 2)?)?.max(1);
    let slow = Duration::from_millis(number("SLOW_MS", 30)?);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().max_blocking_threads(workers).build()?;
    runtime.block_on(serve(slow))?;
    // Blocking work is not awaited: the measuring client has disconnected.
    runtime.shutdown_background();
    Ok(())
}

async fn serve(slow: Duration) -> HyperResult {
    let listener = listen()?;
    let mut terminate = signal(SignalKind::terminate())?;
    println!("listening http://{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = terminate.recv() => return Ok(()),
        };
        let Ok((stream, _)) = accepted else {
            // Without descriptors, open connections have to close first.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        tokio::spawn(async move {
            // A connection that fails here fails at its first read as well.
            let _ = stream.set_nodelay(true);
            let service = service_fn(move |request| answer(request, slow));
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).pipeline_flush(true);
            // Makes the answers byte-identical.
            builder.auto_date_header(false).title_case_headers(true);
            // Clients count their own early disconnects.
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn listen() -> HyperResult<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    socket.listen(BACKLOG)?;
    Ok(TcpListener::from_std(socket.into())?)
}

async fn answer(request: Request<Incoming>, slow: Duration) -> Result<Response<Empty<Bytes>>, Infallible> {
    let mut response = Response::new(Empty::new());
    match request.uri().path() {
        "/test/fast" => {}
        "/test/slow" => {
            let worked = tokio::task::spawn_blocking(move || std::thread::sleep(slow)).await;
            if worked.is_err() {
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            }
        }
        _ => *response.status_mut() = StatusCode::NOT_FOUND,
    }
    Ok(response)
}
