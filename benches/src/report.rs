//! Where reports go.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Serialize;

/// `target/NAME` of the workspace, wherever the program was started.
pub fn default_path(name: &str) -> PathBuf {
    let benches = Path::new(env!("CARGO_MANIFEST_DIR"));
    benches.parent().unwrap_or(benches).join("target").join(name)
}

/// Writes `report` as indented JSON and makes the folder for it.
///
/// # Errors
///
/// When the folder or the file cannot be written; the error names the path.
pub fn write_json(path: &Path, report: &impl Serialize) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(report).context("cannot encode the report")?;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    std::fs::write(path, json + "\n").with_context(|| format!("cannot write {}", path.display()))
}
