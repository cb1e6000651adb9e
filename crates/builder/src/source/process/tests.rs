mod sudo;

use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;

use super::super::progress::AnnouncedProgress;
use super::super::{LogLimits, Redactor};
use super::*;

/// A timeout that only a hang exceeds.
const PATIENCE: Duration = Duration::from_secs(300);

struct ProgramTest {
    directory: TempDir,
    stop: CancellationToken,
    limits: LogLimits,
    grace: (Duration, Duration),
}

impl ProgramTest {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            stop: CancellationToken::new(),
            limits: LogLimits::default(),
            grace: (PROGRAM_GRACE, GROUP_GRACE),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn order(&self) -> BuildOrder {
        BuildOrder {
            image: "image".parse().unwrap(),
            id: "1".parse().unwrap(),
            base: self.path("image-1"),
            formats: vec!["raw".into()],
            elements_path: None,
        }
    }

    async fn run(&self, line: &str) -> Result<(), SourceError> {
        let mut program = Program::new(line).unwrap();
        program.grace = self.grace;
        program = program.marked(&self.order());
        let mut console = BuildConsole::open(self.path("log"), self.limits, Redactor::default())
            .await
            .unwrap();
        let progress_reader = ProgressReader::new(AnnouncedProgress);
        let ended = run(program, &mut console, progress_reader, &self.stop);
        let ended = timeout(PATIENCE, ended).await.expect("it never ended");
        console.end().await;
        ended
    }

    async fn sh(&self, script: &str) -> Result<(), SourceError> {
        self.run(&format!("sh -c {}", shlex::try_quote(script).unwrap()))
            .await
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap()
    }

    /// The process whose number a script has written to a file.
    async fn pid(&self, name: &str) -> Pid {
        let path = self.path(name);
        let pid = until(|| {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            text.strip_suffix('\n')?.parse().ok()
        });
        Pid::from_raw(pid.await).unwrap()
    }
}

async fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = look() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, found).await.expect("never happened")
}

/// Waits until the process is gone or a zombie.
async fn is_gone(pid: Pid) {
    let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
    until(|| {
        let state = std::fs::read_to_string(&stat).ok();
        let alive = state.is_some_and(|state| !state.contains(") Z "));
        (!alive).then_some(())
    })
    .await;
}

fn is_zombie(pid: Pid) -> bool {
    Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists()
}

#[tokio::test]
async fn both_streams_go_to_the_log_in_their_order() {
    let test = ProgramTest::new();
    test.sh("echo one; echo two >&2; echo three; printf four")
        .await
        .unwrap();
    assert_eq!(test.log(), "one\ntwo\nthree\nfourExit code: 0\n");
}

#[tokio::test]
async fn a_program_does_not_get_the_environment_of_the_worker() {
    // Cargo sets it for every test.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    let test = ProgramTest::new();
    test.sh("echo ${CARGO_MANIFEST_DIR-nothing} $NODEYARD_OUTPUT; echo ${PATH:+path}")
        .await
        .unwrap();
    let base = test.path("image-1");
    let expected = format!("nothing {}\npath\nExit code: 0\n", base.display());
    assert_eq!(test.log(), expected);
}

#[tokio::test]
async fn the_exit_code_decides() {
    let test = ProgramTest::new();
    let error = test.sh("echo failing; exit 3").await.unwrap_err();
    assert_eq!(error.to_string(), "sh ended with exit code 3");
    assert_eq!(test.log(), "failing\nExit code: 3\n");
    let error = test.sh("kill -9 $$").await.unwrap_err();
    assert_eq!(error.to_string(), "sh was ended by signal 9");
    assert_eq!(test.log(), "Exit code: -9\n");
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named() {
    let test = ProgramTest::new();
    let error = test.run("/nowhere/dib -x").await.unwrap_err();
    assert!(matches!(error, SourceError::Start { .. }), "{error:?}");
    assert!(error.to_string().contains("/nowhere/dib"), "{error}");
    assert_eq!(test.log(), "");
}

#[tokio::test]
async fn a_program_can_clean_up_when_it_is_stopped() {
    let test = Arc::new(ProgramTest::new());
    let script = format!(
        "trap 'echo cleaning; exit 0' TERM; echo $$ > {}; while :; do sleep 0.01; done",
        test.path("pid").display()
    );
    let build = tokio::spawn({
        let test = Arc::clone(&test);
        async move { test.sh(&script).await }
    });
    let pid = test.pid("pid").await;
    test.stop.cancel();
    let error = build.await.unwrap().unwrap_err();
    assert!(matches!(error, SourceError::Stopped), "{error:?}");
    let log = test.log();
    assert!(
        log.contains("cleaning\n") && !log.contains("Exit code"),
        "{log}"
    );
    assert!(!is_zombie(pid));
}

#[tokio::test]
async fn a_program_that_will_not_end_is_killed_with_all_it_started() {
    let mut test = ProgramTest::new();
    test.grace = (Duration::from_millis(50), Duration::from_millis(50));
    let test = Arc::new(test);
    let script = format!(
        "trap '' TERM; (trap '' TERM; sh -c 'echo $$ > {child}; exec sleep 1000') & echo $$ > {pid}; wait; sleep 1000",
        pid = test.path("pid").display(),
        child = test.path("child").display(),
    );
    let build = tokio::spawn({
        let test = Arc::clone(&test);
        async move { test.sh(&script).await }
    });
    let (pid, child) = (test.pid("pid").await, test.pid("child").await);
    test.stop.cancel();
    let error = build.await.unwrap().unwrap_err();
    assert!(matches!(error, SourceError::Stopped), "{error:?}");
    assert!(!is_zombie(pid));
    is_gone(child).await;
}

#[tokio::test]
async fn a_shell_that_waits_for_a_command_can_clean_up_too() {
    let mut test = ProgramTest::new();
    test.grace.0 = Duration::from_millis(50);
    let test = Arc::new(test);
    let script = format!(
        "trap 'echo cleaning; exit 0' TERM; echo $$ > {}; sleep 1000",
        test.path("pid").display()
    );
    let build = tokio::spawn({
        let test = Arc::clone(&test);
        async move { test.sh(&script).await }
    });
    test.pid("pid").await;
    test.stop.cancel();
    let error = build.await.unwrap().unwrap_err();
    assert!(matches!(error, SourceError::Stopped), "{error:?}");
    assert!(test.log().contains("cleaning\n"), "{}", test.log());
}

#[tokio::test]
async fn what_a_program_leaves_behind_ends_with_it() {
    let test = ProgramTest::new();
    // In the group, and out of it; both hold the output open.
    let script = format!(
        "sh -c 'echo $$ > {near}; exec sleep 1000' & setsid sh -c 'echo $$ > {far}; exec sleep 1000' & \
         while [ ! -s {near} ] || [ ! -s {far} ]; do sleep 0.01; done; echo done",
        near = test.path("near").display(),
        far = test.path("far").display(),
    );
    test.sh(&script).await.unwrap();
    assert_eq!(test.log(), "done\nExit code: 0\n");
    is_gone(test.pid("near").await).await;
    is_gone(test.pid("far").await).await;
}

#[tokio::test]
async fn an_escaped_process_that_holds_the_output_does_not_hang_the_build() {
    let test = ProgramTest::new();
    let far = test.path("far");
    let script = format!(
        "env -i PATH=\"$PATH\" setsid sh -c 'echo $$ > {far}; exec sleep 1000' & \
         while [ ! -s {far} ]; do sleep 0.01; done; echo done",
        far = far.display(),
    );
    test.sh(&script).await.unwrap();
    assert_eq!(test.log(), "done\nExit code: 0\n");
    // Nothing of ours is left on it, so it is the test that ends it.
    rustix::process::kill_process(test.pid("far").await, Signal::KILL).unwrap();
}

#[tokio::test]
async fn a_build_that_nobody_waits_for_is_killed() {
    let test = Arc::new(ProgramTest::new());
    let script = format!("echo $$ > {}; exec sleep 1000", test.path("pid").display());
    let build = tokio::spawn({
        let test = Arc::clone(&test);
        async move { test.sh(&script).await }
    });
    let pid = test.pid("pid").await;
    build.abort();
    assert!(build.await.unwrap_err().is_cancelled());
    is_gone(pid).await;
}

#[tokio::test]
async fn endless_output_is_survived() {
    let mut test = ProgramTest::new();
    test.limits = LogLimits {
        head: 1 << 20,
        tail: 1 << 10,
    };
    test.sh("head -c 256M /dev/zero; echo the end")
        .await
        .unwrap();
    let log = std::fs::read(test.path("log")).unwrap();
    assert!(log.len() < (1 << 20) + (2 << 10), "{}", log.len());
    assert!(log.ends_with(b"the end\nExit code: 0\n"));
    let omitted = (256 << 20) - (1 << 20) - (1 << 10) + 21;
    let note = format!("\n[nodeyard: {omitted} bytes omitted]\n");
    assert!(
        log.windows(note.len())
            .any(|window| window == note.as_bytes())
    );
}
