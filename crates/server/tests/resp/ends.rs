//! How connections end, and what was charged by then.

use crate::resp::talk::{Said, Talk, list, numbers, simple, split, text};
use crate::support::Server;
use rustix::net::sockopt;
use std::io::Read;
use std::time::Duration;

#[test]
fn quit_is_the_last_reply_of_a_pipeline() {
    let server = Server::start(&[]);
    let mut talk = server.talk();
    let ask = "CL.THROTTLE k 1 1 3600";
    talk.send(&[list(&split(ask)), list(&[b"QUIT"]), list(&split(ask)), list(&[b"PING"])].concat());
    assert_eq!(numbers(&talk.hear()), [0, 2, 1, -1, 3_600]);
    assert_eq!(talk.hear(), simple("OK"));
    assert_eq!(talk.rest(), b"");
    // Commands after it were not charged.
    assert_eq!(numbers(&server.talk().ask(ask)), [0, 2, 0, -1, 7_200]);
}

#[test]
fn whoever_sends_no_more_still_gets_every_reply() {
    let server = Server::start(&[]);
    let mut talk = server.talk();
    let pipeline = list(&split("CL.THROTTLE k 4999 5000 86400")).repeat(5_000);
    let mut writer = talk.stream().try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        std::io::Write::write_all(&mut writer, &pipeline).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let allowed = (0..5_000).filter(|_| numbers(&talk.hear())[0] == 0).count();
    sender.join().unwrap();
    assert_eq!((allowed, talk.rest()), (5_000, vec![]));
}

/// A connection that is reset has charged its complete commands, and nothing of an incomplete one.
#[test]
fn a_reset_in_the_middle_of_a_command_charges_nothing() {
    let server = Server::start(&[]);
    let command = list(&split("CL.THROTTLE k 999 1000 86400"));
    for cut in 1..command.len() {
        let mut talk = server.talk();
        talk.send(&[list(&[b"PING"]), command[..cut].to_vec()].concat());
        // The server has read the beginning, because it came together with the command that it has answered.
        assert_eq!(talk.hear(), simple("PONG"));
        sockopt::set_socket_linger(talk.stream(), Some(Duration::ZERO)).unwrap();
    }
    assert_eq!(numbers(&server.talk().ask("CL.THROTTLE k 999 1000 86400 0"))[2], 1_000);
    server.is_well();
}

/// Commands that were received before the stop get all their replies, and then the connection ends.
#[test]
fn a_stop_answers_every_command_that_was_received() {
    let mut server = Server::start(&[]);
    let mut talks: Vec<Talk> = (0..50).map(|_| server.talk()).collect();
    let mut idle = server.talk();
    for talk in talks.iter_mut().chain([&mut idle]) {
        assert_eq!(talk.ask("PING"), simple("PONG"));
    }
    let mut begun = server.talk();
    begun.send(b"PING\r\n*2\r\n$4\r\nECHO\r\n$4\r\nha");
    assert_eq!(begun.hear(), simple("PONG"));
    for talk in &mut talks {
        talk.send(&list(&split("CL.THROTTLE k 99999 100000 86400")).repeat(100));
        talk.send(&list(&split("ECHO last")));
    }
    server.signal("TERM");
    begun.send(b"lf\r\n");
    assert_eq!((begun.hear(), begun.rest()), (text("half"), vec![]));
    for talk in &mut talks {
        assert!((0..100).all(|_| numbers(&talk.hear())[0] == 0));
        assert_eq!((talk.hear(), talk.rest()), (text("last"), vec![]));
    }
    assert_eq!(idle.rest(), b"");
    assert!(server.wait().success(), "{}", server.log());
    server.never_broke();
}

/// Many connections, one key: exactly as much passes as the limit allows.
#[test]
fn sixty_four_connections_share_one_key() {
    let server = Server::start(&[]);
    let asking = || {
        let mut talk = server.talk();
        let pipeline = list(&split("CL.THROTTLE k 999 1000 86400")).repeat(8);
        let mut allowed = 0;
        for _ in 0..5 {
            talk.send(&pipeline);
            allowed += (0..8).filter(|_| numbers(&talk.hear())[0] == 0).count();
        }
        allowed
    };
    let allowed: usize = std::thread::scope(|scope| {
        let all: Vec<_> = (0..64).map(|_| scope.spawn(asking)).collect();
        all.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert_eq!(allowed, 1_000);
    server.is_well();
}

/// An idle connection is closed after `resp.idle_timeout`, without a message.
#[test]
fn whoever_says_nothing_is_sent_away() {
    let server = Server::start(&["--resp-idle-timeout", "2s"]);
    let mut talk = server.talk();
    assert_eq!(talk.ask("PING"), simple("PONG"));
    assert_eq!(talk.rest(), b"");
}

/// One address cannot have all connections.
#[test]
fn there_is_room_for_others() {
    let server = Server::start(&["--resp-max-connections-per-source", "5"]);
    let mut talks: Vec<Talk> = (0..5).map(|_| server.talk()).collect();
    for talk in &mut talks {
        assert_eq!(talk.ask("PING"), simple("PONG"));
    }
    let mut sixth = server.talk();
    sixth.try_send(b"PING\r\n");
    let mut heard = vec![];
    // The server closes it with unread bytes, so the end may be a reset.
    let _ = sixth.stream().read_to_end(&mut heard);
    assert_eq!(heard, b"");
    drop(talks.pop());
    server.until("the place of the fifth is free", |server| {
        let mut talk = server.talk();
        talk.try_send(b"PING\r\n");
        talk.stream().read(&mut [0; 7]).is_ok_and(|read| read == 7)
    });
    assert!(matches!(talks[0].ask("PING"), Said::Simple(_)));
}
