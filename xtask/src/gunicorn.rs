//! gunicorn, a worker process that people really use: installed into a folder of the build, from PyPI, in a version
//! that does not change by itself.

use std::path::PathBuf;
use std::process::Command;

use crate::Outcome;
use crate::steps;
use crate::tree;

/// The version that tests and measurements speak of.
pub(crate) const VERSION: &str = "gunicorn==27.0.1";

/// Where it is: cargo tells tests the folder as `CARGO_TARGET_TMPDIR`.
pub(crate) fn place() -> PathBuf {
    tree::target().join("tmp/gunicorn")
}

/// Installs it unless it is there.
///
/// # Errors
/// If Python cannot make an environment of its own, or PyPI does not answer; the message says what to do.
pub(crate) fn install() -> Outcome {
    let place = place();
    if place.join("bin/gunicorn").is_file() {
        println!("gunicorn is there");
        return Ok(());
    }
    let by_hand = "it takes python3 with its venv module (Debian: python3-venv) and PyPI";
    let mut environment = Command::new("python3");
    environment.args(["-m", "venv"]).arg(&place);
    steps::run(&mut environment).map_err(|error| format!("{error}\n{by_hand}"))?;
    let mut pip = Command::new(place.join("bin/pip"));
    steps::run(pip.args(["install", "--quiet", VERSION]))
        .map_err(|error| format!("{error}\n{by_hand}").into())
}
