//! Selects the program by the name that the binary was called with.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::path::Path;

use crate::exit::CommandOutcome;

/// The release of Nodepool that the command lines and records are compatible with.
const NODEPOOL_RELEASE: &str = "11.0.0";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgramName {
    Nodeyard,
    Nodepool,
    NodepoolLauncher,
    NodepoolBuilder,
}

impl ProgramName {
    /// The names that links to this binary may have.
    pub(crate) const LINKS: [ProgramName; 3] = [
        ProgramName::Nodepool,
        ProgramName::NodepoolLauncher,
        ProgramName::NodepoolBuilder,
    ];

    /// Returns the program for a name. Names other than those of [`Self::LINKS`] mean `nodeyard`, so that the file can
    /// be renamed, for example to `nodeyard-0.1`.
    pub(crate) fn from_argv0(argv0: Option<&OsStr>) -> Self {
        let name = argv0.map(Path::new).and_then(Path::file_name);
        Self::LINKS
            .into_iter()
            .find(|program| name == Some(OsStr::new(program.name())))
            .unwrap_or(ProgramName::Nodeyard)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            ProgramName::Nodeyard => "nodeyard",
            ProgramName::Nodepool => "nodepool",
            ProgramName::NodepoolLauncher => "nodepool-launcher",
            ProgramName::NodepoolBuilder => "nodepool-builder",
        }
    }
}

/// Prints the version in Nodepool's format, which scripts parse.
pub(crate) fn print_nodepool_version() -> anyhow::Result<CommandOutcome> {
    let ours = env!("CARGO_PKG_VERSION");
    writeln!(
        io::stdout(),
        "Nodepool version: {NODEPOOL_RELEASE}+nodeyard.{ours}"
    )?;
    Ok(CommandOutcome::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_name_selects_the_program() {
        let program = |name: &str| ProgramName::from_argv0(Some(OsStr::new(name)));
        assert_eq!(program("/usr/bin/nodepool"), ProgramName::Nodepool);
        assert_eq!(program("nodepool-launcher"), ProgramName::NodepoolLauncher);
        assert_eq!(program("./nodepool-builder"), ProgramName::NodepoolBuilder);
        assert_eq!(program("nodeyard-0.1"), ProgramName::Nodeyard);
        assert_eq!(program("nodepool/nodeyard"), ProgramName::Nodeyard);
        assert_eq!(ProgramName::from_argv0(None), ProgramName::Nodeyard);
    }
}
