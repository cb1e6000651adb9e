//! Builds of a worker that is not root, whose programs use sudo.
//!
//! The tests need root to create processes of root, and another user that cannot kill them. Root therefore runs each test again as
//! user nobody, with a `sudo` that needs no configuration: a script around a setuid `setpriv`.

use std::process::Command;

use nodeyard_testbeds::{executable, skipped};

use super::*;

const NOBODY: &str = "65534";

/// Set in the process that runs as user nobody.
const AGAIN: &str = "NODEYARD_TEST_AS_NOBODY";

/// Returns whether this process runs as user nobody. Otherwise runs the test of this name in such a process.
fn is_nobody(test: &str, may_kill: bool) -> bool {
    if std::env::var_os(AGAIN).is_some() {
        return true;
    }
    if !rustix::process::geteuid().is_root() {
        skipped("sudo cannot be tried", "run it as root");
        return false;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    // Copied by another process, because a file that was just written by this one may be busy.
    let install = |words: &[&str], paths: &[&Path]| {
        let mut install = Command::new("install");
        let installed = install
            .args(["-g", NOBODY])
            .args(words)
            .args(paths)
            .status();
        assert!(installed.unwrap().success());
    };
    install(&["-d", "-m", "750"], &[directory.path()]);
    install(&["-d", "-m", "770"], &[&path("tmp")]);
    let itself = std::env::current_exe().unwrap();
    install(&["-m", "750"], &[&itself, &path("test")]);
    let setpriv = Path::new("/usr/bin/setpriv");
    install(&["-m", "4750"], &[setpriv, &path("setpriv")]);
    let refused = if may_kill {
        ""
    } else {
        "[ \"$2\" != kill ] || exit 1\n"
    };
    let sudo = format!(
        "#!/bin/sh\n{refused}shift\nexec {} --reuid 0 --regid 0 --clear-groups \"$@\"\n",
        path("setpriv").display()
    );
    executable(&path("sudo"), &sudo).unwrap();

    let test = format!("source::process::tests::sudo::{test}");
    let again = Command::new("setpriv")
        .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"])
        .arg(path("test"))
        .args(["--exact", &test, "--nocapture"])
        .current_dir(path("tmp"))
        .env(AGAIN, "1")
        .env("TMPDIR", path("tmp"))
        .env(
            "PATH",
            format!("{}:/usr/bin:/bin", directory.path().display()),
        )
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&again.stdout);
    let errors = String::from_utf8_lossy(&again.stderr);
    assert!(again.status.success(), "{output}{errors}");
    assert!(output.contains("1 passed"), "{output}{errors}");
    false
}

impl ProgramTest {
    /// Uses minimal grace periods.
    fn hasty() -> Arc<Self> {
        let mut test = Self::new();
        test.grace = (Duration::from_millis(50), Duration::from_millis(50));
        Arc::new(test)
    }

    /// Starts a program which has root write its number to a file, and stay; and stops it then.
    async fn stopped(self: &Arc<Self>, line: &str) -> (Pid, SourceError) {
        let build = tokio::spawn({
            let (test, line) = (Arc::clone(self), line.to_owned());
            async move { test.run(&line).await }
        });
        let pid = self.pid("pid").await;
        self.stop.cancel();
        (pid, build.await.unwrap().unwrap_err())
    }

    fn stay(&self) -> String {
        format!(
            "sh -c 'echo $$ > {}; exec sleep 1000'",
            self.path("pid").display()
        )
    }
}

#[tokio::test]
async fn what_root_does_for_a_build_ends_with_it() {
    if !is_nobody("what_root_does_for_a_build_ends_with_it", true) {
        return;
    }
    // As a part of the program, as all of it, and left behind by it.
    for by in ["sh -c \"sudo -n STAY; :\"", "sudo -n STAY"] {
        let test = ProgramTest::hasty();
        let line = by.replace("STAY", &test.stay());
        let (pid, error) = test.stopped(&line).await;
        assert!(matches!(error, SourceError::Stopped), "{error:?}");
        is_gone(pid).await;
        assert!(!test.log().contains("nodeyard:"), "{}", test.log());
    }
    let test = ProgramTest::hasty();
    let pid = test.path("pid");
    let left = format!(
        "sudo -n {} & while [ ! -s {} ]; do sleep 0.01; done",
        test.stay(),
        pid.display()
    );
    test.sh(&left).await.unwrap();
    is_gone(test.pid("pid").await).await;
    assert_eq!(test.log(), "Exit code: 0\n");
}

#[tokio::test]
async fn what_root_does_for_a_build_and_may_not_be_ended_is_named() {
    if !is_nobody(
        "what_root_does_for_a_build_and_may_not_be_ended_is_named",
        false,
    ) {
        return;
    }
    let test = ProgramTest::hasty();
    let (pid, error) = test.stopped(&format!("sudo -n {}", test.stay())).await;
    // The test may do what the worker may not.
    let number = pid.as_raw_nonzero().to_string();
    let ended = Command::new("sudo")
        .args(["-n", "env", "kill", "-9", &number])
        .status();
    assert!(ended.unwrap().success());
    let named = format!("{number} (sleep)");
    assert!(matches!(error, SourceError::StillRuns { .. }), "{error:?}");
    assert!(error.to_string().contains(&named), "{error}");
    assert!(test.log().contains(&named), "{}", test.log());
    is_gone(pid).await;
}
