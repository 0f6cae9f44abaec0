//! A directory over HTTP, with ranges and conditional requests.
//!
//! ```sh
//! cargo run -p stilling --example files -- 127.0.0.1:9000 docs
//! curl http://127.0.0.1:9000/limits.md
//! curl -C - -O http://127.0.0.1:9000/limits.md     # resumes the download
//! ```

use std::error::Error;

use stilling::ServeConfig;
use stilling::http::{Method, Response, Routes, Status};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or("127.0.0.1:9000".to_owned()).parse()?;
    let folder = arguments.next().unwrap_or(".".to_owned());
    let routes = Routes::new()
        // More specific patterns have precedence over the directory.
        .inline(Method::Get, "/about", |_| Response::html("<p>Files, and this page.</p>\n"))
        .inline(Method::Get, "/old", |_| {
            Response::new(Status::PermanentRedirect).with_header("Location", "/about")
        })
        .files("/", folder);
    Ok(stilling::serve(ServeConfig { listen: vec![address], ..ServeConfig::default() }, routes)?)
}
