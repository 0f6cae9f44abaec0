//! The programs under measurement.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{XtaskResult, tree};

/// A copy of a release build, so that a build during a long run does not change the measured program.
pub(crate) fn copy_binary(name: &str, folder: &Path) -> XtaskResult<PathBuf> {
    let program = tree::target().join("release").join(name);
    let copy = folder.join(program.file_name().ok_or("a program has a name")?);
    fs::copy(&program, &copy).map_err(|error| format!("{}: {error}", program.display()))?;
    Ok(copy)
}
