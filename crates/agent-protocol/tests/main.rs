//! Hostile bytes: whatever arrives is a message or an error, never a panic or a large allocation.

use moltis_agent_protocol::frame::{
    HEADER_BYTES, Header, Kind, MAX_CONTROL, MAX_RAW, decode_control, encode_control,
};
use moltis_agent_protocol::launch::{Plan, Report};
use moltis_agent_protocol::message::{FileRequest, Order, Reply, Request};
use moltis_agent_protocol::relay;
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Decodes; what decodes must encode to something that decodes to the same.
fn survives<M: DeserializeOwned + Serialize + PartialEq>(bytes: &[u8]) -> bool {
    match decode_control::<M>(bytes) {
        Err(_) => true,
        Ok(message) => match encode_control(&message) {
            Ok(frame) => decode_control::<M>(&frame[HEADER_BYTES..]).is_ok_and(|again| again == message),
            Err(_) => false,
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in vec(any::<u8>(), 0..512)) {
        prop_assert!(survives::<Request>(&bytes));
        prop_assert!(survives::<Order>(&bytes));
        prop_assert!(survives::<Reply>(&bytes));
        prop_assert!(survives::<Plan>(&bytes));
        prop_assert!(survives::<Report>(&bytes));
    }

    #[test]
    fn any_header_is_within_its_limit_or_an_error(bytes in any::<[u8; HEADER_BYTES]>()) {
        if let Ok(header) = Header::decode(bytes) {
            prop_assert!(header.length <= MAX_CONTROL);
            prop_assert!(header.kind == Kind::Control || header.length <= MAX_RAW);
            prop_assert_eq!(header.encode(), bytes);
        }
    }

    #[test]
    fn a_relay_reads_any_bytes_whole_or_not_at_all(bytes in vec(any::<u8>(), 0..256), cut in 1usize..40) {
        let (mut decoder, mut seen, mut frames) = (relay::Decoder::default(), 0, Vec::new());
        'pieces: for mut piece in bytes.chunks(cut) {
            loop {
                match decoder.next(&mut piece) {
                    Ok(Some(relay::Part::Header(header))) => {
                        prop_assert_eq!(relay::Header::decode(header.encode()), Ok(header));
                        prop_assert!(header.payload() <= relay::MAX_DATA && header.stream != 0);
                        frames.push(header);
                        seen += relay::HEADER_BYTES;
                    }
                    Ok(Some(relay::Part::Data(_, data))) => {
                        prop_assert!(!data.is_empty());
                        seen += data.len();
                    }
                    Ok(None) => break,
                    Err(_) => break 'pieces,
                }
            }
        }
        prop_assert!(seen <= bytes.len());
        // The same in one piece.
        let (mut decoder, mut whole, mut again) = (relay::Decoder::default(), &bytes[..], Vec::new());
        while let Ok(Some(part)) = decoder.next(&mut whole) {
            if let relay::Part::Header(header) = part {
                again.push(header);
            }
        }
        prop_assert_eq!(frames, again);
    }

    #[test]
    fn a_window_never_opens_beyond_its_size(steps in vec((any::<bool>(), any::<u32>()), 0..64)) {
        let (mut credit, mut window) = (relay::Credit::default(), relay::Window::default());
        let mut waiting = 0;
        for (sends, count) in steps {
            if sends {
                let count = credit.left().min(count as usize);
                credit.spend(count);
                prop_assert!(window.received(1, count as u32).is_ok());
                waiting += count;
            } else {
                let count = waiting.min(count as usize);
                waiting -= count;
                if let Some(given) = window.passed_on(count) {
                    prop_assert!(credit.grant(1, given).is_ok());
                }
            }
            prop_assert!(credit.left() + waiting <= relay::WINDOW as usize);
            prop_assert!(waiting > 0 || credit.left() > 0, "nothing can move any more");
        }
        prop_assert!(credit.grant(1, u32::MAX).is_err());
    }

    #[test]
    fn a_changed_message_is_a_message_or_an_error(at in any::<usize>(), to in any::<u8>(), cut in any::<usize>()) {
        let request = Request::File(FileRequest::Write {
            path: b"/home/sandbox/a".to_vec().into(),
            mode: Some(0o644),
            overwrite: true,
            parents: false,
        });
        let frame = encode_control(&request)?;
        let mut payload = frame[HEADER_BYTES..].to_vec();
        let at = at % payload.len();
        payload[at] = to;
        prop_assert!(survives::<Request>(&payload));
        payload.truncate(cut % payload.len());
        prop_assert!(survives::<Request>(&payload));
    }
}

#[test]
fn a_length_that_lies_allocates_nothing() {
    // A request whose path claims to hold 2^62 bytes.
    let mut payload = vec![4, 0];
    payload.extend_from_slice(&[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F]);
    assert!(decode_control::<Request>(&payload).is_err());
}
