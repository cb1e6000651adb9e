//! Packets sent by a server.

use bytes::{BufMut, Bytes, BytesMut};

use super::jute::{self, JuteReader};
use super::request::{CHECK, OpCode, numbered, put_multi_header, take_multi_header};
use super::{WireError, WireResult, XID_EVENT};
use crate::tree::Stat;

/// The response to a [`ConnectRequest`](super::ConnectRequest).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectResponse {
    /// The granted session timeout in milliseconds; 0 if the session has expired.
    pub timeout: i32,
    pub session_id: i64,
    pub password: Bytes,
    /// Whether the server is read-only.
    pub read_only: bool,
}

impl ConnectResponse {
    /// Returns the response for an expired or unknown session.
    pub fn expired() -> Self {
        Self {
            timeout: 0,
            session_id: 0,
            password: Bytes::from_static(&[0; 16]),
            read_only: false,
        }
    }

    pub fn is_expired(&self) -> bool {
        self.timeout <= 0 || self.session_id == 0
    }

    pub fn encode(&self, out: &mut BytesMut) {
        jute::frame(out, |out| {
            out.put_i32(0);
            out.put_i32(self.timeout);
            out.put_i64(self.session_id);
            jute::put_buffer(out, &self.password);
            jute::put_bool(out, self.read_only);
        });
    }

    pub fn decode(frame: Bytes) -> WireResult<Self> {
        let mut reader = JuteReader::new(frame);
        reader.i32()?;
        let response = Self {
            timeout: reader.i32()?,
            session_id: reader.i64()?,
            password: reader.buffer()?,
            // Old servers omit this field.
            read_only: !reader.is_empty() && reader.bool()?,
        };
        reader.finish()?;
        Ok(response)
    }
}

/// The error codes of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// In a multi: another operation failed.
    RuntimeInconsistency,
    ConnectionLoss,
    Unimplemented,
    BadArguments,
    NoNode,
    NoAuth,
    BadVersion,
    NoChildrenForEphemerals,
    NodeExists,
    NotEmpty,
    SessionExpired,
    SessionMoved,
    NotReadOnly,
    NoWatcher,
    Other(i32),
}

impl ErrorCode {
    pub fn from_number(number: i32) -> Self {
        match number {
            -2 => Self::RuntimeInconsistency,
            -4 => Self::ConnectionLoss,
            -6 => Self::Unimplemented,
            -8 => Self::BadArguments,
            -101 => Self::NoNode,
            -102 => Self::NoAuth,
            -103 => Self::BadVersion,
            -108 => Self::NoChildrenForEphemerals,
            -110 => Self::NodeExists,
            -111 => Self::NotEmpty,
            -112 => Self::SessionExpired,
            -118 => Self::SessionMoved,
            -119 => Self::NotReadOnly,
            -121 => Self::NoWatcher,
            other => Self::Other(other),
        }
    }

    pub fn number(self) -> i32 {
        match self {
            Self::RuntimeInconsistency => -2,
            Self::ConnectionLoss => -4,
            Self::Unimplemented => -6,
            Self::BadArguments => -8,
            Self::NoNode => -101,
            Self::NoAuth => -102,
            Self::BadVersion => -103,
            Self::NoChildrenForEphemerals => -108,
            Self::NodeExists => -110,
            Self::NotEmpty => -111,
            Self::SessionExpired => -112,
            Self::SessionMoved => -118,
            Self::NotReadOnly => -119,
            Self::NoWatcher => -121,
            Self::Other(number) => number,
        }
    }
}

/// The header of every packet after the first. For events only `xid` is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHeader {
    pub xid: i32,
    /// The last transaction id that the server has applied.
    pub zxid: i64,
    pub error: Option<ErrorCode>,
}

impl ReplyHeader {
    /// Splits a frame into header and body.
    pub fn decode(frame: &Bytes) -> WireResult<(Self, Bytes)> {
        const SIZE: usize = 16;
        if frame.len() < SIZE {
            return Err(WireError::Malformed("reply too short"));
        }
        let mut reader = JuteReader::new(frame.slice(..SIZE));
        let header = Self {
            xid: reader.i32()?,
            zxid: reader.i64()?,
            error: match reader.i32()? {
                0 => None,
                number => Some(ErrorCode::from_number(number)),
            },
        };
        Ok((header, frame.slice(SIZE..)))
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_i32(self.xid);
        out.put_i64(self.zxid);
        out.put_i32(self.error.map_or(0, ErrorCode::number));
    }
}

/// The reply to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub xid: i32,
    pub zxid: i64,
    pub result: Result<Response, ErrorCode>,
}

impl Reply {
    pub fn encode(&self, out: &mut BytesMut) {
        jute::frame(out, |out| {
            ReplyHeader {
                xid: self.xid,
                zxid: self.zxid,
                error: self.result.as_ref().err().copied(),
            }
            .put(out);
            if let Ok(response) = &self.result {
                response.put(out);
            }
        });
    }

    pub fn decode(opcode: OpCode, frame: &Bytes) -> WireResult<Self> {
        let (header, body) = ReplyHeader::decode(frame)?;
        Ok(Self {
            xid: header.xid,
            zxid: header.zxid,
            result: match header.error {
                Some(error) => Err(error),
                None => Ok(Response::decode(opcode, body)?),
            },
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    /// Success without data: ping, delete, watch operations, closing the session.
    Done,
    Create {
        path: String,
    },
    Create2 {
        path: String,
        stat: Stat,
    },
    Exists(Stat),
    GetData {
        data: Bytes,
        stat: Stat,
    },
    SetData(Stat),
    GetChildren {
        names: Vec<String>,
    },
    GetChildren2 {
        names: Vec<String>,
        stat: Stat,
    },
    Sync {
        path: String,
    },
    Multi(Vec<MultiResult>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MultiResult {
    Create {
        path: String,
    },
    Create2 {
        path: String,
        stat: Stat,
    },
    SetData(Stat),
    Deleted,
    Checked,
    /// The multi failed. None: this operation, before the failing one, was fine. The ones after it have
    /// [`ErrorCode::RuntimeInconsistency`].
    Failed(Option<ErrorCode>),
}

impl Response {
    fn put(&self, out: &mut BytesMut) {
        match self {
            Response::Done => {}
            Response::Create { path } | Response::Sync { path } => jute::put_string(out, path),
            Response::Create2 { path, stat } => {
                jute::put_string(out, path);
                jute::put_stat(out, stat);
            }
            Response::Exists(stat) | Response::SetData(stat) => jute::put_stat(out, stat),
            Response::GetData { data, stat } => {
                jute::put_buffer(out, data);
                jute::put_stat(out, stat);
            }
            Response::GetChildren { names } => jute::put_strings(out, names),
            Response::GetChildren2 { names, stat } => {
                jute::put_strings(out, names);
                jute::put_stat(out, stat);
            }
            Response::Multi(results) => put_multi(out, results),
        }
    }

    /// Decodes the body of a successful reply.
    pub fn decode(opcode: OpCode, body: Bytes) -> WireResult<Self> {
        let mut reader = JuteReader::new(body);
        let response = match opcode {
            OpCode::Ping
            | OpCode::Delete
            | OpCode::SetWatches
            | OpCode::SetWatches2
            | OpCode::AddWatch
            | OpCode::RemoveWatches
            | OpCode::CloseSession => Response::Done,
            OpCode::Create => Response::Create {
                path: reader.string()?,
            },
            OpCode::Create2 => Response::Create2 {
                path: reader.string()?,
                stat: reader.stat()?,
            },
            OpCode::Exists => Response::Exists(reader.stat()?),
            OpCode::GetData => Response::GetData {
                data: reader.buffer()?,
                stat: reader.stat()?,
            },
            OpCode::SetData => Response::SetData(reader.stat()?),
            OpCode::GetChildren => Response::GetChildren {
                names: reader.strings()?,
            },
            OpCode::GetChildren2 => Response::GetChildren2 {
                names: reader.strings()?,
                stat: reader.stat()?,
            },
            OpCode::Sync => Response::Sync {
                path: reader.string()?,
            },
            OpCode::Multi => Response::Multi(take_multi(&mut reader)?),
        };
        reader.finish()?;
        Ok(response)
    }
}

fn put_multi(out: &mut BytesMut, results: &[MultiResult]) {
    for result in results {
        match result {
            MultiResult::Create { path } => {
                put_multi_header(out, OpCode::Create.number(), false, 0);
                jute::put_string(out, path);
            }
            MultiResult::Create2 { path, stat } => {
                put_multi_header(out, OpCode::Create2.number(), false, 0);
                jute::put_string(out, path);
                jute::put_stat(out, stat);
            }
            MultiResult::SetData(stat) => {
                put_multi_header(out, OpCode::SetData.number(), false, 0);
                jute::put_stat(out, stat);
            }
            MultiResult::Deleted => put_multi_header(out, OpCode::Delete.number(), false, 0),
            MultiResult::Checked => put_multi_header(out, CHECK, false, 0),
            MultiResult::Failed(error) => {
                let number = error.map_or(0, ErrorCode::number);
                put_multi_header(out, -1, false, number);
                out.put_i32(number);
            }
        }
    }
    put_multi_header(out, -1, true, -1);
}

fn take_multi(reader: &mut JuteReader) -> WireResult<Vec<MultiResult>> {
    let mut results = Vec::new();
    while let Some((code, _)) = take_multi_header(reader)? {
        results.push(match OpCode::from_number(code) {
            Some(OpCode::Create) => MultiResult::Create {
                path: reader.string()?,
            },
            Some(OpCode::Create2) => MultiResult::Create2 {
                path: reader.string()?,
                stat: reader.stat()?,
            },
            Some(OpCode::SetData) => MultiResult::SetData(reader.stat()?),
            Some(OpCode::Delete) => MultiResult::Deleted,
            None if code == CHECK => MultiResult::Checked,
            None if code == -1 => MultiResult::Failed(match reader.i32()? {
                0 => None,
                number => Some(ErrorCode::from_number(number)),
            }),
            _ => return Err(WireError::Malformed("unknown result in a multi")),
        });
    }
    Ok(results)
}

numbered! {
    EventKind {
        /// An event of the session.
        Session = -1,
        Created = 1,
        Deleted = 2,
        DataChanged = 3,
        ChildrenChanged = 4,
    }
}

/// A watch event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    pub path: String,
}

impl Event {
    pub fn encode(&self, out: &mut BytesMut) {
        const CONNECTED: i32 = 3;
        jute::frame(out, |out| {
            ReplyHeader {
                xid: XID_EVENT,
                zxid: -1,
                error: None,
            }
            .put(out);
            out.put_i32(self.kind.number());
            out.put_i32(CONNECTED);
            jute::put_string(out, &self.path);
        });
    }

    /// Decodes the body of a packet with the `xid` [`XID_EVENT`].
    pub fn decode(body: Bytes) -> WireResult<Self> {
        let mut reader = JuteReader::new(body);
        let kind = EventKind::from_number(reader.i32()?)
            .ok_or(WireError::Malformed("unknown event type"))?;
        reader.i32()?;
        let path = reader.string()?;
        reader.finish()?;
        Ok(Self { kind, path })
    }
}
