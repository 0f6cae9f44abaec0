//! The NATS client for browsers in a page: its npm packages, which are CommonJS modules, as one script.

use std::path::Path;

use serde_json::{Map, Value};

use crate::nats::foreign::programs::installed;

/// Names that modules require, and their files.
const ENTRIES: [(&str, &str); 6] = [
    ("@nats-io/jetstream", "@nats-io/jetstream/lib/mod.js"),
    ("@nats-io/nats-core", "@nats-io/nats-core/lib/mod.js"),
    ("@nats-io/nats-core/internal", "@nats-io/nats-core/lib/internal_mod.js"),
    ("@nats-io/nkeys", "@nats-io/nkeys/lib/mod.js"),
    ("@nats-io/nuid", "@nats-io/nuid/lib/mod.js"),
    ("tweetnacl", "tweetnacl/nacl-fast.js"),
];

/// Defines `load(name)`, which returns a package.
const LOADER: &str = "
    window.load = (() => {
      const modules = {};
      const resolve = (from, name) => {
        if (!name.startsWith('.')) return entries[name];
        const path = new URL(name, `file:///${from}`).pathname.slice(1);
        return path.endsWith('.js') ? path : `${path}.js`;
      };
      const loadFile = (file) => {
        if (!modules[file]) {
          const module = modules[file] = { exports: {} };
          const require = (name) => loadFile(resolve(file, name));
          new Function('module', 'exports', 'require', sources[file])(module, module.exports, require);
        }
        return modules[file].exports;
      };
      return (name) => loadFile(entries[name]);
    })();
    undefined;
";

/// The script.
pub(super) fn script() -> String {
    let packages = installed("nats-node/node_modules");
    let mut sources = Map::new();
    for (_, file) in ENTRIES {
        let folder = Path::new(file).parent().expect("a file of a package");
        for entry in std::fs::read_dir(packages.join(folder)).expect("the package is installed") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|extension| extension == "js") {
                let name = path.strip_prefix(&packages).expect("a file of a package").display().to_string();
                let source = std::fs::read_to_string(&path).expect("a source");
                sources.insert(name, Value::from(source));
            }
        }
    }
    let entries: Map<String, Value> =
        ENTRIES.iter().map(|(name, file)| ((*name).to_owned(), Value::from(*file))).collect();
    format!(
        "{{ const sources = {}; const entries = {}; {LOADER} }}",
        Value::from(sources),
        Value::from(entries)
    )
}
