//! One binary, several programs: which one runs is decided by the name it was called by.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::path::Path;

use crate::exit::Outcome;

/// The release of Nodepool whose command lines and records these programs keep.
const NODEPOOL_RELEASE: &str = "11.0.0";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    Nodeyard,
    Nodepool,
    NodepoolLauncher,
    NodepoolBuilder,
}

impl Program {
    /// The names a link to this binary may have, beside its own.
    pub(crate) const LINKS: [Program; 3] = [
        Program::Nodepool,
        Program::NodepoolLauncher,
        Program::NodepoolBuilder,
    ];

    /// Any other name than those of [`Self::LINKS`] is plain `nodeyard`, so that the file can be
    /// renamed (`nodeyard-0.1`, say) without becoming something else.
    pub(crate) fn from_argv0(argv0: Option<&OsStr>) -> Self {
        let name = argv0.map(Path::new).and_then(Path::file_name);
        Self::LINKS
            .into_iter()
            .find(|program| name == Some(OsStr::new(program.name())))
            .unwrap_or(Program::Nodeyard)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Program::Nodeyard => "nodeyard",
            Program::Nodepool => "nodepool",
            Program::NodepoolLauncher => "nodepool-launcher",
            Program::NodepoolBuilder => "nodepool-builder",
        }
    }
}

/// In the words of Nodepool, whose scripts read it.
pub(crate) fn print_nodepool_version() -> anyhow::Result<Outcome> {
    let ours = env!("CARGO_PKG_VERSION");
    writeln!(
        io::stdout(),
        "Nodepool version: {NODEPOOL_RELEASE}+nodeyard.{ours}"
    )?;
    Ok(Outcome::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_decides_and_the_directory_does_not() {
        let program = |name: &str| Program::from_argv0(Some(OsStr::new(name)));
        assert_eq!(program("/usr/bin/nodepool"), Program::Nodepool);
        assert_eq!(program("nodepool-launcher"), Program::NodepoolLauncher);
        assert_eq!(program("./nodepool-builder"), Program::NodepoolBuilder);
        assert_eq!(program("nodeyard-0.1"), Program::Nodeyard);
        assert_eq!(program("nodepool/nodeyard"), Program::Nodeyard);
        assert_eq!(Program::from_argv0(None), Program::Nodeyard);
    }
}
