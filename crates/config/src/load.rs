//! Reading the files from disk and putting the stages together.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, SystemTime};

use crate::clouds::{Clouds, Surroundings};
use crate::config::Config;
use crate::decode::{Decode, Decoder, Mode};
use crate::diagnostic::{Diagnostic, Diagnostics, Severity};
use crate::file::{File, SecureFile};
use crate::source::{Environment, Expansion, SourceFile, Sources, Span};
use crate::yaml::{self, Node, Problem};

/// Larger files are refused.
const MAX_FILE_SIZE: usize = 16 << 20;

/// A file may be missing for a moment while an editor replaces it.
const TRIES: u32 = 3;
const BETWEEN_TRIES: Duration = Duration::from_millis(500);

/// Where a configuration comes from.
#[derive(Debug, Clone)]
pub struct Source {
    pub main: PathBuf,
    pub secure: Option<PathBuf>,
    pub environment: Environment,
}

impl Source {
    /// With the variables of this process.
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

/// What came of a load.
#[derive(Debug)]
pub struct Loaded {
    /// Absent if there were errors.
    pub config: Option<Config>,
    pub diagnostics: Diagnostics,
    /// The state of the files that was read.
    pub stamp: Stamp,
}

/// Modification time and size of both files; a difference, not an order, means a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stamp {
    main: Option<(SystemTime, u64)>,
    secure: Option<(SystemTime, u64)>,
}

impl Stamp {
    /// The state of the files now.
    pub fn of(source: &Source) -> Self {
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

/// Reads and checks a configuration. Blocks; a missing file is waited for a second.
pub fn load(source: &Source, mode: Mode) -> Loaded {
    // Taken before reading: a change in between is seen as one.
    let stamp = Stamp::of(source);
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
            // Clouds that cannot be read say nothing here: whoever logs in to them will tell.
            if let Some(config) = &mut config
                && let Ok(clouds) = Clouds::find(&Surroundings::of_process())
            {
                config.settle_formats(&clouds);
            }
            Loaded {
                config,
                diagnostics,
                stamp,
            }
        }
    }
}

/// The same from memory; the paths are for messages only.
pub fn load_bytes(
    main: (&Path, &[u8]),
    secure: Option<(&Path, &[u8])>,
    environment: &Environment,
    mode: Mode,
) -> (Option<Config>, Diagnostics) {
    let mut reader = Reader {
        sources: Sources::default(),
        problems: Vec::new(),
        environment,
    };
    let main = reader.parse(main.0, main.1, false);
    let secure = secure.and_then(|(path, bytes)| reader.parse(path, bytes, true));
    let Reader {
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
        let file = section::<File>(&main, &mut decoder);
        let secure = secure.map(|secure| section::<SecureFile>(&secure, &mut decoder));
        Config::resolve(file, secure, &mut decoder)
    });
    let config = config.filter(|_| !decoder.findings.has_errors());
    let findings = std::mem::take(&mut decoder.findings);
    (config, findings.finish(&sources))
}

/// A document as a section; an empty one has all defaults.
fn section<S: Decode<()> + crate::section::Section<()>>(
    node: &Rc<Node>,
    decoder: &mut Decoder<'_>,
) -> S {
    let read = if node.is_null() {
        None
    } else {
        S::decode(node, &(), decoder)
    };
    read.unwrap_or_else(|| S::fields(&yaml::Map::default(), &(), decoder))
}

/// Turns bytes into trees and remembers what is needed to point into them.
struct Reader<'e> {
    sources: Sources,
    problems: Vec<Problem>,
    environment: &'e Environment,
}

impl Reader<'_> {
    fn parse(&mut self, path: &Path, bytes: &[u8], secure: bool) -> Option<Rc<Node>> {
        let (text, trouble) = match std::str::from_utf8(bytes) {
            _ if bytes.len() > MAX_FILE_SIZE => {
                let message = format!("the file is larger than {} MiB", MAX_FILE_SIZE >> 20);
                (String::new(), Some((0, "too-large", message)))
            }
            // A byte order mark says nothing in UTF-8, and would be a column of its own.
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
                .push(Problem::of_file(code, whole(at), message));
            return None;
        }
        if expanded.len() > MAX_FILE_SIZE {
            let message = format!(
                "with its variables the file is larger than {} MiB",
                MAX_FILE_SIZE >> 20
            );
            self.problems
                .push(Problem::of_file("too-large", whole(0), message));
            return None;
        }
        match yaml::parse(&expanded, file, &mut self.problems) {
            Ok(Some(node)) => Some(node),
            Ok(None) => Some(Rc::new(Node::empty(whole(0)))),
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
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries < TRIES => {
                tries += 1;
                thread::sleep(BETWEEN_TRIES);
            }
            Ok(bytes) => return Ok(bytes),
            Err(error) => return Err(Box::new(unreadable(path, &error))),
        }
    }
}

/// Reads no more than what shows that a file is too large.
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
