//! Arbitrary bytes from a Redis client: the RESP parser of the server, checked against invariants and against another parser.

#![no_main]

use libfuzzer_sys::fuzz_target;
use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::OwnedFrame;
use tidegate_server::fuzzing::wire::{CommandBound, Read, Words, read};

fuzz_target!(|bytes: &[u8]| {
    let whole = all(bytes, CommandBound::KNOWN);
    // A prefix of the input is parsed into a prefix of the commands, wherever the input is cut.
    for cut in 0..bytes.len().min(96) {
        let part = all(&bytes[..cut], CommandBound::KNOWN);
        let same = part.commands.iter().zip(&whole.commands).all(|(part, whole)| part == whole);
        assert!(same && part.commands.len() <= whole.commands.len(), "cut at {cut}");
        if let Some(needed) = part.needs
            && whole.commands.len() > part.commands.len()
        {
            // The parser must not wait for more bytes than the command has.
            let (_, end) = &whole.commands[part.commands.len()];
            assert!(needed <= *end, "cut at {cut}: waits for {needed}, a command ends at {end}");
        }
    }
    // Clients that have not authenticated may send less, and what they may send has the same meaning.
    let stranger = all(bytes, CommandBound::UNKNOWN);
    assert!(whole.commands.starts_with(&stranger.commands));
    agrees_with_another_parser(bytes);
});

/// All commands of the input, each with the offset of its end, and up to which offset the next command needs input.
struct All {
    commands: Vec<(Vec<Vec<u8>>, usize)>,
    needs: Option<usize>,
}

fn all(bytes: &[u8], most: CommandBound) -> All {
    let (mut at, mut commands, mut words) = (0, Vec::new(), Words::new());
    loop {
        let rest = &bytes[at..];
        match read(rest, most, &mut words) {
            Ok(Read::Command(length)) => {
                assert!(length > 0 && length <= rest.len() && length <= most.bytes);
                assert!(!words.is_empty() && words.len() <= most.words);
                assert!(words.iter().all(|word| word.len() <= most.bulk));
                at += length;
                commands.push((words.iter().map(|word| word.to_vec()).collect(), at));
            }
            Ok(Read::Nothing(length)) => {
                assert!(length > 0 && length <= rest.len());
                at += length;
            }
            Ok(Read::More(least)) => {
                assert!(least > rest.len(), "waits for bytes that are already there");
                return All { commands, needs: Some(at + least) };
            }
            Err(_) => return All { commands, needs: None },
        }
    }
}

/// If the parser reads a command as an array of strings, another parser reads the same words and the same end.
fn agrees_with_another_parser(bytes: &[u8]) {
    let mut words = Words::new();
    let (Some(b'*'), Ok(Read::Command(length))) =
        (bytes.first(), read(bytes, CommandBound::KNOWN, &mut words))
    else {
        return;
    };
    let Ok(Some((OwnedFrame::Array(frames), used))) = decode(bytes) else {
        panic!("the other parser does not read an array");
    };
    let theirs: Vec<&[u8]> = frames
        .iter()
        .map(|frame| match frame {
            OwnedFrame::BulkString(text) => text.as_slice(),
            other => panic!("the other parser reads {other:?}"),
        })
        .collect();
    assert_eq!((words.as_slice(), length), (theirs.as_slice(), used));
}
