use bytes::{BufMut, Bytes, BytesMut};
use proptest::prelude::*;

use super::*;
use crate::tree::{CreateMode, Stat};

fn content(encode: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut out = BytesMut::new();
    encode(&mut out);
    let frame = take_frame(&mut out, usize::MAX).unwrap().unwrap();
    assert!(out.is_empty());
    frame
}

fn text() -> impl Strategy<Value = String> {
    "[/a-zä]{0,12}"
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(text(), 0..4)
}

fn data() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from)
}

fn stat() -> impl Strategy<Value = Stat> {
    (any::<[i64; 6]>(), any::<[i32; 5]>()).prop_map(|(long, short)| Stat {
        czxid: long[0],
        mzxid: long[1],
        pzxid: long[2],
        ctime: long[3],
        mtime: long[4],
        ephemeral_owner: long[5],
        version: short[0],
        cversion: short[1],
        aversion: short[2],
        data_length: short[3],
        num_children: short[4],
    })
}

fn create() -> impl Strategy<Value = Create> {
    let mode = prop::sample::select(vec![
        CreateMode::Persistent,
        CreateMode::PersistentSequential,
        CreateMode::Ephemeral,
        CreateMode::EphemeralSequential,
    ]);
    (text(), data(), mode).prop_map(|(path, data, mode)| Create { path, data, mode })
}

fn multi_op() -> impl Strategy<Value = MultiOp> {
    prop_oneof![
        create().prop_map(MultiOp::Create),
        create().prop_map(MultiOp::Create2),
        (text(), data(), any::<i32>()).prop_map(|(path, data, version)| MultiOp::SetData {
            path,
            data,
            version
        }),
        (text(), any::<i32>()).prop_map(|(path, version)| MultiOp::Delete { path, version }),
        (text(), any::<i32>()).prop_map(|(path, version)| MultiOp::Check { path, version }),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        Just(Request::Ping),
        Just(Request::CloseSession),
        create().prop_map(Request::Create),
        create().prop_map(Request::Create2),
        (text(), any::<i32>()).prop_map(|(path, version)| Request::Delete { path, version }),
        (text(), any::<bool>()).prop_map(|(path, watch)| Request::Exists { path, watch }),
        (text(), any::<bool>()).prop_map(|(path, watch)| Request::GetData { path, watch }),
        (text(), any::<bool>()).prop_map(|(path, watch)| Request::GetChildren { path, watch }),
        (text(), any::<bool>()).prop_map(|(path, watch)| Request::GetChildren2 { path, watch }),
        (text(), data(), any::<i32>()).prop_map(|(path, data, version)| Request::SetData {
            path,
            data,
            version
        }),
        text().prop_map(|path| Request::Sync { path }),
        prop::collection::vec(multi_op(), 0..5).prop_map(Request::Multi),
        (any::<i64>(), texts(), texts(), texts()).prop_map(
            |(relative_zxid, data, exist, child)| {
                Request::SetWatches {
                    relative_zxid,
                    data,
                    exist,
                    child,
                }
            }
        ),
        (any::<i64>(), texts(), texts(), texts(), texts(), texts()).prop_map(
            |(relative_zxid, data, exist, child, persistent, persistent_recursive)| {
                Request::SetWatches2 {
                    relative_zxid,
                    data,
                    exist,
                    child,
                    persistent,
                    persistent_recursive,
                }
            }
        ),
        (text(), prop::sample::select(AddWatchMode::ALL))
            .prop_map(|(path, mode)| Request::AddWatch { path, mode }),
        (text(), prop::sample::select(WatcherKind::ALL))
            .prop_map(|(path, kind)| Request::RemoveWatches { path, kind }),
    ]
}

fn error_code() -> impl Strategy<Value = ErrorCode> {
    (-130..0).prop_map(ErrorCode::from_number)
}

fn multi_result() -> impl Strategy<Value = MultiResult> {
    prop_oneof![
        text().prop_map(|path| MultiResult::Create { path }),
        (text(), stat()).prop_map(|(path, stat)| MultiResult::Create2 { path, stat }),
        stat().prop_map(MultiResult::SetData),
        Just(MultiResult::Deleted),
        Just(MultiResult::Checked),
        prop::option::of(error_code()).prop_map(MultiResult::Failed),
    ]
}

fn response() -> impl Strategy<Value = (OpCode, Response)> {
    prop_oneof![
        prop::sample::select(vec![
            OpCode::Ping,
            OpCode::Delete,
            OpCode::SetWatches,
            OpCode::SetWatches2,
            OpCode::AddWatch,
            OpCode::RemoveWatches,
            OpCode::CloseSession,
        ])
        .prop_map(|opcode| (opcode, Response::Done)),
        text().prop_map(|path| (OpCode::Create, Response::Create { path })),
        (text(), stat())
            .prop_map(|(path, stat)| (OpCode::Create2, Response::Create2 { path, stat })),
        stat().prop_map(|stat| (OpCode::Exists, Response::Exists(stat))),
        stat().prop_map(|stat| (OpCode::SetData, Response::SetData(stat))),
        (data(), stat())
            .prop_map(|(data, stat)| (OpCode::GetData, Response::GetData { data, stat })),
        (texts(), stat()).prop_map(|(names, stat)| (
            OpCode::GetChildren2,
            Response::GetChildren2 { names, stat }
        )),
        text().prop_map(|path| (OpCode::Sync, Response::Sync { path })),
        prop::collection::vec(multi_result(), 0..5)
            .prop_map(|results| (OpCode::Multi, Response::Multi(results))),
    ]
}

proptest! {
    #[test]
    fn requests_come_back_as_they_were(request in request(), xid in 1..i32::MAX) {
        let frame = content(|out| request.encode(xid, out));
        let (got_xid, got) = Request::decode(frame).unwrap();
        let fixed = match request.opcode() {
            OpCode::Ping => XID_PING,
            OpCode::SetWatches | OpCode::SetWatches2 => XID_SET_WATCHES,
            _ => xid,
        };
        prop_assert_eq!(got_xid, fixed);
        prop_assert_eq!(got, request);
    }

    #[test]
    fn replies_come_back_as_they_were(
        (opcode, response) in response(),
        xid: i32,
        zxid: i64,
        error in prop::option::of(error_code()),
    ) {
        let reply = Reply { xid, zxid, result: error.map_or(Ok(response), Err) };
        let frame = content(|out| reply.encode(out));
        prop_assert_eq!(Reply::decode(opcode, &frame).unwrap(), reply);
    }

    #[test]
    fn handshakes_come_back_as_they_were(
        zxid: i64, timeout: i32, session_id: i64, password in data(), read_only: bool,
    ) {
        let request = ConnectRequest {
            last_zxid_seen: zxid, timeout, session_id, password: password.clone(), read_only,
        };
        let frame = content(|out| request.encode(out));
        prop_assert_eq!(ConnectRequest::decode(frame).unwrap(), request);
        let response = ConnectResponse { timeout, session_id, password, read_only };
        let frame = content(|out| response.encode(out));
        prop_assert_eq!(ConnectResponse::decode(frame).unwrap(), response);
    }

    #[test]
    fn events_come_back_as_they_were(path in text(), kind in prop::sample::select(EventKind::ALL)) {
        let event = Event { kind, path };
        let frame = content(|out| event.encode(out));
        let (header, body) = ReplyHeader::decode(&frame).unwrap();
        prop_assert_eq!(header.xid, XID_EVENT);
        prop_assert_eq!(Event::decode(body).unwrap(), event);
    }

    #[test]
    fn any_bytes_are_taken_or_refused_but_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        decode_everything(&Bytes::from(bytes));
    }

    /// Random bytes rarely get past the first field, so damage what was right.
    #[test]
    fn damaged_packets_never_panic(
        request in request(),
        (opcode, response) in response(),
        at: prop::sample::Index,
        byte: u8,
        cut: prop::sample::Index,
    ) {
        let reply = Reply { xid: 1, zxid: 1, result: Ok(response) };
        let request = content(|out| request.encode(1, out));
        let reply = content(|out| reply.encode(out));
        for frame in [&request, &reply] {
            let mut damaged = frame.to_vec();
            let at = at.index(damaged.len());
            damaged[at] = byte;
            decode_everything(&Bytes::from(damaged));
        }
        prop_assert!(Request::decode(request.slice(..cut.index(request.len()))).is_err());
        prop_assert!(Reply::decode(opcode, &reply.slice(..cut.index(reply.len()))).is_err());
    }
}

fn decode_everything(bytes: &Bytes) {
    let _ = Request::decode(bytes.clone());
    let _ = ConnectRequest::decode(bytes.clone());
    let _ = ConnectResponse::decode(bytes.clone());
    let _ = Event::decode(bytes.clone());
    for &opcode in OpCode::ALL {
        let _ = Reply::decode(opcode, bytes);
        let _ = Response::decode(opcode, bytes.clone());
    }
    let mut stream = BytesMut::from(&bytes[..]);
    while let Ok(Some(_)) = take_frame(&mut stream, 1 << 20) {}
}

#[test]
fn a_frame_is_cut_out_once_it_is_complete() {
    let mut stream = BytesMut::new();
    Request::Ping.encode(0, &mut stream);
    Request::CloseSession.encode(7, &mut stream);
    let last = stream.split_off(stream.len() - 1);
    let first = take_frame(&mut stream, MAX_REQUEST).unwrap().unwrap();
    assert_eq!(Request::decode(first).unwrap(), (XID_PING, Request::Ping));
    assert_eq!(take_frame(&mut stream, MAX_REQUEST).unwrap(), None);
    stream.unsplit(last);
    let second = take_frame(&mut stream, MAX_REQUEST).unwrap().unwrap();
    assert_eq!(Request::decode(second).unwrap(), (7, Request::CloseSession));
}

#[test]
fn claimed_lengths_are_not_believed() {
    let mut stream = BytesMut::new();
    stream.put_i32(i32::MAX);
    assert_eq!(
        take_frame(&mut stream, MAX_REPLY),
        Err(WireError::TooLarge {
            size: 0x7fff_ffff,
            limit: MAX_REPLY
        })
    );
    let mut stream = BytesMut::new();
    stream.put_i32(-5);
    assert!(take_frame(&mut stream, MAX_REPLY).is_err());

    let mut list = BytesMut::new();
    list.put_i32(i32::MAX);
    assert!(Response::decode(OpCode::GetChildren2, list.freeze()).is_err());
}

#[test]
fn an_unknown_operation_can_still_be_answered() {
    let mut frame = BytesMut::new();
    frame.put_i32(17);
    frame.put_i32(999);
    assert_eq!(
        Request::decode(frame.freeze()),
        Err(WireError::UnknownOperation { xid: 17, code: 999 })
    );
}

/// The bytes that a Java client sends, so that encoding and decoding cannot be wrong together.
#[test]
fn a_create_is_what_other_clients_send() {
    let frame = content(|out| {
        Request::Create2(Create {
            path: "/a".to_owned(),
            data: Bytes::from_static(b"x"),
            mode: CreateMode::EphemeralSequential,
        })
        .encode(3, out);
    });
    let expected = b"\0\0\0\x03\0\0\0\x0f\
        \0\0\0\x02/a\0\0\0\x01x\
        \0\0\0\x01\0\0\0\x1f\0\0\0\x05world\0\0\0\x06anyone\
        \0\0\0\x03";
    assert_eq!(&frame[..], &expected[..]);
}
