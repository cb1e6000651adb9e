//! What travels between a handle and the session's task.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::oneshot;

use super::watches::Member;
use super::wire::{ErrorCode, Request, Response};
use crate::tree::SessionId;

#[derive(Debug)]
pub(super) enum Command {
    Call(Call),
    Watch(WatchCall),
    Close(oneshot::Sender<()>),
}

#[derive(Debug)]
pub(super) struct Call {
    pub(super) request: Request,
    pub(super) fence: Fence,
    pub(super) reply: oneshot::Sender<Outcome>,
    /// To be told about the next change of the record that an `Exists` asks for.
    pub(super) once: Option<oneshot::Sender<()>>,
    /// Connections that broke while this was the first unanswered request on them.
    pub(super) broke: u32,
    pub(super) _counted: Counted,
}

/// One of the calls that exist.
#[derive(Debug)]
pub(super) struct Counted(Arc<AtomicUsize>);

impl Counted {
    pub(super) fn new(calls: &Arc<AtomicUsize>) -> Self {
        calls.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(calls))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct WatchCall {
    pub(super) path: String,
    pub(super) member: Member,
    pub(super) fence: Fence,
    pub(super) reply: oneshot::Sender<Settled>,
}

/// The session that an operation was begun in; none if there was none yet, and then the next one will do.
pub(super) type Fence = Option<SessionId>;

pub(super) type Outcome = Result<Response, Failure>;
pub(super) type Settled = Result<(), Failure>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    Server(ErrorCode),
    /// The answer has this many bytes, which is more than we take.
    TooLarge(usize),
    ConnectionLoss,
    SessionExpired,
    Closed,
}

impl Command {
    /// Answers without doing it.
    pub(super) fn fail(self, failure: Failure) {
        match self {
            Command::Call(call) => {
                let _ = call.reply.send(Err(failure));
            }
            Command::Watch(call) => {
                let _ = call.reply.send(Err(failure));
            }
            Command::Close(reply) => {
                let _ = reply.send(());
            }
        }
    }

    pub(super) fn fence(&self) -> Fence {
        match self {
            Command::Call(call) => call.fence,
            Command::Watch(call) => call.fence,
            Command::Close(_) => None,
        }
    }
}
