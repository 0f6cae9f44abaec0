//! Inline routes with constant responses: measured by `cargo xtask bench http` beside the demo route `/test/fast`.
//!
//! ```text
//! cargo run --release -p stilling --example constant
//! curl -i http://127.0.0.1:9000/constant
//! ```

use std::error::Error;

use stilling::http::{Method, Response, Routes, Status};
use stilling::{DriverChoice, ServeConfig};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or("127.0.0.1:9000".to_owned()).parse()?;
    let driver = match arguments.next().as_deref() {
        Some("uring") => DriverChoice::Uring,
        Some("poll") => DriverChoice::Poll,
        _ => DriverChoice::Auto,
    };
    let routes = Routes::new().inline(Method::Get, "/constant", |_| Response::new(Status::Ok)).inline(
        Method::Get,
        "/text",
        |_| "A text that does not change.\n",
    );
    let config = ServeConfig { listen: vec![address], driver, demo: true, ..ServeConfig::default() };
    Ok(stilling::serve(config, routes)?)
}
