//! What becomes of an embedded store when its disk or its process fails.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nodeyard_testbeds::SmallDisk;
use serde_json::json;

use crate::bed::{Bed, QUICK_CLOUD, wait_until};

const RECORDS: usize = 300;

/// An export with so many records, which share no names with those of another `prefix`.
fn export(bed: &Bed, prefix: &str, size: usize) -> String {
    let name = format!("{prefix}.jsonl");
    let text = "x".repeat(size);
    let lines = (0..RECORDS).map(|number| {
        let record =
            json!({"path": format!("/{prefix}{number}"), "data": format!("{number} {text}")});
        format!("{record}\n")
    });
    let lines: String = lines.collect();
    bed.write(&name, format!("{{\"nodeyard-export\":1}}\n{lines}"));
    name
}

#[test]
fn on_a_full_disk_reads_work_and_writes_fail_with_a_reason() {
    let bed = Bed::new();
    let Some(_disk) = SmallDisk::mount(&bed.path("state"), 64) else {
        return;
    };
    let daemon = bed.up(&[]);
    let small = export(&bed, "small", 10);
    bed.store(&["import", &small]).succeeded();
    let before = bed.store(&["ls"]).succeeded().out;
    let filler = bed.path("state/filler");
    // As much as fits.
    let _full = fs::write(&filler, vec![1; 80 << 20]);
    let large = export(&bed, "large", 50_000);
    bed.store(&["import", &large]).failed("in its log");
    daemon.wait_for_log("the disk is full");
    let during = bed.store(&["ls"]).succeeded().out;
    for name in before.lines() {
        assert!(during.lines().any(|line| line == name), "{name} is missing");
    }
    fs::remove_file(&filler).unwrap();
    let later = export(&bed, "later", 10);
    bed.store(&["import", &later]).succeeded();
    let after = bed.store(&["ls"]).succeeded().out;
    assert_eq!(after.matches("/later").count(), RECORDS);
    drop(daemon);
    let _successor = bed.up(&[]);
    assert_eq!(bed.store(&["ls"]).succeeded().out, after);
}

#[test]
fn a_read_only_disk_is_refused_and_nothing_is_lost() {
    let bed = Bed::new();
    let Some(disk) = SmallDisk::mount(&bed.path("state"), 64) else {
        return;
    };
    let mut daemon = bed.up(&[]);
    let name = export(&bed, "r", 10);
    bed.store(&["import", &name]).succeeded();
    let before = bed.store(&["ls"]).succeeded().out;
    assert_eq!(daemon.terminate(), 0);
    assert!(disk.remount("ro"));
    let refused = bed.run(["up", "--state-dir", "state"]);
    refused.failed("read-only");
    assert!(disk.remount("rw"));
    let _daemon = bed.up(&[]);
    assert_eq!(bed.store(&["ls"]).succeeded().out, before);
}

/// All files in a directory.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .filter(|path| path.is_file())
        .map(|path| (path.clone(), fs::read(&path).unwrap()))
        .collect()
}

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }
}

#[test]
fn a_damaged_file_is_read_completely_or_refused_as_it_is() {
    let bed = Bed::new();
    let mut daemon = bed.up(&[]);
    let name = export(&bed, "r", 100);
    bed.store(&["import", &name]).succeeded();
    assert_eq!(daemon.terminate(), 0);
    let dump = |bed: &Bed| bed.store(&["export", "-"]);
    let right = dump(&bed).succeeded().out;
    let sound = contents(&bed.path("state"));
    let (file, bytes) = sound.iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
    let (mut refused, mut numbers) = (0, Numbers(0x9e37_79b9_7f4a_7c15));
    for round in 0..60 {
        let mut damaged = bytes.clone();
        match round % 3 {
            0 => damaged.truncate(numbers.below(bytes.len())),
            1 => {
                let at = numbers.below(bytes.len());
                damaged[at] ^= 1 << numbers.below(8);
            }
            _ => {
                for _ in 0..64 {
                    let at = numbers.below(bytes.len());
                    damaged[at] = !damaged[at];
                }
            }
        }
        fs::write(file, &damaged).unwrap();
        let ran = dump(&bed);
        if ran.code == 0 {
            assert!(
                ran.out == right,
                "round {round}: it was opened, and something is missing\n{}",
                ran.err
            );
        } else {
            let ran = ran.failed("move it away");
            assert!(
                ran.err.contains(file.to_str().unwrap()) || ran.err.contains("state/"),
                "{}",
                ran.err
            );
            assert!(
                fs::read(file).unwrap() == damaged,
                "round {round}: it was refused, and written to"
            );
            refused += 1;
        }
    }
    assert!(refused > 20, "only {refused} of 60 were refused");
    // So it is by a daemon.
    let half = &bytes[..bytes.len() / 2];
    fs::write(file, half).unwrap();
    bed.run(["up", "--state-dir", "state"])
        .failed("move it away");
    assert!(fs::read(file).unwrap() == half);
    fs::write(file, bytes).unwrap();
    assert!(dump(&bed).succeeded().out == right);
}

/// The process is killed again and again, wherever it is: whatever was asked for is served in the end, once, and
/// whatever was served stays.
#[test]
fn an_owner_killed_at_any_time_continues_where_it_was() {
    const ROUNDS: u32 = 12;
    let mut bed = Bed::new();
    let cloud = QUICK_CLOUD.replace("PORT", &bed.free_port().to_string());
    // So that it is killed while machines boot, too.
    let cloud = cloud.replace("boot-time: 0", "boot-time: 0.2");
    bed.write("nodepool.yaml", cloud);
    let (_simulation, _) = bed.simulate();
    let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);
    let store = ["-c", "nodepool.yaml", "store"];
    for round in 0..ROUNDS {
        let mut daemon = bed.start("log", ["-c", "nodepool.yaml", "up"]);
        if round == 0 {
            daemon.wait_for_log("store ready");
        }
        // Asked for while it starts or works; acknowledged means that it survives.
        bed.submit_to(&store, round, "small");
        thread::sleep(Duration::from_millis(numbers.below(1500) as u64));
        daemon.kill();
    }
    let _daemon = bed.start("log", ["-c", "nodepool.yaml", "up"]);
    let served = || {
        let requests = bed.rows(&["request-list"]);
        let done = requests
            .iter()
            .filter(|request| request["state"] == "fulfilled");
        done.count() == ROUNDS as usize
    };
    wait_until("all requests are fulfilled", served);
    let mut given: Vec<String> = bed
        .rows(&["request-list"])
        .iter()
        .flat_map(|request| request["nodes"].as_array().unwrap().clone())
        .map(|id| id.as_str().unwrap().to_owned())
        .collect();
    given.sort();
    given.dedup();
    assert_eq!(given.len(), ROUNDS as usize, "each has a node of its own");
    wait_until("there are no other nodes", || {
        let nodes = bed.rows(&["list"]);
        nodes.len() == ROUNDS as usize && nodes.iter().all(|node| node["state"] == "ready")
    });
}
