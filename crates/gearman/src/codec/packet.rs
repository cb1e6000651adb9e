//! Packets as typed values, and their arguments on the wire.
//!
//! Arguments are separated by one NUL each; the last one extends to the end of the packet and may contain NULs. Field
//! values are raw bytes, because a job server forwards numbers and handles unparsed.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{FrameError, HEADER_LEN, Magic, PacketKind};

/// The order in which waiting jobs of a function are assigned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobPriority {
    High,
    #[default]
    Normal,
    Low,
}

/// One packet of the protocol.
///
/// The six plain submit types differ only in priority and in whether the client waits for the result, so they
/// are one variant. The magic of a received packet is discarded, because some servers send the wrong one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    CanDo {
        function: Bytes,
    },
    CanDoTimeout {
        function: Bytes,
        timeout: Bytes,
    },
    CantDo {
        function: Bytes,
    },
    ResetAbilities,
    AllYours,
    SetClientId {
        id: Bytes,
    },
    PreSleep,
    Noop,
    GrabJob,
    GrabJobUniq,
    GrabJobAll,
    NoJob,
    JobAssign {
        handle: Bytes,
        function: Bytes,
        payload: Bytes,
    },
    JobAssignUniq {
        handle: Bytes,
        function: Bytes,
        unique: Bytes,
        payload: Bytes,
    },
    JobAssignAll {
        handle: Bytes,
        function: Bytes,
        unique: Bytes,
        reducer: Bytes,
        payload: Bytes,
    },
    SubmitJob {
        priority: JobPriority,
        background: bool,
        function: Bytes,
        unique: Bytes,
        payload: Bytes,
    },
    /// `when` holds minute, hour, day of month, month and day of week.
    SubmitJobSched {
        function: Bytes,
        unique: Bytes,
        when: Box<[Bytes; 5]>,
        payload: Bytes,
    },
    SubmitJobEpoch {
        function: Bytes,
        unique: Bytes,
        epoch: Bytes,
        payload: Bytes,
    },
    SubmitReduceJob {
        background: bool,
        function: Bytes,
        unique: Bytes,
        reducer: Bytes,
        payload: Bytes,
    },
    JobCreated {
        handle: Bytes,
    },
    WorkStatus {
        handle: Bytes,
        numerator: Bytes,
        denominator: Bytes,
    },
    WorkData {
        handle: Bytes,
        data: Bytes,
    },
    WorkWarning {
        handle: Bytes,
        data: Bytes,
    },
    WorkComplete {
        handle: Bytes,
        data: Bytes,
    },
    WorkFail {
        handle: Bytes,
    },
    WorkException {
        handle: Bytes,
        data: Bytes,
    },
    GetStatus {
        handle: Bytes,
    },
    StatusRes {
        handle: Bytes,
        known: Bytes,
        running: Bytes,
        numerator: Bytes,
        denominator: Bytes,
    },
    GetStatusUnique {
        unique: Bytes,
    },
    StatusResUnique {
        unique: Bytes,
        known: Bytes,
        running: Bytes,
        numerator: Bytes,
        denominator: Bytes,
        clients: Bytes,
    },
    EchoReq {
        data: Bytes,
    },
    EchoRes {
        data: Bytes,
    },
    OptionReq {
        option: Bytes,
    },
    OptionRes {
        option: Bytes,
    },
    Error {
        code: Bytes,
        text: Bytes,
    },
}

/// Splits the data of a received packet into arguments.
struct ArgumentReader {
    kind: PacketKind,
    rest: Bytes,
}

impl ArgumentReader {
    fn next(&mut self, argument: &'static str) -> Result<Bytes, FrameError> {
        let Some(end) = self.rest.iter().position(|byte| *byte == 0) else {
            return Err(FrameError::MissingArgument {
                kind: self.kind,
                argument,
            });
        };
        let value = self.rest.split_to(end);
        self.rest.advance(1);
        Ok(value)
    }

    fn last(self) -> Bytes {
        self.rest
    }

    fn none(self, packet: Packet) -> Result<Packet, FrameError> {
        match self.rest.len() {
            0 => Ok(packet),
            len => Err(FrameError::UnexpectedData {
                kind: self.kind,
                len,
            }),
        }
    }
}

impl Packet {
    /// Parses the data of a packet of this kind.
    pub fn parse(kind: PacketKind, data: Bytes) -> Result<Self, FrameError> {
        use PacketKind as K;
        let mut args = ArgumentReader { kind, rest: data };
        Ok(match kind {
            K::CanDo => Self::CanDo {
                function: args.last(),
            },
            K::CanDoTimeout => Self::CanDoTimeout {
                function: args.next("function")?,
                timeout: args.last(),
            },
            K::CantDo => Self::CantDo {
                function: args.last(),
            },
            K::ResetAbilities => args.none(Self::ResetAbilities)?,
            K::AllYours => args.none(Self::AllYours)?,
            K::SetClientId => Self::SetClientId { id: args.last() },
            K::PreSleep => args.none(Self::PreSleep)?,
            K::Noop => args.none(Self::Noop)?,
            K::GrabJob => args.none(Self::GrabJob)?,
            K::GrabJobUniq => args.none(Self::GrabJobUniq)?,
            K::GrabJobAll => args.none(Self::GrabJobAll)?,
            K::NoJob => args.none(Self::NoJob)?,
            K::JobAssign => Self::JobAssign {
                handle: args.next("handle")?,
                function: args.next("function")?,
                payload: args.last(),
            },
            K::JobAssignUniq => Self::JobAssignUniq {
                handle: args.next("handle")?,
                function: args.next("function")?,
                unique: args.next("unique")?,
                payload: args.last(),
            },
            K::JobAssignAll => Self::JobAssignAll {
                handle: args.next("handle")?,
                function: args.next("function")?,
                unique: args.next("unique")?,
                reducer: args.next("reducer")?,
                payload: args.last(),
            },
            K::SubmitJob => submit(args, JobPriority::Normal, false)?,
            K::SubmitJobBg => submit(args, JobPriority::Normal, true)?,
            K::SubmitJobHigh => submit(args, JobPriority::High, false)?,
            K::SubmitJobHighBg => submit(args, JobPriority::High, true)?,
            K::SubmitJobLow => submit(args, JobPriority::Low, false)?,
            K::SubmitJobLowBg => submit(args, JobPriority::Low, true)?,
            K::SubmitJobSched => Self::SubmitJobSched {
                function: args.next("function")?,
                unique: args.next("unique")?,
                when: Box::new([
                    args.next("minute")?,
                    args.next("hour")?,
                    args.next("day of month")?,
                    args.next("month")?,
                    args.next("day of week")?,
                ]),
                payload: args.last(),
            },
            K::SubmitJobEpoch => Self::SubmitJobEpoch {
                function: args.next("function")?,
                unique: args.next("unique")?,
                epoch: args.next("epoch")?,
                payload: args.last(),
            },
            K::SubmitReduceJob => submit_reduce(args, false)?,
            K::SubmitReduceJobBackground => submit_reduce(args, true)?,
            K::JobCreated => Self::JobCreated {
                handle: args.last(),
            },
            K::WorkStatus => Self::WorkStatus {
                handle: args.next("handle")?,
                numerator: args.next("numerator")?,
                denominator: args.last(),
            },
            K::WorkData => Self::WorkData {
                handle: args.next("handle")?,
                data: args.last(),
            },
            K::WorkWarning => Self::WorkWarning {
                handle: args.next("handle")?,
                data: args.last(),
            },
            K::WorkComplete => Self::WorkComplete {
                handle: args.next("handle")?,
                data: args.last(),
            },
            K::WorkFail => Self::WorkFail {
                handle: args.last(),
            },
            K::WorkException => Self::WorkException {
                handle: args.next("handle")?,
                data: args.last(),
            },
            K::GetStatus => Self::GetStatus {
                handle: args.last(),
            },
            K::StatusRes => Self::StatusRes {
                handle: args.next("handle")?,
                known: args.next("known")?,
                running: args.next("running")?,
                numerator: args.next("numerator")?,
                denominator: args.last(),
            },
            K::GetStatusUnique => Self::GetStatusUnique {
                unique: args.last(),
            },
            K::StatusResUnique => Self::StatusResUnique {
                unique: args.next("unique")?,
                known: args.next("known")?,
                running: args.next("running")?,
                numerator: args.next("numerator")?,
                denominator: args.next("denominator")?,
                clients: args.last(),
            },
            K::EchoReq => Self::EchoReq { data: args.last() },
            K::EchoRes => Self::EchoRes { data: args.last() },
            K::OptionReq => Self::OptionReq {
                option: args.last(),
            },
            K::OptionRes => Self::OptionRes {
                option: args.last(),
            },
            K::Error => Self::Error {
                code: args.next("code")?,
                text: args.last(),
            },
        })
    }

    /// Returns the packet's type.
    pub fn kind(&self) -> PacketKind {
        self.visit(|kind, _| kind)
    }

    /// Appends the packet with its header to `out`. Appends nothing on error.
    pub fn encode(
        &self,
        magic: Magic,
        max_data: usize,
        out: &mut BytesMut,
    ) -> Result<(), FrameError> {
        self.visit(|kind, fields| {
            if let Some((_, inner)) = fields.split_last()
                && inner.iter().any(|field| field.contains(&0))
            {
                return Err(FrameError::NulInArgument { kind });
            }
            let separators = fields.len().saturating_sub(1);
            let len = fields.iter().map(|field| field.len()).sum::<usize>() + separators;
            let too_large = FrameError::TooLarge {
                kind,
                len,
                max: max_data,
            };
            if len > max_data {
                return Err(too_large);
            }
            let wire_len = u32::try_from(len).map_err(|_| too_large)?;
            out.reserve(HEADER_LEN + len);
            out.put_slice(magic.bytes());
            out.put_u32(kind.number());
            out.put_u32(wire_len);
            for (index, field) in fields.iter().enumerate() {
                if index > 0 {
                    out.put_u8(0);
                }
                out.put_slice(field);
            }
            Ok(())
        })
    }

    fn visit<R>(&self, visitor: impl FnOnce(PacketKind, &[&[u8]]) -> R) -> R {
        use PacketKind as K;
        let v = visitor;
        match self {
            Self::CanDo { function } => v(K::CanDo, &[function]),
            Self::CanDoTimeout { function, timeout } => v(K::CanDoTimeout, &[function, timeout]),
            Self::CantDo { function } => v(K::CantDo, &[function]),
            Self::ResetAbilities => v(K::ResetAbilities, &[]),
            Self::AllYours => v(K::AllYours, &[]),
            Self::SetClientId { id } => v(K::SetClientId, &[id]),
            Self::PreSleep => v(K::PreSleep, &[]),
            Self::Noop => v(K::Noop, &[]),
            Self::GrabJob => v(K::GrabJob, &[]),
            Self::GrabJobUniq => v(K::GrabJobUniq, &[]),
            Self::GrabJobAll => v(K::GrabJobAll, &[]),
            Self::NoJob => v(K::NoJob, &[]),
            Self::JobAssign {
                handle,
                function,
                payload,
            } => v(K::JobAssign, &[handle, function, payload]),
            Self::JobAssignUniq {
                handle,
                function,
                unique,
                payload,
            } => v(K::JobAssignUniq, &[handle, function, unique, payload]),
            Self::JobAssignAll {
                handle,
                function,
                unique,
                reducer,
                payload,
            } => v(
                K::JobAssignAll,
                &[handle, function, unique, reducer, payload],
            ),
            Self::SubmitJob {
                priority,
                background,
                function,
                unique,
                payload,
            } => v(
                submit_kind(*priority, *background),
                &[function, unique, payload],
            ),
            Self::SubmitJobSched {
                function,
                unique,
                when,
                payload,
            } => {
                let [minute, hour, day, month, weekday] = &**when;
                v(
                    K::SubmitJobSched,
                    &[function, unique, minute, hour, day, month, weekday, payload],
                )
            }
            Self::SubmitJobEpoch {
                function,
                unique,
                epoch,
                payload,
            } => v(K::SubmitJobEpoch, &[function, unique, epoch, payload]),
            Self::SubmitReduceJob {
                background,
                function,
                unique,
                reducer,
                payload,
            } => {
                let kind = if *background {
                    K::SubmitReduceJobBackground
                } else {
                    K::SubmitReduceJob
                };
                v(kind, &[function, unique, reducer, payload])
            }
            Self::JobCreated { handle } => v(K::JobCreated, &[handle]),
            Self::WorkStatus {
                handle,
                numerator,
                denominator,
            } => v(K::WorkStatus, &[handle, numerator, denominator]),
            Self::WorkData { handle, data } => v(K::WorkData, &[handle, data]),
            Self::WorkWarning { handle, data } => v(K::WorkWarning, &[handle, data]),
            Self::WorkComplete { handle, data } => v(K::WorkComplete, &[handle, data]),
            Self::WorkFail { handle } => v(K::WorkFail, &[handle]),
            Self::WorkException { handle, data } => v(K::WorkException, &[handle, data]),
            Self::GetStatus { handle } => v(K::GetStatus, &[handle]),
            Self::StatusRes {
                handle,
                known,
                running,
                numerator,
                denominator,
            } => v(
                K::StatusRes,
                &[handle, known, running, numerator, denominator],
            ),
            Self::GetStatusUnique { unique } => v(K::GetStatusUnique, &[unique]),
            Self::StatusResUnique {
                unique,
                known,
                running,
                numerator,
                denominator,
                clients,
            } => v(
                K::StatusResUnique,
                &[unique, known, running, numerator, denominator, clients],
            ),
            Self::EchoReq { data } => v(K::EchoReq, &[data]),
            Self::EchoRes { data } => v(K::EchoRes, &[data]),
            Self::OptionReq { option } => v(K::OptionReq, &[option]),
            Self::OptionRes { option } => v(K::OptionRes, &[option]),
            Self::Error { code, text } => v(K::Error, &[code, text]),
        }
    }
}

fn submit(
    mut args: ArgumentReader,
    priority: JobPriority,
    background: bool,
) -> Result<Packet, FrameError> {
    Ok(Packet::SubmitJob {
        priority,
        background,
        function: args.next("function")?,
        unique: args.next("unique")?,
        payload: args.last(),
    })
}

fn submit_reduce(mut args: ArgumentReader, background: bool) -> Result<Packet, FrameError> {
    Ok(Packet::SubmitReduceJob {
        background,
        function: args.next("function")?,
        unique: args.next("unique")?,
        reducer: args.next("reducer")?,
        payload: args.last(),
    })
}

fn submit_kind(priority: JobPriority, background: bool) -> PacketKind {
    match (priority, background) {
        (JobPriority::High, false) => PacketKind::SubmitJobHigh,
        (JobPriority::High, true) => PacketKind::SubmitJobHighBg,
        (JobPriority::Normal, false) => PacketKind::SubmitJob,
        (JobPriority::Normal, true) => PacketKind::SubmitJobBg,
        (JobPriority::Low, false) => PacketKind::SubmitJobLow,
        (JobPriority::Low, true) => PacketKind::SubmitJobLowBg,
    }
}
