//! The smallest server: `cargo run -p stilling --example hello`, then `curl http://127.0.0.1:9000/hello/you`.

use std::error::Error;

use stilling::ServeConfig;
use stilling::http::{Method, Routes, Status};

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:9000".to_owned()).parse()?;
    let routes = Routes::new().inline(Method::Get, "/hello/{name}", |request| {
        let name = request.param("name").ok_or(Status::BadRequest)?;
        Ok::<_, Status>(format!("Hello {name}\n"))
    });
    Ok(stilling::serve(ServeConfig { listen: vec![address], ..ServeConfig::default() }, routes)?)
}
