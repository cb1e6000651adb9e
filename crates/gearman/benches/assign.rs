//! Measures the time from a client's submit to the worker's assignment, for our server and gearmand.
//!
//! 200 workers register 10,000 functions, 50 each, and sleep; jobs of random functions are submitted one by one
//! (latency) and 100 at a time (load). After that every worker registers all functions. Each server is a process of its
//! own and the rounds alternate. Run with `cargo bench -p nodeyard-gearman`; needs gearmand.
//!
//! All workers run in one thread of this process. To measure the server and not that thread, a batch is submitted in
//! one write, and workers continue only after the whole batch is assigned. The times of a batch are correlated, so
//! there are many batches.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout
)]

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use nodeyard_gearman::codec::{Codec, FrameLimits, GearmanFrame, JobPriority, Magic, Packet};
use nodeyard_gearman::server::{JobServer, JobServerOptions};
use nodeyard_testbeds::gearman::{ExternalJobServer, Kind};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio_util::codec::Framed;
use tokio_util::sync::CancellationToken;

const WORKERS: usize = 200;
const FUNCTIONS: usize = 10_000;
const ROUNDS: usize = 25;
const JOBS: usize = 2_000;
const AT_ONCE: usize = 100;
const SERVE: &str = "NODEYARD_BENCH_SERVE";

fn main() {
    if let Ok(port) = std::env::var(SERVE) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        let listen = format!("127.0.0.1:{port}").parse().unwrap();
        let options = JobServerOptions {
            listen,
            ..JobServerOptions::default()
        };
        return runtime.block_on(async {
            JobServer::bind(options)
                .await
                .unwrap()
                .run(CancellationToken::new())
                .await;
        });
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(compare());
}

struct ServerProcess(Child, u16);

impl ServerProcess {
    fn start() -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let child = Command::new(std::env::current_exe().unwrap())
            .env(SERVE, port.to_string())
            .spawn()
            .unwrap();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        Self(child, port)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn compare() {
    let (ours, gearmand) = (
        ServerProcess::start(),
        ExternalJobServer::start(Kind::Gearmand, None).unwrap(),
    );
    let mut beds = [
        ("ours", AssignBench::new(ours.1, false).await),
        ("gearmand", AssignBench::new(gearmand.port(), false).await),
    ];
    let mut times: [[Vec<Duration>; 2]; 2] = Default::default();
    for _ in 0..ROUNDS {
        for (index, (_, bench)) in beds.iter_mut().enumerate() {
            times[index][0].extend(bench.run(JOBS / 4, 1).await);
            times[index][1].extend(bench.run(JOBS, AT_ONCE).await);
        }
    }
    let pids = [ours.0.id(), gearmand.pid().unwrap()];
    for (index, (name, _)) in beds.iter().enumerate() {
        println!(
            "{name}: {:?} of processor time",
            processor_time(pids[index])
        );
        for (load, times) in ["one at a time", "100 at a time"]
            .iter()
            .zip(&mut times[index])
        {
            report(&format!("{name}, {load}"), times);
        }
    }
    // gearmand takes time in the square of its functions to register them, so this is for us alone.
    drop((beds, ours, gearmand));
    let ours = ServerProcess::start();
    let mut bench = AssignBench::new(ours.1, true).await;
    report(
        "ours, every worker does all functions, one at a time",
        &mut bench.run(JOBS, 1).await,
    );
    report(
        "ours, every worker does all functions, 100 at a time",
        &mut bench.run(JOBS, AT_ONCE).await,
    );
}

fn report(what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!(
        "{what}: p50 {:?}, p99 {:?}, max {:?}, {} jobs",
        at(0.5),
        at(0.99),
        at(1.0),
        times.len()
    );
}

/// Returns the CPU time used by a process, including registrations.
fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    // Fields 14 and 15 of the line, in hundredths of a second; the name in brackets was the second.
    Duration::from_millis(
        10 * (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()),
    )
}

/// One server with its workers and one client.
struct AssignBench {
    client: Framed<TcpStream, Codec>,
    assigned: mpsc::UnboundedReceiver<Instant>,
    /// Receives a message for each worker that went to sleep.
    asleep: mpsc::UnboundedReceiver<()>,
    /// The number of batches that are assigned.
    done: watch::Sender<usize>,
}

async fn connect(port: u16) -> Framed<TcpStream, Codec> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    Framed::new(stream, Codec::new(Magic::Request, FrameLimits::default()))
}

impl AssignBench {
    async fn new(port: u16, shared: bool) -> Self {
        let (sender, assigned) = mpsc::unbounded_channel();
        let (sleeps, mut asleep) = mpsc::unbounded_channel();
        let (done, batches) = watch::channel(0);
        for worker in 0..WORKERS {
            let events = WorkerChannels {
                assigned: sender.clone(),
                asleep: sleeps.clone(),
                batches: batches.clone(),
            };
            tokio::spawn(work(port, worker, shared, events));
        }
        for _ in 0..WORKERS {
            asleep.recv().await.unwrap();
        }
        Self {
            client: connect(port).await,
            assigned,
            asleep,
            done,
        }
    }

    /// Submits jobs in batches of `at_once` and returns the time until each was assigned.
    async fn run(&mut self, jobs: usize, at_once: usize) -> Vec<Duration> {
        let mut times = Vec::with_capacity(jobs);
        for batch in 0..jobs / at_once {
            for index in 0..at_once {
                let function = (batch * at_once + index).wrapping_mul(7919) % FUNCTIONS;
                let packet = Packet::SubmitJob {
                    priority: JobPriority::Normal,
                    background: true,
                    function: format!("image-upload:{function}").into(),
                    unique: Bytes::new(),
                    payload: Bytes::new(),
                };
                self.client.feed(&packet).await.unwrap();
            }
            let submitted = Instant::now();
            self.client.flush().await.unwrap();
            for _ in 0..at_once {
                let at = self.assigned.recv().await.unwrap();
                times.push(at - submitted);
            }
            self.done.send_modify(|batches| *batches += 1);
            for _ in 0..at_once {
                let created = self.client.next().await.unwrap().unwrap();
                assert!(
                    matches!(created, GearmanFrame::Packet(Packet::JobCreated { .. })),
                    "{created:?}"
                );
                self.asleep.recv().await.unwrap();
            }
        }
        times
    }
}

/// The channels between a worker and its benchmark.
struct WorkerChannels {
    assigned: mpsc::UnboundedSender<Instant>,
    asleep: mpsc::UnboundedSender<()>,
    batches: watch::Receiver<usize>,
}

async fn work(port: u16, worker: usize, shared: bool, mut events: WorkerChannels) {
    let mut wire = connect(port).await;
    let (first, step) = if shared { (0, 1) } else { (worker, WORKERS) };
    for function in (first..FUNCTIONS).step_by(step) {
        wire.feed(&Packet::CanDo {
            function: format!("image-upload:{function}").into(),
        })
        .await
        .unwrap();
    }
    wire.send(&Packet::GrabJobUniq).await.unwrap();
    while let Some(Ok(GearmanFrame::Packet(packet))) = wire.next().await {
        match packet {
            Packet::NoJob => {
                wire.send(&Packet::PreSleep).await.unwrap();
                events.asleep.send(()).unwrap();
            }
            Packet::Noop => wire.send(&Packet::GrabJobUniq).await.unwrap(),
            Packet::JobAssignUniq { handle, .. } => {
                let now = Instant::now();
                events.batches.borrow_and_update();
                events.assigned.send(now).unwrap();
                events.batches.changed().await.unwrap();
                wire.feed(&Packet::WorkComplete {
                    handle,
                    data: Bytes::new(),
                })
                .await
                .unwrap();
                wire.send(&Packet::GrabJobUniq).await.unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
}
