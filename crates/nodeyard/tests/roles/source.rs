//! Repositories as an executor has them.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// Has a file of several megabytes that cannot be compressed, two branches and a tag.
pub(crate) const LARGE: &str = "example.com/large";
pub(crate) const SMALL: &str = "example.com/group/small";

pub(crate) struct Source {
    directory: PathBuf,
}

impl Source {
    pub(crate) fn create(directory: &Path) -> Self {
        let source = Self {
            directory: directory.to_owned(),
        };
        let mut noise = Vec::new();
        let random = fs::File::open("/dev/urandom").unwrap();
        random.take(8 << 20).read_to_end(&mut noise).unwrap();
        for repository in [LARGE, SMALL] {
            let place = source.place(repository);
            fs::create_dir_all(&place).unwrap();
            source.git(repository, &["init", "-q", "-b", "main"]);
            fs::write(place.join("first"), repository).unwrap();
            if repository == LARGE {
                fs::write(place.join("noise"), &noise).unwrap();
            }
            source.commit(repository, "second");
        }
        source.git(LARGE, &["branch", "stable"]);
        source.git(LARGE, &["tag", "1.0"]);
        source.git(LARGE, &["update-ref", "refs/remotes/origin/main", "HEAD"]);
        source
    }

    pub(crate) fn place(&self, repository: &str) -> PathBuf {
        self.directory.join(repository)
    }

    /// Adds a file with this name, and whatever else has changed.
    pub(crate) fn commit(&self, repository: &str, file: &str) {
        fs::write(self.place(repository).join(file), file).unwrap();
        self.git(repository, &["add", "--all"]);
        self.git(repository, &["commit", "-q", "-m", file]);
    }

    /// The last commit is another one, a file is gone, and so is a branch.
    pub(crate) fn rework(&self, repository: &str) {
        self.git(repository, &["reset", "-q", "--hard", "HEAD^"]);
        fs::remove_file(self.place(repository).join("first")).unwrap();
        self.commit(repository, "instead");
        self.git(repository, &["branch", "-q", "-D", "stable"]);
    }

    /// As Zuul describes it.
    pub(crate) fn project(&self, repository: &str) -> Value {
        json!({
            "canonical_name": repository,
            "src_dir": format!("src/{repository}"),
            "checkout": "main",
            "commit": self.git(repository, &["rev-parse", "HEAD"]).trim(),
        })
    }

    /// What one should see of it on a node.
    pub(crate) fn look(&self, repository: &str) -> Vec<String> {
        let mut lines = vec!["main".to_owned()];
        let digests = Command::new("sh")
            .args(["-c", "sha256sum *"])
            .current_dir(self.place(repository))
            .output();
        for text in [
            self.git(repository, &["rev-parse", "HEAD"]),
            self.git(repository, &["for-each-ref", "--format=%(refname)"]),
            String::from_utf8(digests.unwrap().stdout).unwrap(),
        ] {
            lines.extend(text.lines().map(ToOwned::to_owned));
        }
        lines
    }

    fn git(&self, repository: &str, arguments: &[&str]) -> String {
        let output = Command::new("git")
            .args(["-c", "user.name=a", "-c", "user.email=a@b.example"])
            .args(arguments)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .current_dir(self.place(repository))
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// What `sha256sum` says of a file that it reads from standard input.
pub(crate) fn sha256(file: &Path) -> String {
    let output = Command::new("sha256sum")
        .stdin(Stdio::from(fs::File::open(file).unwrap()))
        .output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}
