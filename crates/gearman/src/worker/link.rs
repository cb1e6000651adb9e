//! One connection of a worker to one server, from dialling to draining, and the job that runs on it.
//!
//! A connection carries one job at a time. It asks for one only while it holds a permit of the worker's pool, so
//! that several servers together cannot give a worker more than it has slots for; asleep it holds none.
//!
//! A job outlives its connection: when the connection is lost the handler is told and goes on, with its permit,
//! while this link dials again and registers everything anew.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, SinkExt, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::Instant;
use tokio_util::codec::Framed;

use super::job::{Interrupt, Job, JobError, Report, panic_text};
use super::registry::{Change, Subscription};
use super::{Mode, Pool};
use crate::codec::{Codec, Frame, FrameError, Magic, Packet, WireError, without_trailing_nul};
use crate::net::{ConnectError, Endpoint, Stream};

/// Reports a handler may be ahead of its connection.
const REPORTS_AHEAD: usize = 64;

/// How long a draining link waits for the answer to its last question.
const DRAIN_ANSWER_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("gearman server closed the connection")]
    Closed,
    #[error("gearman server assigned a job that was not asked for")]
    Unasked,
    #[error("gearman server did not answer within {0:?}")]
    NoAnswer(Duration),
}

pub(super) struct Link {
    pub(super) pool: Arc<Pool>,
    pub(super) endpoint: Endpoint,
    pub(super) server: Arc<str>,
    pub(super) client_id: String,
    pub(super) mode: watch::Receiver<Mode>,
}

enum Phase {
    /// Waits for a permit to ask for a job.
    Wanting(BoxFuture<'static, Option<OwnedSemaphorePermit>>),
    /// Has asked.
    Asked {
        permit: OwnedSemaphorePermit,
        until: Instant,
    },
    /// Told the server to wake it.
    Asleep,
    Working(Running),
}

struct Running {
    handle: Bytes,
    function: Arc<str>,
    reports: mpsc::Receiver<Report>,
    interrupt: watch::Sender<Option<Interrupt>>,
    /// The function was withdrawn while its job runs. gearmand forgets a job whose worker withdraws its function
    /// and refuses the result, so the server hears of it after the result.
    withdrawn: bool,
}

impl Link {
    /// Keeps the connection up until the worker drains.
    pub(super) async fn run(mut self) {
        let mut failures = 0;
        while *self.mode.borrow() == Mode::Working {
            let dial = self.endpoint.connect(
                self.pool.options.connect_timeout,
                self.pool.options.keepalive,
            );
            let stream = tokio::select! {
                stream = dial => stream,
                _ = self.mode.wait_for(|mode| *mode != Mode::Working) => return,
            };
            let error = match stream {
                Ok(stream) => match self.serve(stream, &mut failures).await {
                    Ok(()) => return,
                    Err(error) => error,
                },
                Err(error) => error.into(),
            };
            let delay = self.pool.options.backoff.delay(failures);
            failures = failures.saturating_add(1);
            tracing::warn!(
                server = %self.server, client_id = self.client_id, retry_in = ?delay,
                error = &error as &dyn std::error::Error, "no connection to gearman server"
            );
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                _ = self.mode.wait_for(|mode| *mode != Mode::Working) => return,
            }
        }
    }

    /// Works on one connection. Ends well only when the worker drains.
    async fn serve(&mut self, stream: Stream, failures: &mut u32) -> Result<(), LinkError> {
        let codec = Codec::new(Magic::Request, self.pool.options.limits);
        let Subscription { functions, changes } = self.pool.registry.subscribe();
        let mut session = Session {
            wire: Framed::new(stream, codec),
            changes,
            phase: Phase::Wanting(self.pool.permit()),
            pool: self.pool.clone(),
            server: self.server.clone(),
        };
        session
            .wire
            .feed(&Packet::SetClientId {
                id: self.client_id.clone().into(),
            })
            .await?;
        for (function, timeout) in &functions {
            session.wire.feed(&can_do(function, *timeout)).await?;
        }
        session.wire.flush().await?;
        let _up = self.pool.connection_up();
        tracing::debug!(server = %self.server, client_id = self.client_id, functions = functions.len(), "registered functions");
        let ended = session.run(&mut self.mode, failures).await;
        if let Phase::Working(running) = &session.phase {
            running
                .interrupt
                .send_replace(Some(Interrupt::ConnectionLost));
        }
        ended
    }
}

struct Session {
    wire: Framed<Stream, Codec>,
    changes: mpsc::UnboundedReceiver<Change>,
    phase: Phase,
    pool: Arc<Pool>,
    server: Arc<str>,
}

impl Session {
    async fn run(
        &mut self,
        mode: &mut watch::Receiver<Mode>,
        failures: &mut u32,
    ) -> Result<(), LinkError> {
        loop {
            let draining = *mode.borrow_and_update() != Mode::Working;
            if draining {
                match &mut self.phase {
                    Phase::Wanting(_) | Phase::Asleep => return Ok(self.wire.close().await?),
                    Phase::Asked { until, .. } => {
                        *until = (*until).min(Instant::now() + DRAIN_ANSWER_LIMIT);
                    }
                    Phase::Working(running) if *mode.borrow() == Mode::Stopping => {
                        running.interrupt.send_if_modified(|interrupt| {
                            interrupt.replace(Interrupt::Stopping).is_none()
                        });
                    }
                    Phase::Working(_) => {}
                }
            }
            tokio::select! {
                frame = self.wire.next() => match frame {
                    None => return Err(LinkError::Closed),
                    Some(Err(error)) => return Err(error.into()),
                    Some(Ok(frame)) => {
                        *failures = 0;
                        self.frame(frame).await?;
                    }
                },
                Some(change) = self.changes.recv() => self.change(change).await?,
                step = next_step(&mut self.phase) => self.step(step).await?,
                changed = mode.changed() => if changed.is_err() {
                    return Ok(());
                },
            }
        }
    }

    async fn send(&mut self, packet: &Packet) -> Result<(), WireError> {
        self.wire.send(packet).await
    }

    fn want(&mut self) {
        self.phase = Phase::Wanting(self.pool.permit());
    }

    async fn frame(&mut self, frame: Frame) -> Result<(), LinkError> {
        let Frame::Packet(packet) = frame else {
            tracing::warn!(server = %self.server, "gearman server sent text");
            return Ok(());
        };
        match packet {
            Packet::Noop if matches!(self.phase, Phase::Asleep) => self.want(),
            Packet::NoJob if matches!(self.phase, Phase::Asked { .. }) => {
                self.phase = Phase::Asleep;
                self.send(&Packet::PreSleep).await?;
            }
            Packet::JobAssignUniq {
                handle,
                function,
                unique,
                payload,
            } => {
                self.assigned(handle, &function, unique, payload).await?;
            }
            Packet::JobAssign {
                handle,
                function,
                payload,
            } => {
                self.assigned(handle, &function, Bytes::new(), payload)
                    .await?;
            }
            Packet::Error { code, text } => {
                let text = without_trailing_nul(text);
                let (code, text) = (
                    String::from_utf8_lossy(&code),
                    String::from_utf8_lossy(&text),
                );
                tracing::warn!(server = %self.server, %code, %text, "gearman server reports an error");
            }
            // A NOOP is a broadcast and may come at any time; nothing else concerns a worker.
            _ => {}
        }
        Ok(())
    }

    async fn assigned(
        &mut self,
        handle: Bytes,
        function: &[u8],
        unique: Bytes,
        payload: Bytes,
    ) -> Result<(), LinkError> {
        let permit = match std::mem::replace(&mut self.phase, Phase::Asleep) {
            Phase::Asked { permit, .. } => permit,
            other => {
                self.phase = other;
                return Err(LinkError::Unasked);
            }
        };
        let Some(function) = self.pool.registry.find(function) else {
            // Withdrawn while the job was on its way.
            self.send(&Packet::WorkFail { handle }).await?;
            self.want();
            return Ok(());
        };
        let (report, reports) = mpsc::channel(REPORTS_AHEAD);
        let (interrupt, interrupted) = watch::channel(None);
        let job = Job {
            handle: handle.clone(),
            function: function.name.clone(),
            unique,
            payload,
            server: self.server.clone(),
            report: report.clone(),
            interrupt: interrupted,
        };
        self.phase = Phase::Working(Running {
            handle,
            function: function.name.clone(),
            reports,
            interrupt,
            withdrawn: false,
        });
        let killed = self.pool.kill.clone();
        self.pool.jobs.spawn(async move {
            let work = AssertUnwindSafe(async { function.handler.run(job).await }).catch_unwind();
            let result = tokio::select! {
                result = work => result.unwrap_or_else(|panic| Err(JobError::Exception(panic_text(&*panic)))),
                () = killed.cancelled() => Err(JobError::Exception("worker stopped".to_owned())),
            };
            // Nobody listens if the connection is gone; the handler was told.
            let _ = report.send(Report::Done(result)).await;
            drop(permit);
        });
        Ok(())
    }

    async fn change(&mut self, change: Change) -> Result<(), LinkError> {
        match change {
            Change::Added(name, timeout) => {
                self.send(&can_do(&name, timeout)).await?;
                match &mut self.phase {
                    Phase::Working(running) if running.function == name => {
                        running.withdrawn = false;
                    }
                    // A job may be waiting already, and the server need not tell a sleeper that registers late.
                    Phase::Asleep => self.want(),
                    _ => {}
                }
            }
            Change::Removed(name) => match &mut self.phase {
                Phase::Working(running) if running.function == name => running.withdrawn = true,
                _ => self.send(&cant_do(&name)).await?,
            },
            Change::Sync { .. } => {}
        }
        Ok(())
    }

    async fn step(&mut self, step: Step) -> Result<(), LinkError> {
        match step {
            Step::Permit(Some(permit)) => {
                let limit = self.pool.options.answer_timeout;
                self.phase = Phase::Asked {
                    permit,
                    until: Instant::now() + limit,
                };
                self.send(&Packet::GrabJobUniq).await?;
            }
            Step::Permit(None) => self.phase = Phase::Asleep,
            Step::NoAnswer => return Err(LinkError::NoAnswer(self.pool.options.answer_timeout)),
            Step::Report(report) => self.report(report).await?,
        }
        Ok(())
    }

    async fn report(&mut self, report: Report) -> Result<(), LinkError> {
        let Phase::Working(running) = &self.phase else {
            return Ok(());
        };
        let handle = running.handle.clone();
        let packet = match report {
            Report::Progress(numerator, denominator) => Packet::WorkStatus {
                handle,
                numerator: numerator.to_string().into(),
                denominator: denominator.to_string().into(),
            },
            Report::Data(data) => Packet::WorkData { handle, data },
            Report::Warning(data) => Packet::WorkWarning { handle, data },
            Report::Done(result) => return self.done(handle, result).await,
        };
        Ok(self.send(&packet).await?)
    }

    async fn done(
        &mut self,
        handle: Bytes,
        result: Result<Bytes, JobError>,
    ) -> Result<(), LinkError> {
        let packet = match result {
            Ok(data) => Packet::WorkComplete {
                handle: handle.clone(),
                data,
            },
            Err(JobError::Fail) => Packet::WorkFail {
                handle: handle.clone(),
            },
            Err(JobError::Exception(text)) => Packet::WorkException {
                handle: handle.clone(),
                data: text.into(),
            },
        };
        match self.send(&packet).await {
            Err(WireError::Frame(error @ FrameError::TooLarge { .. })) => {
                self.send(&Packet::WorkException {
                    handle,
                    data: error.to_string().into(),
                })
                .await?;
            }
            sent => sent?,
        }
        if let Phase::Working(Running {
            withdrawn: true,
            function,
            ..
        }) = &self.phase
        {
            let packet = cant_do(function);
            self.send(&packet).await?;
        }
        self.want();
        Ok(())
    }
}

enum Step {
    Permit(Option<OwnedSemaphorePermit>),
    NoAnswer,
    Report(Report),
}

/// The next thing that the present phase waits for, the server's packets aside.
async fn next_step(phase: &mut Phase) -> Step {
    match phase {
        Phase::Wanting(permit) => Step::Permit(permit.await),
        Phase::Asked { until, .. } => {
            tokio::time::sleep_until(*until).await;
            Step::NoAnswer
        }
        Phase::Asleep => std::future::pending().await,
        Phase::Working(running) => {
            let lost = || Report::Done(Err(JobError::Exception("handler vanished".to_owned())));
            Step::Report(running.reports.recv().await.unwrap_or_else(lost))
        }
    }
}

fn can_do(function: &str, timeout: Option<Duration>) -> Packet {
    let function = Bytes::copy_from_slice(function.as_bytes());
    match timeout {
        None => Packet::CanDo { function },
        Some(timeout) => Packet::CanDoTimeout {
            function,
            timeout: timeout.as_millis().to_string().into(),
        },
    }
}

fn cant_do(function: &str) -> Packet {
    Packet::CantDo {
        function: Bytes::copy_from_slice(function.as_bytes()),
    }
}
