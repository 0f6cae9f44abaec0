//! A worker process that speaks frames: `rustc frames_worker.rs`, then
//! `stilling serve --app-speaks frames --app ./frames_worker`. Answers with the request line and the body.

use std::io::{self, ErrorKind, Read, Write};

/// Reads the next request and its number; `None` at the end of the input.
fn read_frame(input: &mut impl Read) -> io::Result<Option<(u32, Vec<u8>)>> {
    let (mut length, mut number) = ([0; 4], [0; 4]);
    match input.read_exact(&mut length) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        outcome => outcome?,
    }
    input.read_exact(&mut number)?;
    let mut message = vec![0; u32::from_be_bytes(length) as usize];
    input.read_exact(&mut message)?;
    Ok(Some((u32::from_be_bytes(number), message)))
}

fn write_frame(output: &mut impl Write, number: u32, message: &[u8]) -> io::Result<()> {
    let length = u32::try_from(message.len()).map_err(io::Error::other)?;
    output.write_all(&length.to_be_bytes())?;
    output.write_all(&number.to_be_bytes())?;
    output.write_all(message)?;
    output.flush()
}

fn answer(request: &[u8]) -> Vec<u8> {
    let head = request.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or(request.len());
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let body = request.get(head + 4..).unwrap_or_default();
    [b"HTTP/1.1 200 OK\r\n\r\n", line, b": ", body].concat()
}

fn main() -> io::Result<()> {
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    // An empty frame: ready.
    write_frame(&mut output, 0, b"")?;
    while let Some((number, request)) = read_frame(&mut input)? {
        write_frame(&mut output, number, &answer(&request))?;
    }
    Ok(())
}
