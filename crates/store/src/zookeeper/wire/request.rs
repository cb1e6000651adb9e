//! Packets sent by a client.

use bytes::{BufMut, Bytes, BytesMut};

use super::jute::{self, JuteReader};
use super::{WireError, WireResult, XID_PING, XID_SET_WATCHES};
use crate::tree::CreateMode;

/// The first packet of a connection. A session id of 0 requests a new session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The last transaction id seen; servers that lag behind it reject the client.
    pub last_zxid_seen: i64,
    /// The requested session timeout in milliseconds.
    pub timeout: i32,
    pub session_id: i64,
    pub password: Bytes,
    /// Whether the client accepts a read-only server.
    pub read_only: bool,
}

impl ConnectRequest {
    pub fn encode(&self, out: &mut BytesMut) {
        jute::frame(out, |out| {
            out.put_i32(0);
            out.put_i64(self.last_zxid_seen);
            out.put_i32(self.timeout);
            out.put_i64(self.session_id);
            jute::put_buffer(out, &self.password);
            jute::put_bool(out, self.read_only);
        });
    }

    pub fn decode(frame: Bytes) -> WireResult<Self> {
        let mut reader = JuteReader::new(frame);
        if reader.i32()? != 0 {
            return Err(WireError::Malformed("unknown protocol version"));
        }
        let request = Self {
            last_zxid_seen: reader.i64()?,
            timeout: reader.i32()?,
            session_id: reader.i64()?,
            password: reader.buffer()?,
            // Old clients omit this field.
            read_only: !reader.is_empty() && reader.bool()?,
        };
        reader.finish()?;
        Ok(request)
    }
}

macro_rules! numbered {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $number:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_meta])* $variant),+ }

        impl $name {
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            pub fn number(self) -> i32 {
                match self { $(Self::$variant => $number),+ }
            }

            pub fn from_number(number: i32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}
pub(super) use numbered;

numbered! {
    OpCode {
        Create = 1,
        Delete = 2,
        Exists = 3,
        GetData = 4,
        SetData = 5,
        GetChildren = 8,
        Sync = 9,
        Ping = 11,
        GetChildren2 = 12,
        Multi = 14,
        Create2 = 15,
        RemoveWatches = 18,
        SetWatches = 101,
        SetWatches2 = 105,
        AddWatch = 106,
        CloseSession = -11,
    }
}

/// The operation code of a version check, which is only valid in a multi.
pub(super) const CHECK: i32 = 13;

numbered! {
    AddWatchMode {
        Persistent = 0,
        PersistentRecursive = 1,
    }
}

numbered! {
    /// The type of watches to remove.
    WatcherKind {
        Children = 1,
        Data = 2,
        Any = 3,
    }
}

/// A create request. Always encoded with the open access control list, which is ignored when decoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Create {
    pub path: String,
    pub data: Bytes,
    pub mode: CreateMode,
}

/// Paths are unvalidated and may have a trailing slash in a sequential create. A version of -1 matches any version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    Ping,
    /// Answered with the path.
    Create(Create),
    /// Answered with path and stat.
    Create2(Create),
    Delete {
        path: String,
        version: i32,
    },
    Exists {
        path: String,
        watch: bool,
    },
    GetData {
        path: String,
        watch: bool,
    },
    SetData {
        path: String,
        data: Bytes,
        version: i32,
    },
    /// Answered with the names.
    GetChildren {
        path: String,
        watch: bool,
    },
    /// Answered with names and stat.
    GetChildren2 {
        path: String,
        watch: bool,
    },
    Sync {
        path: String,
    },
    Multi(Vec<MultiOp>),
    SetWatches {
        relative_zxid: i64,
        data: Vec<String>,
        exist: Vec<String>,
        child: Vec<String>,
    },
    SetWatches2 {
        relative_zxid: i64,
        data: Vec<String>,
        exist: Vec<String>,
        child: Vec<String>,
        persistent: Vec<String>,
        persistent_recursive: Vec<String>,
    },
    AddWatch {
        path: String,
        mode: AddWatchMode,
    },
    RemoveWatches {
        path: String,
        kind: WatcherKind,
    },
    CloseSession,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MultiOp {
    Create(Create),
    Create2(Create),
    SetData {
        path: String,
        data: Bytes,
        version: i32,
    },
    Delete {
        path: String,
        version: i32,
    },
    Check {
        path: String,
        version: i32,
    },
}

impl Request {
    pub fn opcode(&self) -> OpCode {
        match self {
            Request::Ping => OpCode::Ping,
            Request::Create(_) => OpCode::Create,
            Request::Create2(_) => OpCode::Create2,
            Request::Delete { .. } => OpCode::Delete,
            Request::Exists { .. } => OpCode::Exists,
            Request::GetData { .. } => OpCode::GetData,
            Request::SetData { .. } => OpCode::SetData,
            Request::GetChildren { .. } => OpCode::GetChildren,
            Request::GetChildren2 { .. } => OpCode::GetChildren2,
            Request::Sync { .. } => OpCode::Sync,
            Request::Multi(_) => OpCode::Multi,
            Request::SetWatches { .. } => OpCode::SetWatches,
            Request::SetWatches2 { .. } => OpCode::SetWatches2,
            Request::AddWatch { .. } => OpCode::AddWatch,
            Request::RemoveWatches { .. } => OpCode::RemoveWatches,
            Request::CloseSession => OpCode::CloseSession,
        }
    }

    /// Returns whether the request is a read, which can be repeated.
    pub(crate) fn is_read(&self) -> bool {
        matches!(
            self,
            Request::Exists { .. }
                | Request::GetData { .. }
                | Request::GetChildren { .. }
                | Request::GetChildren2 { .. }
                | Request::Sync { .. }
        )
    }

    /// Appends a frame. Pings and restored watches have fixed `xid`s.
    pub fn encode(&self, xid: i32, out: &mut BytesMut) {
        let xid = match self {
            Request::Ping => XID_PING,
            Request::SetWatches { .. } | Request::SetWatches2 { .. } => XID_SET_WATCHES,
            _ => xid,
        };
        jute::frame(out, |out| {
            out.put_i32(xid);
            out.put_i32(self.opcode().number());
            self.put_body(out);
        });
    }

    fn put_body(&self, out: &mut BytesMut) {
        match self {
            Request::Ping | Request::CloseSession => {}
            Request::Create(create) | Request::Create2(create) => put_create(out, create),
            Request::Delete { path, version } => put_path_version(out, path, *version),
            Request::Exists { path, watch }
            | Request::GetData { path, watch }
            | Request::GetChildren { path, watch }
            | Request::GetChildren2 { path, watch } => {
                jute::put_string(out, path);
                jute::put_bool(out, *watch);
            }
            Request::SetData {
                path,
                data,
                version,
            } => put_set(out, path, data, *version),
            Request::Sync { path } => jute::put_string(out, path),
            Request::Multi(ops) => put_multi(out, ops),
            Request::SetWatches {
                relative_zxid,
                data,
                exist,
                child,
            } => {
                out.put_i64(*relative_zxid);
                for paths in [data, exist, child] {
                    jute::put_strings(out, paths);
                }
            }
            Request::SetWatches2 {
                relative_zxid,
                data,
                exist,
                child,
                persistent,
                persistent_recursive,
            } => {
                out.put_i64(*relative_zxid);
                for paths in [data, exist, child, persistent, persistent_recursive] {
                    jute::put_strings(out, paths);
                }
            }
            Request::AddWatch { path, mode } => {
                jute::put_string(out, path);
                out.put_i32(mode.number());
            }
            Request::RemoveWatches { path, kind } => {
                jute::put_string(out, path);
                out.put_i32(kind.number());
            }
        }
    }

    /// Decodes the `xid` and the request.
    pub fn decode(frame: Bytes) -> WireResult<(i32, Self)> {
        let mut reader = JuteReader::new(frame);
        let xid = reader.i32()?;
        let code = reader.i32()?;
        let opcode = OpCode::from_number(code).ok_or(WireError::UnknownOperation { xid, code })?;
        let request = Self::take_body(opcode, &mut reader)?;
        reader.finish()?;
        Ok((xid, request))
    }

    fn take_body(opcode: OpCode, reader: &mut JuteReader) -> WireResult<Self> {
        Ok(match opcode {
            OpCode::Ping => Request::Ping,
            OpCode::CloseSession => Request::CloseSession,
            OpCode::Create => Request::Create(take_create(reader)?),
            OpCode::Create2 => Request::Create2(take_create(reader)?),
            OpCode::Delete => Request::Delete {
                path: reader.string()?,
                version: reader.i32()?,
            },
            OpCode::Exists => Request::Exists {
                path: reader.string()?,
                watch: reader.bool()?,
            },
            OpCode::GetData => Request::GetData {
                path: reader.string()?,
                watch: reader.bool()?,
            },
            OpCode::GetChildren => Request::GetChildren {
                path: reader.string()?,
                watch: reader.bool()?,
            },
            OpCode::GetChildren2 => Request::GetChildren2 {
                path: reader.string()?,
                watch: reader.bool()?,
            },
            OpCode::SetData => Request::SetData {
                path: reader.string()?,
                data: reader.buffer()?,
                version: reader.i32()?,
            },
            OpCode::Sync => Request::Sync {
                path: reader.string()?,
            },
            OpCode::Multi => Request::Multi(take_multi(reader)?),
            OpCode::SetWatches => Request::SetWatches {
                relative_zxid: reader.i64()?,
                data: reader.strings()?,
                exist: reader.strings()?,
                child: reader.strings()?,
            },
            OpCode::SetWatches2 => Request::SetWatches2 {
                relative_zxid: reader.i64()?,
                data: reader.strings()?,
                exist: reader.strings()?,
                child: reader.strings()?,
                persistent: reader.strings()?,
                persistent_recursive: reader.strings()?,
            },
            OpCode::AddWatch => Request::AddWatch {
                path: reader.string()?,
                mode: AddWatchMode::from_number(reader.i32()?)
                    .ok_or(WireError::Malformed("unknown watch mode"))?,
            },
            OpCode::RemoveWatches => Request::RemoveWatches {
                path: reader.string()?,
                kind: WatcherKind::from_number(reader.i32()?)
                    .ok_or(WireError::Malformed("unknown watch type"))?,
            },
        })
    }
}

const CREATE_MODES: [CreateMode; 4] = [
    CreateMode::Persistent,
    CreateMode::Ephemeral,
    CreateMode::PersistentSequential,
    CreateMode::EphemeralSequential,
];

fn put_create(out: &mut BytesMut, create: &Create) {
    const ALL_RIGHTS: i32 = 31;
    jute::put_string(out, &create.path);
    jute::put_buffer(out, &create.data);
    out.put_i32(1);
    out.put_i32(ALL_RIGHTS);
    jute::put_string(out, "world");
    jute::put_string(out, "anyone");
    out.put_i32(
        i32::from(create.mode.is_ephemeral()) | i32::from(create.mode.is_sequential()) << 1,
    );
}

fn take_create(reader: &mut JuteReader) -> WireResult<Create> {
    let path = reader.string()?;
    let data = reader.buffer()?;
    for _ in 0..reader.count(12)? {
        reader.i32()?;
        reader.string()?;
        reader.string()?;
    }
    let mode = usize::try_from(reader.i32()?)
        .ok()
        .and_then(|flags| CREATE_MODES.get(flags).copied())
        .ok_or(WireError::Malformed("unknown create mode"))?;
    Ok(Create { path, data, mode })
}

fn put_path_version(out: &mut BytesMut, path: &str, version: i32) {
    jute::put_string(out, path);
    out.put_i32(version);
}

fn put_set(out: &mut BytesMut, path: &str, data: &[u8], version: i32) {
    jute::put_string(out, path);
    jute::put_buffer(out, data);
    out.put_i32(version);
}

fn put_multi(out: &mut BytesMut, ops: &[MultiOp]) {
    for op in ops {
        let code = match op {
            MultiOp::Create(_) => OpCode::Create.number(),
            MultiOp::Create2(_) => OpCode::Create2.number(),
            MultiOp::SetData { .. } => OpCode::SetData.number(),
            MultiOp::Delete { .. } => OpCode::Delete.number(),
            MultiOp::Check { .. } => CHECK,
        };
        put_multi_header(out, code, false, -1);
        match op {
            MultiOp::Create(create) | MultiOp::Create2(create) => put_create(out, create),
            MultiOp::SetData {
                path,
                data,
                version,
            } => put_set(out, path, data, *version),
            MultiOp::Delete { path, version } | MultiOp::Check { path, version } => {
                put_path_version(out, path, *version);
            }
        }
    }
    put_multi_header(out, -1, true, -1);
}

pub(super) fn put_multi_header(out: &mut BytesMut, code: i32, done: bool, error: i32) {
    out.put_i32(code);
    jute::put_bool(out, done);
    out.put_i32(error);
}

/// Reads operation code and error of the next part of a multi. Returns `None` at its end.
pub(super) fn take_multi_header(reader: &mut JuteReader) -> WireResult<Option<(i32, i32)>> {
    let code = reader.i32()?;
    let done = reader.bool()?;
    let error = reader.i32()?;
    Ok((!done).then_some((code, error)))
}

fn take_multi(reader: &mut JuteReader) -> WireResult<Vec<MultiOp>> {
    let mut ops = Vec::new();
    while let Some((code, _)) = take_multi_header(reader)? {
        ops.push(match OpCode::from_number(code) {
            Some(OpCode::Create) => MultiOp::Create(take_create(reader)?),
            Some(OpCode::Create2) => MultiOp::Create2(take_create(reader)?),
            Some(OpCode::SetData) => MultiOp::SetData {
                path: reader.string()?,
                data: reader.buffer()?,
                version: reader.i32()?,
            },
            Some(OpCode::Delete) => MultiOp::Delete {
                path: reader.string()?,
                version: reader.i32()?,
            },
            None if code == CHECK => MultiOp::Check {
                path: reader.string()?,
                version: reader.i32()?,
            },
            _ => return Err(WireError::Malformed("unknown operation in a multi")),
        });
    }
    Ok(ops)
}
