//! Facts about where a figure was measured; a figure without them says little.

use serde::Serialize;

/// The machine and the compiler.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Cores this process may use at once.
    pub cores: usize,
    /// The processor's own name for itself, where the system tells.
    pub cpu_model: String,
    /// Operating system and architecture.
    pub system: String,
    /// The compiler that built this program.
    pub rustc: &'static str,
    /// Whether the build was optimised; figures of one that was not mean nothing.
    pub optimised: bool,
}

impl Machine {
    /// Asks the system.
    pub fn here() -> Self {
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            cpu_model: cpu_model().unwrap_or_else(|| "unknown".to_owned()),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            rustc: env!("TOLLGATE_RUSTC"),
            optimised: !cfg!(debug_assertions),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cores, cpu_model, system, rustc, optimised } = self;
        write!(f, "{cores} cores, {cpu_model}, {system}, {rustc}")?;
        if !optimised {
            write!(f, " (debug build: the figures mean nothing)")?;
        }
        Ok(())
    }
}

fn cpu_model() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
