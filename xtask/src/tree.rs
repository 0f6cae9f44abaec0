//! The repository as files: its root, its text files, its build folder.

use std::fs;
use std::path::{Path, PathBuf};

use crate::XtaskResult;

const GENERATED_DIRECTORIES: [&str; 5] = ["target", ".git", "corpus", "artifacts", "coverage"];

pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask is a folder of the repository").to_owned()
}

pub(crate) fn target() -> PathBuf {
    let chosen = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    root().join(chosen)
}

/// One file: its path from the root, with `/`, and its text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TextFile {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// All text files below `folder` of the root, sorted by path; files that are not UTF-8 are skipped.
pub(crate) fn texts(folder: &str) -> XtaskResult<Vec<TextFile>> {
    let mut paths = Vec::new();
    collect(&root().join(folder), &mut paths)?;
    paths.sort();
    let root = root();
    let mut texts = Vec::with_capacity(paths.len());
    for file in paths {
        let Ok(text) = String::from_utf8(fs::read(&file).map_err(|error| at(&file, &error))?) else {
            continue;
        };
        let path =
            file.strip_prefix(&root).expect("found below the root").to_string_lossy().replace('\\', "/");
        texts.push(TextFile { path, text });
    }
    Ok(texts)
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> XtaskResult {
    for entry in fs::read_dir(folder).map_err(|error| at(folder, &error))? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let name = entry.file_name();
        if kind.is_file() {
            paths.push(entry.path());
        } else if kind.is_dir() && !GENERATED_DIRECTORIES.iter().any(|made| name == *made) {
            collect(&entry.path(), paths)?;
        }
    }
    Ok(())
}

fn at(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// Writes a file of the repository, given by its path from the root.
pub(crate) fn write(path: &str, text: &str) -> XtaskResult {
    let file = root().join(path);
    fs::write(&file, text).map_err(|error| at(&file, &error))?;
    println!("wrote {path}");
    Ok(())
}
