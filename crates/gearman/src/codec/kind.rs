//! The packet types and their numbers on the wire.

use std::fmt;

macro_rules! packet_kinds {
    ($($variant:ident = $number:literal, $name:literal;)*) => {
        /// The type of a packet, as numbered by the protocol. Number 5 is unassigned.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum PacketKind {
            $(#[doc = $name] $variant = $number,)*
        }

        impl PacketKind {
            /// All types of the protocol, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the type with this number.
            pub fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Returns the name that the protocol document uses.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

packet_kinds! {
    CanDo = 1, "CAN_DO";
    CantDo = 2, "CANT_DO";
    ResetAbilities = 3, "RESET_ABILITIES";
    PreSleep = 4, "PRE_SLEEP";
    Noop = 6, "NOOP";
    SubmitJob = 7, "SUBMIT_JOB";
    JobCreated = 8, "JOB_CREATED";
    GrabJob = 9, "GRAB_JOB";
    NoJob = 10, "NO_JOB";
    JobAssign = 11, "JOB_ASSIGN";
    WorkStatus = 12, "WORK_STATUS";
    WorkComplete = 13, "WORK_COMPLETE";
    WorkFail = 14, "WORK_FAIL";
    GetStatus = 15, "GET_STATUS";
    EchoReq = 16, "ECHO_REQ";
    EchoRes = 17, "ECHO_RES";
    SubmitJobBg = 18, "SUBMIT_JOB_BG";
    Error = 19, "ERROR";
    StatusRes = 20, "STATUS_RES";
    SubmitJobHigh = 21, "SUBMIT_JOB_HIGH";
    SetClientId = 22, "SET_CLIENT_ID";
    CanDoTimeout = 23, "CAN_DO_TIMEOUT";
    AllYours = 24, "ALL_YOURS";
    WorkException = 25, "WORK_EXCEPTION";
    OptionReq = 26, "OPTION_REQ";
    OptionRes = 27, "OPTION_RES";
    WorkData = 28, "WORK_DATA";
    WorkWarning = 29, "WORK_WARNING";
    GrabJobUniq = 30, "GRAB_JOB_UNIQ";
    JobAssignUniq = 31, "JOB_ASSIGN_UNIQ";
    SubmitJobHighBg = 32, "SUBMIT_JOB_HIGH_BG";
    SubmitJobLow = 33, "SUBMIT_JOB_LOW";
    SubmitJobLowBg = 34, "SUBMIT_JOB_LOW_BG";
    SubmitJobSched = 35, "SUBMIT_JOB_SCHED";
    SubmitJobEpoch = 36, "SUBMIT_JOB_EPOCH";
    SubmitReduceJob = 37, "SUBMIT_REDUCE_JOB";
    SubmitReduceJobBackground = 38, "SUBMIT_REDUCE_JOB_BACKGROUND";
    GrabJobAll = 39, "GRAB_JOB_ALL";
    JobAssignAll = 40, "JOB_ASSIGN_ALL";
    GetStatusUnique = 41, "GET_STATUS_UNIQUE";
    StatusResUnique = 42, "STATUS_RES_UNIQUE";
}

impl PacketKind {
    pub(crate) fn number(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for PacketKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
