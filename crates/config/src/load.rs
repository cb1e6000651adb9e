//! Reads the files from disk and runs the stages.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, SystemTime};

use nodeyard_model::child_environment;

use crate::clouds::{CloudsYaml, ProcessEnvironment};
use crate::config::Config;
use crate::decode::{Decode, Decoder, Mode};
use crate::diagnostic::{Diagnostic, Diagnostics, Severity};
use crate::file::{MainFile, SecureFile};
use crate::source::{Environment, Expansion, SourceFile, SourceFiles, Span};
use crate::yaml::{self, YamlNode, YamlProblem};

/// The maximum size of a file.
const MAX_FILE_SIZE: usize = 16 << 20;

/// A file may be missing for a moment while an editor replaces it.
const MAX_TRIES: u32 = 3;
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// The files and variables that a configuration is loaded from.
#[derive(Debug, Clone)]
pub struct ConfigSource {
    pub main: PathBuf,
    pub secure: Option<PathBuf>,
    pub environment: Environment,
}

impl ConfigSource {
    /// Creates a source with the variables of this process.
    pub fn new(main: impl Into<PathBuf>, secure: Option<PathBuf>) -> Self {
        let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        let environment = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
        let environment = environment
            .filter(|(name, _)| name.starts_with(crate::source::ENVIRONMENT_PREFIX))
            .collect();
        Self {
            main: main.into(),
            secure,
            environment,
        }
    }
}

/// The result of a load.
#[derive(Debug)]
pub struct Loaded {
    /// None if there were errors.
    pub config: Option<Config>,
    pub diagnostics: Diagnostics,
    /// The version of the files that were read.
    pub stamp: ConfigStamp,
}

/// The version of both files: modification time and size. Any difference is a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConfigStamp {
    main: Option<(SystemTime, u64)>,
    secure: Option<(SystemTime, u64)>,
}

impl ConfigStamp {
    /// Returns the current version of the files.
    pub fn of(source: &ConfigSource) -> Self {
        let state = |path: &Path| {
            let metadata = fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        };
        Self {
            main: state(&source.main),
            secure: source.secure.as_deref().and_then(state),
        }
    }
}

/// Reads and checks a configuration. Blocks; waits one second for a missing file.
pub fn load(source: &ConfigSource, mode: Mode) -> Loaded {
    // Taken before reading, so that later changes are noticed.
    let stamp = ConfigStamp::of(source);
    let texts = read(&source.main)
        .and_then(|main| Ok((main, source.secure.as_deref().map(read).transpose()?)));
    match texts {
        Err(failure) => Loaded {
            config: None,
            diagnostics: Diagnostics::of_file(*failure),
            stamp,
        },
        Ok((main, secure)) => {
            let secure = source.secure.as_deref().zip(secure.as_deref());
            let (mut config, diagnostics) =
                load_bytes((&source.main, &main), secure, &source.environment, mode);
            // Errors in clouds.yaml are reported by the OpenStack driver.
            if let Some(config) = &mut config
                && let Ok(clouds) = CloudsYaml::find(&ProcessEnvironment::current())
            {
                config.resolve_image_formats(&clouds);
            }
            Loaded {
                config,
                diagnostics,
                stamp,
            }
        }
    }
}

/// Like [`load`], from memory; the paths are used in messages only.
pub fn load_bytes(
    main: (&Path, &[u8]),
    secure: Option<(&Path, &[u8])>,
    environment: &Environment,
    mode: Mode,
) -> (Option<Config>, Diagnostics) {
    let mut reader = SourceReader {
        sources: SourceFiles::default(),
        problems: Vec::new(),
        environment,
    };
    let main = reader.parse(main.0, main.1, false);
    let secure = secure.and_then(|(path, bytes)| reader.parse(path, bytes, true));
    let SourceReader {
        sources, problems, ..
    } = reader;

    let mut decoder = Decoder::new(&sources, mode);
    for problem in problems {
        let finding = if problem.code == "duplicate-key" {
            decoder.lenient(problem.code, problem.span, problem.message)
        } else {
            decoder.error(problem.code, problem.span, problem.message)
        };
        if let Some(finding) = finding {
            finding.help = problem.help.map(str::to_owned);
            finding.labels.extend(
                problem
                    .related
                    .map(|(span, label)| (span, label.to_owned())),
            );
        }
    }
    let config = main.map(|main| {
        let file = section::<MainFile>(&main, &mut decoder);
        let secure = secure.map(|secure| section::<SecureFile>(&secure, &mut decoder));
        Config::resolve(file, secure, &mut decoder)
    });
    let config = config.filter(|_| !decoder.findings.has_errors());
    if let Some(config) = &config {
        child_environment::withhold(config.secret_variables());
    }
    let findings = std::mem::take(&mut decoder.findings);
    (config, findings.finish(&sources))
}

/// Decodes a document as a section; an empty one has all defaults.
fn section<S: Decode<()> + crate::section::Section<()>>(
    node: &Rc<YamlNode>,
    decoder: &mut Decoder<'_>,
) -> S {
    let read = if node.is_null() {
        None
    } else {
        S::decode(node, &(), decoder)
    };
    read.unwrap_or_else(|| S::fields(&yaml::Map::default(), &(), decoder))
}

/// Parses files into trees and keeps their sources for positions in messages.
struct SourceReader<'e> {
    sources: SourceFiles,
    problems: Vec<YamlProblem>,
    environment: &'e Environment,
}

impl SourceReader<'_> {
    fn parse(&mut self, path: &Path, bytes: &[u8], secure: bool) -> Option<Rc<YamlNode>> {
        let (text, trouble) = match std::str::from_utf8(bytes) {
            _ if bytes.len() > MAX_FILE_SIZE => {
                let message = format!("the file is larger than {} MiB", MAX_FILE_SIZE >> 20);
                (String::new(), Some((0, "too-large", message)))
            }
            // A byte order mark has no meaning in UTF-8, but would count as a column.
            Ok(text) => (text.trim_start_matches('\u{feff}').to_owned(), None),
            Err(error) => {
                let at = error.valid_up_to();
                let message = format!("byte {at} is not part of UTF-8 text");
                (
                    String::from_utf8_lossy(bytes).into_owned(),
                    Some((at, "not-utf8", message)),
                )
            }
        };
        let (expanded, expansion) = match &trouble {
            Some(_) => (String::new(), Expansion::default()),
            None => Expansion::expand(&text, self.environment, MAX_FILE_SIZE),
        };
        let file = self
            .sources
            .add(SourceFile::new(path, text, secure, expansion));
        let whole = |at: usize| Span::new(file, at..at);
        if let Some((at, code, message)) = trouble {
            self.problems
                .push(YamlProblem::of_file(code, whole(at), message));
            return None;
        }
        if expanded.len() > MAX_FILE_SIZE {
            let message = format!(
                "with its variables the file is larger than {} MiB",
                MAX_FILE_SIZE >> 20
            );
            self.problems
                .push(YamlProblem::of_file("too-large", whole(0), message));
            return None;
        }
        match yaml::parse(&expanded, file, &mut self.problems) {
            Ok(Some(node)) => Some(node),
            Ok(None) => Some(Rc::new(YamlNode::empty(whole(0)))),
            Err(problem) => {
                self.problems.push(problem);
                None
            }
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Box<Diagnostic>> {
    let mut tries = 1;
    loop {
        match read_once(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries < MAX_TRIES => {
                tries += 1;
                thread::sleep(RETRY_PAUSE);
            }
            Ok(bytes) => return Ok(bytes),
            Err(error) => return Err(Box::new(unreadable(path, &error))),
        }
    }
}

/// Reads at most one byte more than the maximum size.
fn read_once(path: &Path) -> io::Result<Vec<u8>> {
    use io::Read;
    let file = fs::File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_SIZE as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn unreadable(path: &Path, error: &io::Error) -> Diagnostic {
    let (code, message, help) = match error.kind() {
        io::ErrorKind::NotFound => (
            "missing-file",
            "the file does not exist".to_owned(),
            "check the path, or create the file",
        ),
        io::ErrorKind::PermissionDenied => (
            "unreadable-file",
            "the file may not be read by this user".to_owned(),
            "check the owner and the mode of the file and its directories",
        ),
        io::ErrorKind::IsADirectory => (
            "unreadable-file",
            "this is a directory".to_owned(),
            "name the file inside it",
        ),
        _ => (
            "unreadable-file",
            format!("the file cannot be read: {error}"),
            "check the file",
        ),
    };
    Diagnostic {
        code,
        id: crate::diagnostic::id(code),
        severity: Severity::Error,
        message,
        file: path.to_owned(),
        place: None,
        labels: Vec::new(),
        help: Some(help.to_owned()),
        allowed: Vec::new(),
        suggestion: None,
    }
}
