//! A worker's connection to one server: connecting, registering functions, running one job at a time, draining.
//!
//! A connection requests a job only while it holds a permit of the worker's slot semaphore, so several servers together
//! cannot exceed the number of slots; while sleeping it holds none. A job outlives its connection: when the connection
//! is lost, the handler is interrupted and keeps its permit while this task reconnects.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, SinkExt, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::Instant;
use tokio_util::codec::Framed;

use super::job::{Job, JobError, JobInterrupt, JobUpdate, panic_text};
use super::registry::{FunctionChange, Subscription};
use super::{WorkerMode, WorkerShared};
use crate::codec::{
    Codec, FrameError, GearmanFrame, Magic, Packet, StreamError, strip_trailing_nul,
};
use crate::net::{ConnectError, GearmanEndpoint, ServerStream};

/// Capacity of the queue between a handler and its connection.
const UPDATE_QUEUE_LEN: usize = 64;

/// How long a draining connection waits for the response to its last GRAB_JOB.
const DRAIN_RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a connection of a worker ended.
#[derive(Debug, thiserror::Error)]
pub enum WorkerConnectionError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Wire(#[from] StreamError),
    #[error("gearman server closed the connection")]
    Closed,
    #[error("gearman server assigned a job that was not requested")]
    UnexpectedJob,
    #[error("timed out waiting for gearman server after {0:?}")]
    NoResponse(Duration),
}

pub(super) struct WorkerConnection {
    pub(super) shared: Arc<WorkerShared>,
    pub(super) endpoint: GearmanEndpoint,
    pub(super) server: Arc<str>,
    pub(super) client_id: String,
    pub(super) mode: watch::Receiver<WorkerMode>,
}

enum ConnectionPhase {
    /// Waiting for a slot permit.
    WaitingForSlot(BoxFuture<'static, Option<OwnedSemaphorePermit>>),
    /// GRAB_JOB was sent.
    Grabbing {
        permit: OwnedSemaphorePermit,
        until: Instant,
    },
    /// PRE_SLEEP was sent.
    Sleeping,
    Working(RunningJob),
}

struct RunningJob {
    handle: Bytes,
    function: Arc<str>,
    updates: mpsc::Receiver<JobUpdate>,
    interrupt: watch::Sender<Option<JobInterrupt>>,
    /// The function was unregistered while its job runs. CANT_DO is sent after the result, because gearmand drops a
    /// running job whose worker sends CANT_DO and rejects its result.
    unregistered: bool,
}

impl WorkerConnection {
    /// Connects and reconnects until the worker drains.
    pub(super) async fn run(mut self) {
        let mut failures = 0;
        while *self.mode.borrow() == WorkerMode::Working {
            let dial = self.endpoint.connect(
                self.shared.options.connect_timeout,
                self.shared.options.keepalive,
            );
            let stream = tokio::select! {
                stream = dial => stream,
                _ = self.mode.wait_for(|mode| *mode != WorkerMode::Working) => return,
            };
            let error = match stream {
                Ok(stream) => match self.serve(stream, &mut failures).await {
                    Ok(()) => return,
                    Err(error) => error,
                },
                Err(error) => error.into(),
            };
            let delay = self.shared.options.backoff.delay(failures);
            failures = failures.saturating_add(1);
            tracing::warn!(
                server = %self.server, client_id = self.client_id, retry_in = ?delay,
                error = &error as &dyn std::error::Error, "gearman connection failed; retrying"
            );
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                _ = self.mode.wait_for(|mode| *mode != WorkerMode::Working) => return,
            }
        }
    }

    /// Serves one connection. Returns `Ok` only when the worker drains.
    async fn serve(
        &mut self,
        stream: ServerStream,
        failures: &mut u32,
    ) -> Result<(), WorkerConnectionError> {
        let codec = Codec::new(Magic::Request, self.shared.options.limits);
        let Subscription { functions, changes } = self.shared.registry.subscribe();
        let mut session = WorkerSession {
            wire: Framed::new(stream, codec),
            changes,
            phase: ConnectionPhase::WaitingForSlot(self.shared.acquire_permit()),
            shared: self.shared.clone(),
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
        let _up = self.shared.mark_connected();
        tracing::debug!(server = %self.server, client_id = self.client_id, functions = functions.len(), "registered functions");
        let ended = session.run(&mut self.mode, failures).await;
        if let ConnectionPhase::Working(running) = &session.phase {
            running
                .interrupt
                .send_replace(Some(JobInterrupt::ConnectionLost));
        }
        ended
    }
}

struct WorkerSession {
    wire: Framed<ServerStream, Codec>,
    changes: mpsc::UnboundedReceiver<FunctionChange>,
    phase: ConnectionPhase,
    shared: Arc<WorkerShared>,
    server: Arc<str>,
}

impl WorkerSession {
    async fn run(
        &mut self,
        mode: &mut watch::Receiver<WorkerMode>,
        failures: &mut u32,
    ) -> Result<(), WorkerConnectionError> {
        loop {
            let draining = *mode.borrow_and_update() != WorkerMode::Working;
            if draining {
                match &mut self.phase {
                    ConnectionPhase::WaitingForSlot(_) | ConnectionPhase::Sleeping => {
                        return Ok(self.wire.close().await?);
                    }
                    ConnectionPhase::Grabbing { until, .. } => {
                        *until = (*until).min(Instant::now() + DRAIN_RESPONSE_TIMEOUT);
                    }
                    ConnectionPhase::Working(running) if *mode.borrow() == WorkerMode::Stopping => {
                        running.interrupt.send_if_modified(|interrupt| {
                            interrupt.replace(JobInterrupt::Stopping).is_none()
                        });
                    }
                    ConnectionPhase::Working(_) => {}
                }
            }
            tokio::select! {
                frame = self.wire.next() => match frame {
                    None => return Err(WorkerConnectionError::Closed),
                    Some(Err(error)) => return Err(error.into()),
                    Some(Ok(frame)) => {
                        *failures = 0;
                        self.handle_frame(frame).await?;
                    }
                },
                Some(change) = self.changes.recv() => self.announce_change(change).await?,
                event = next_phase_event(&mut self.phase) => self.handle_phase_event(event).await?,
                changed = mode.changed() => if changed.is_err() {
                    return Ok(());
                },
            }
        }
    }

    async fn send(&mut self, packet: &Packet) -> Result<(), StreamError> {
        self.wire.send(packet).await
    }

    fn wait_for_slot(&mut self) {
        self.phase = ConnectionPhase::WaitingForSlot(self.shared.acquire_permit());
    }

    async fn handle_frame(&mut self, frame: GearmanFrame) -> Result<(), WorkerConnectionError> {
        let GearmanFrame::Packet(packet) = frame else {
            tracing::warn!(server = %self.server, "gearman server sent unexpected text");
            return Ok(());
        };
        match packet {
            Packet::Noop if matches!(self.phase, ConnectionPhase::Sleeping) => self.wait_for_slot(),
            Packet::NoJob if matches!(self.phase, ConnectionPhase::Grabbing { .. }) => {
                self.phase = ConnectionPhase::Sleeping;
                self.send(&Packet::PreSleep).await?;
            }
            Packet::JobAssignUniq {
                handle,
                function,
                unique,
                payload,
            } => {
                self.start_job(handle, &function, unique, payload).await?;
            }
            Packet::JobAssign {
                handle,
                function,
                payload,
            } => {
                self.start_job(handle, &function, Bytes::new(), payload)
                    .await?;
            }
            Packet::Error { code, text } => {
                let text = strip_trailing_nul(text);
                let (code, text) = (
                    String::from_utf8_lossy(&code),
                    String::from_utf8_lossy(&text),
                );
                tracing::warn!(server = %self.server, %code, %text, "gearman server sent an error");
            }
            // NOOP may arrive in any phase; other packets are not sent to workers.
            _ => {}
        }
        Ok(())
    }

    async fn start_job(
        &mut self,
        handle: Bytes,
        function: &[u8],
        unique: Bytes,
        payload: Bytes,
    ) -> Result<(), WorkerConnectionError> {
        let permit = match std::mem::replace(&mut self.phase, ConnectionPhase::Sleeping) {
            ConnectionPhase::Grabbing { permit, .. } => permit,
            other => {
                self.phase = other;
                return Err(WorkerConnectionError::UnexpectedJob);
            }
        };
        let Some(function) = self.shared.registry.find(function) else {
            // The function was unregistered while the job was being assigned.
            self.send(&Packet::WorkFail { handle }).await?;
            self.wait_for_slot();
            return Ok(());
        };
        let (updates_tx, updates) = mpsc::channel(UPDATE_QUEUE_LEN);
        let (interrupt, interrupted) = watch::channel(None);
        let job = Job {
            handle: handle.clone(),
            function: function.name.clone(),
            unique,
            payload,
            server: self.server.clone(),
            updates_tx: updates_tx.clone(),
            interrupt: interrupted,
        };
        self.phase = ConnectionPhase::Working(RunningJob {
            handle,
            function: function.name.clone(),
            updates,
            interrupt,
            unregistered: false,
        });
        let killed = self.shared.kill.clone();
        self.shared.jobs.spawn(async move {
            let work = AssertUnwindSafe(async { function.handler.run(job).await }).catch_unwind();
            let result = tokio::select! {
                result = work => result.unwrap_or_else(|panic| Err(JobError::Exception(panic_text(&*panic)))),
                () = killed.cancelled() => Err(JobError::Exception("worker stopped".to_owned())),
            };
            // Fails if the connection is lost; the handler has been interrupted.
            let _ = updates_tx.send(JobUpdate::Done(result)).await;
            drop(permit);
        });
        Ok(())
    }

    async fn announce_change(
        &mut self,
        change: FunctionChange,
    ) -> Result<(), WorkerConnectionError> {
        match change {
            FunctionChange::Added(name, timeout) => {
                self.send(&can_do(&name, timeout)).await?;
                match &mut self.phase {
                    ConnectionPhase::Working(running) if running.function == name => {
                        running.unregistered = false;
                    }
                    // A job may be waiting already, and servers need not wake a sleeping worker that registers late.
                    ConnectionPhase::Sleeping => self.wait_for_slot(),
                    _ => {}
                }
            }
            FunctionChange::Removed(name) => match &mut self.phase {
                ConnectionPhase::Working(running) if running.function == name => {
                    running.unregistered = true;
                }
                _ => self.send(&cant_do(&name)).await?,
            },
            FunctionChange::Sync { .. } => {}
        }
        Ok(())
    }

    async fn handle_phase_event(&mut self, event: PhaseEvent) -> Result<(), WorkerConnectionError> {
        match event {
            PhaseEvent::Permit(Some(permit)) => {
                let limit = self.shared.options.response_timeout;
                self.phase = ConnectionPhase::Grabbing {
                    permit,
                    until: Instant::now() + limit,
                };
                self.send(&Packet::GrabJobUniq).await?;
            }
            PhaseEvent::Permit(None) => self.phase = ConnectionPhase::Sleeping,
            PhaseEvent::NoResponse => {
                return Err(WorkerConnectionError::NoResponse(
                    self.shared.options.response_timeout,
                ));
            }
            PhaseEvent::JobUpdate(update) => self.forward_update(update).await?,
        }
        Ok(())
    }

    async fn forward_update(&mut self, update: JobUpdate) -> Result<(), WorkerConnectionError> {
        let ConnectionPhase::Working(running) = &self.phase else {
            return Ok(());
        };
        let handle = running.handle.clone();
        let packet = match update {
            JobUpdate::Progress(numerator, denominator) => Packet::WorkStatus {
                handle,
                numerator: numerator.to_string().into(),
                denominator: denominator.to_string().into(),
            },
            JobUpdate::Data(data) => Packet::WorkData { handle, data },
            JobUpdate::Warning(data) => Packet::WorkWarning { handle, data },
            JobUpdate::Done(result) => return self.send_result(handle, result).await,
        };
        Ok(self.send(&packet).await?)
    }

    async fn send_result(
        &mut self,
        handle: Bytes,
        result: Result<Bytes, JobError>,
    ) -> Result<(), WorkerConnectionError> {
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
            Err(StreamError::Frame(error @ FrameError::TooLarge { .. })) => {
                self.send(&Packet::WorkException {
                    handle,
                    data: error.to_string().into(),
                })
                .await?;
            }
            sent => sent?,
        }
        if let ConnectionPhase::Working(RunningJob {
            unregistered: true,
            function,
            ..
        }) = &self.phase
        {
            let packet = cant_do(function);
            self.send(&packet).await?;
        }
        self.wait_for_slot();
        Ok(())
    }
}

enum PhaseEvent {
    Permit(Option<OwnedSemaphorePermit>),
    NoResponse,
    JobUpdate(JobUpdate),
}

/// Waits for the next event of the current phase other than a packet from the server.
async fn next_phase_event(phase: &mut ConnectionPhase) -> PhaseEvent {
    match phase {
        ConnectionPhase::WaitingForSlot(permit) => PhaseEvent::Permit(permit.await),
        ConnectionPhase::Grabbing { until, .. } => {
            tokio::time::sleep_until(*until).await;
            PhaseEvent::NoResponse
        }
        ConnectionPhase::Sleeping => std::future::pending().await,
        ConnectionPhase::Working(running) => {
            let lost = || {
                JobUpdate::Done(Err(JobError::Exception(
                    "handler ended without a result".to_owned(),
                )))
            };
            PhaseEvent::JobUpdate(running.updates.recv().await.unwrap_or_else(lost))
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
