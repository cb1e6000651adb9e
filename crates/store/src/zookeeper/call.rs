//! Messages from handles to the session task.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::oneshot;

use super::watches::WatchMember;
use super::wire::{ErrorCode, Request, Response};
use crate::tree::SessionId;

#[derive(Debug)]
pub(super) enum SessionCommand {
    Call(PendingCall),
    Watch(WatchRequest),
    Close(oneshot::Sender<()>),
}

#[derive(Debug)]
pub(super) struct PendingCall {
    pub(super) request: Request,
    pub(super) fence: SessionFence,
    pub(super) reply: oneshot::Sender<CallResult>,
    /// The one-shot watch of an `Exists` request.
    pub(super) once: Option<oneshot::Sender<()>>,
    /// How many connections were lost while this was the oldest pending request.
    pub(super) broke: u32,
    pub(super) _counted: CallCounter,
}

/// Counts a pending call until dropped.
#[derive(Debug)]
pub(super) struct CallCounter(Arc<AtomicUsize>);

impl CallCounter {
    pub(super) fn new(calls: &Arc<AtomicUsize>) -> Self {
        calls.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(calls))
    }
}

impl Drop for CallCounter {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct WatchRequest {
    pub(super) path: String,
    pub(super) member: WatchMember,
    pub(super) fence: SessionFence,
    pub(super) reply: oneshot::Sender<AckResult>,
}

/// The session that an operation was started in. `None` if there was none yet; then any session is valid.
pub(super) type SessionFence = Option<SessionId>;

pub(super) type CallResult = Result<Response, SessionCallError>;
pub(super) type AckResult = Result<(), SessionCallError>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionCallError {
    Server(ErrorCode),
    /// The response has this many bytes, which exceeds the limit.
    TooLarge(usize),
    ConnectionLoss,
    SessionExpired,
    Closed,
}

impl SessionCommand {
    /// Fails the command without executing it.
    pub(super) fn fail(self, failure: SessionCallError) {
        match self {
            SessionCommand::Call(call) => {
                let _ = call.reply.send(Err(failure));
            }
            SessionCommand::Watch(call) => {
                let _ = call.reply.send(Err(failure));
            }
            SessionCommand::Close(reply) => {
                let _ = reply.send(());
            }
        }
    }

    pub(super) fn fence(&self) -> SessionFence {
        match self {
            SessionCommand::Call(call) => call.fence,
            SessionCommand::Watch(call) => call.fence,
            SessionCommand::Close(_) => None,
        }
    }
}
