//! Guests that QEMU pauses for good, and a KVM that passes its trial and then fails.
//!
//! A stand-in takes QEMU's place for machines under KVM: it answers on the control sockets, reports a run state and
//! writes to its log what QEMU would. With `later-` before the run state, the guest runs until somebody waits for events.
//! Trials, and machines without KVM, get the real QEMU.

use std::fs;

use nodeyard_config::Accelerator;
use nodeyard_driver::ErrorClass;
use nodeyard_testbeds::executable;

use crate::common::{PATIENCE, Yard, launch, order};

const STAND_IN: &str = r#"
import json, os, socket, sys, threading, time

status, log = sys.argv[1], sys.argv[2]
later = status.removeprefix("later-") if status.startswith("later-") else None
if later:
    status = "running"

def serve(name):
    server = socket.socket(socket.AF_UNIX)
    server.bind(name)
    server.listen()
    while True:
        client, _ = server.accept()
        with client, client.makefile("rw") as lines:
            try:
                answer(name, lines)
            except OSError:
                pass

def answer(name, lines):
    global status
    def send(value):
        lines.write(json.dumps(value) + "\n")
        lines.flush()
    send({"QMP": {"version": {}, "capabilities": []}})
    for line in lines:
        command = json.loads(line)["execute"]
        if command == "query-status":
            if status == "exit":
                print(log, file=sys.stderr, flush=True)
                os._exit(1)
            send({"return": {"status": status, "running": False}})
            if later and name == "events.sock":
                status = later
                send({"event": "STOP"})
        elif command == "human-monitor-command":
            send({"return": ""})
        elif command == "query-block":
            send({"return": [{"device": "", "io-status": "nospace"}]})
        else:
            send({"return": {}})

if status != "exit":
    print(log, file=sys.stderr, flush=True)
for name in ("qmp.sock", "events.sock"):
    threading.Thread(target=serve, args=(name,), daemon=True).start()
time.sleep(600)
"#;

const QEMU: &str = r#"#!/bin/sh
case " $* " in
    *" -accel kvm "*" -name "*) exec python3 "$0.py" STATUS 'error: kvm run failed Bad address' "$@" ;;
    # What the guests of a trial write.
    *" -accel kvm "*) printf 'Kernel panic\nthe guest runs\n' && exit ;;
esac
for argument; do
    shift
    case "$argument" in
        kvm) argument=tcg ;;
        host) argument=max ;;
    esac
    set -- "$@" "$argument"
done
exec qemu-system-x86_64 "$@"
"#;

/// A provider whose machines reach `status` under KVM, although a trial succeeds.
fn yard(accelerator: Accelerator, status: &str) -> Yard {
    let mut yard = Yard::with(|options| options.accelerator = accelerator);
    let program = yard.path().join("qemu");
    executable(&program, &QEMU.replace("STATUS", status)).unwrap();
    fs::write(program.with_extension("py"), STAND_IN).unwrap();
    yard.options.binary = program.to_str().unwrap().into();
    yard.options.kvm = program;
    yard
}

async fn falls_back_to_tcg(status: &str) {
    let yard = yard(Accelerator::Auto, status);
    launch(&yard.driver(), &order(1)).await.unwrap();
    let trial = fs::read_to_string(yard.options.directory.join("accelerator.json")).unwrap();
    assert!(trial.contains("\"works\": false"), "{trial}");
    assert!(trial.contains("kvm run failed Bad address"), "{trial}");
    assert_eq!(yard.names("machines").len(), 3, "a second machine was made");
    // Another process reads the file, and does not try KVM again.
    launch(&yard.driver(), &order(2)).await.unwrap();
    let processes = yard.processes();
    assert_eq!(processes.len(), 2);
    for pid in processes {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        assert!(line.contains("-accel\0tcg\0"), "{line}");
    }
}

#[tokio::test]
async fn a_launch_goes_on_without_kvm_when_it_fails_after_its_trial() {
    falls_back_to_tcg("internal-error").await;
}

#[tokio::test]
async fn a_launch_goes_on_without_kvm_when_qemu_exits_because_of_it() {
    falls_back_to_tcg("exit").await;
}

#[tokio::test]
async fn a_machine_that_must_have_kvm_fails_with_the_words_of_qemu() {
    let mut yard = yard(Accelerator::Kvm, "internal-error");
    yard.options.pools[0].labels[0].console_log = false;
    let error = launch(&yard.driver(), &order(1)).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Permanent);
    let text = error.to_string();
    assert!(text.contains("internal-error"), "{text}");
    assert!(text.contains("kvm run failed Bad address"), "{text}");
}

#[tokio::test]
async fn a_guest_that_panics_fails_its_launch() {
    let yard = yard(Accelerator::Auto, "guest-panicked");
    let error = launch(&yard.driver(), &order(1)).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Permanent);
    assert!(error.to_string().contains("its guest panicked"), "{error}");
}

/// Without a poll: the next one would come after the end of the test.
#[tokio::test]
async fn a_guest_that_panics_between_polls_fails_its_launch_at_once() {
    let mut yard = yard(Accelerator::Auto, "later-guest-panicked");
    yard.options.poll.least = PATIENCE;
    let error = launch(&yard.driver(), &order(1)).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Permanent);
    assert!(error.to_string().contains("its guest panicked"), "{error}");
}

#[tokio::test]
async fn a_full_disk_of_the_host_is_reported_as_that() {
    let yard = yard(Accelerator::Auto, "io-error");
    let error = launch(&yard.driver(), &order(1)).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Capacity);
    let text = error.to_string();
    assert!(text.contains("the disk of this host is full"), "{text}");
}
