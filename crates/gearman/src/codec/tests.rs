use bytes::{BufMut, Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use tokio_util::codec::{Decoder, Encoder};

use super::*;

const LIMITS: FrameLimits = FrameLimits {
    max_frame: 4096,
    max_line: 256,
};

fn header(kind: u32, len: u32) -> BytesMut {
    let mut bytes = BytesMut::from(&b"\0REQ"[..]);
    bytes.put_u32(kind);
    bytes.put_u32(len);
    bytes
}

/// Decodes a stream that arrives in pieces of the given sizes. Returns the frames and the final error.
fn decode_in_pieces(stream: &[u8], pieces: &[usize]) -> (Vec<GearmanFrame>, Option<String>) {
    let mut codec = Codec::new(Magic::Response, LIMITS);
    let mut buffer = BytesMut::new();
    let mut frames = Vec::new();
    let mut rest = stream;
    let mut pieces = pieces.iter().copied().chain(std::iter::repeat(usize::MAX));
    while !rest.is_empty() {
        let take = pieces.next().unwrap().clamp(1, rest.len());
        let (now, later) = rest.split_at(take);
        buffer.extend_from_slice(now);
        rest = later;
        loop {
            match codec.decode(&mut buffer) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(StreamError::Frame(error)) => return (frames, Some(error.to_string())),
                Err(error) => panic!("{error}"),
            }
        }
    }
    match codec.decode_eof(&mut buffer) {
        Ok(None) => (frames, None),
        Ok(Some(frame)) => panic!("a frame was withheld until the end: {frame:?}"),
        Err(error) => (frames, Some(format!("{error:?}"))),
    }
}

/// Any packet with the arguments of its kind.
fn any_packet() -> impl Strategy<Value = Packet> {
    let inner = vec(1u8..=255, 0..20);
    (
        prop::sample::select(PacketKind::ALL),
        vec(inner, 7),
        vec(any::<u8>(), 0..60),
    )
        .prop_map(|(kind, inner, last)| {
            (0..=inner.len())
                .find_map(|count| {
                    let mut fields: Vec<Vec<u8>> = inner[..count].to_vec();
                    fields.push(last.clone());
                    let with_last = Packet::parse(kind, fields.join(&0).into());
                    match with_last {
                        Err(FrameError::UnexpectedData { .. }) => {
                            Packet::parse(kind, Bytes::new()).ok()
                        }
                        // Too few separators so far, unless the last argument happened to contain some.
                        other => other.ok(),
                    }
                })
                .unwrap()
        })
}

fn any_frame() -> impl Strategy<Value = GearmanFrame> {
    prop_oneof![
        4 => any_packet().prop_map(GearmanFrame::Packet),
        1 => "[a-z]([a-z \t.:]{0,40}[a-z])?".prop_map(GearmanFrame::Line),
        1 => Just(GearmanFrame::Line(String::new())),
    ]
}

proptest! {
    #[test]
    fn a_stream_of_frames_survives_any_split(frames in vec(any_frame(), 0..12), pieces in vec(1usize..40, 0..60)) {
        let mut codec = Codec::new(Magic::Request, LIMITS);
        let mut stream = BytesMut::new();
        for frame in &frames {
            match frame {
                GearmanFrame::Packet(packet) => codec.encode(packet, &mut stream).unwrap(),
                GearmanFrame::Line(line) => stream.extend_from_slice(format!("{line}\n").as_bytes()),
            }
        }
        prop_assert_eq!(decode_in_pieces(&stream, &pieces), (frames, None));
    }

    #[test]
    fn decoding_does_not_depend_on_the_split(stream in vec(any::<u8>(), 0..400), pieces in vec(1usize..20, 0..60)) {
        prop_assert_eq!(decode_in_pieces(&stream, &pieces).0, decode_in_pieces(&stream, &[]).0);
    }

    #[test]
    fn arbitrary_data_with_a_valid_header_never_panics(kind in 0u32..50, data in vec(any::<u8>(), 0..200), pieces in vec(1usize..20, 0..20)) {
        let mut stream = header(kind, data.len() as u32);
        stream.extend_from_slice(&data);
        let (frames, error) = decode_in_pieces(&stream, &pieces);
        prop_assert_eq!(frames.len() + usize::from(error.is_some()), 1);
        if let Some(GearmanFrame::Packet(packet)) = frames.first() {
            let mut again = BytesMut::new();
            packet.encode(Magic::Request, 4096, &mut again).unwrap();
            prop_assert_eq!(again, stream);
        }
    }
}

#[test]
fn numbers_and_kinds_correspond() {
    for kind in PacketKind::ALL {
        assert_eq!(PacketKind::from_number(kind.number()), Some(*kind));
    }
    assert_eq!(PacketKind::ALL.len(), 41);
    assert_eq!(PacketKind::from_number(0), None);
    assert_eq!(PacketKind::from_number(5), None);
    assert_eq!(PacketKind::from_number(43), None);
}

#[test]
fn the_last_argument_keeps_its_nuls() {
    let mut stream = header(7, 14);
    stream.extend_from_slice(b"build\0u1\0a\0b\0\n");
    let packet = Packet::SubmitJob {
        priority: JobPriority::Normal,
        background: false,
        function: Bytes::from_static(b"build"),
        unique: Bytes::from_static(b"u1"),
        payload: Bytes::from_static(b"a\0b\0\n"),
    };
    assert_eq!(
        decode_in_pieces(&stream, &[]),
        (vec![GearmanFrame::Packet(packet)], None)
    );
}

#[test]
fn malformed_frames_have_specific_errors() {
    let cases: [(&[u8], &str); 7] = [
        (
            b"\0XYZ\0\0\0\x01\0\0\0\0",
            "invalid packet magic [00, 58, 59, 5a]",
        ),
        (&header(5, 0), "unknown packet type 5"),
        (
            &header(7, u32::MAX),
            "SUBMIT_JOB with 4294967295 bytes exceeds the limit of 4096 bytes",
        ),
        (
            &[&header(7, 5)[..], b"build"].concat(),
            "SUBMIT_JOB ends before its argument \"function\"",
        ),
        (
            &[&header(4, 1)[..], b"x"].concat(),
            "PRE_SLEEP takes no arguments but carries 1 bytes",
        ),
        (&[b'x'; 300], "line of text exceeds the limit of 256 bytes"),
        (b"st\xffatus\n", "line of text is not UTF-8"),
    ];
    for (stream, reason) in cases {
        assert_eq!(
            decode_in_pieces(stream, &[]),
            (Vec::new(), Some(reason.to_owned()))
        );
    }
}

#[test]
fn a_large_length_in_a_header_allocates_nothing() {
    let mut codec = Codec::new(
        Magic::Response,
        FrameLimits {
            max_frame: 1 << 30,
            max_line: 256,
        },
    );
    let mut buffer = header(7, 1 << 29);
    assert!(codec.decode(&mut buffer).unwrap().is_none());
    assert!(
        buffer.capacity() < 4096,
        "{} bytes reserved",
        buffer.capacity()
    );
}

#[test]
fn a_nul_inside_an_argument_is_not_sent() {
    let packet = Packet::WorkComplete {
        handle: Bytes::from_static(b"H:1\0forged"),
        data: Bytes::new(),
    };
    let mut out = BytesMut::new();
    let error = packet.encode(Magic::Request, 100, &mut out).unwrap_err();
    assert_eq!(
        error,
        FrameError::NulInArgument {
            kind: PacketKind::WorkComplete
        }
    );
    assert!(out.is_empty());
}
