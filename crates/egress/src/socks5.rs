//! SOCKS version 5: CONNECT, without a login.

use std::net::{Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::audit::Protocol;
use crate::client::Client;
use crate::dial::reach;
use crate::host::{Host, Target};
use crate::journal::Wanted;
use crate::refusal::{Refusal, reply};
use crate::session::Session;
use crate::tunnel;

/// What a program asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Not all of it is there.
    Unfinished,
    /// To connect. Behind it, at this offset, begins what is for the host.
    Connect(Target, usize),
    /// What cannot be done: the code of the answer, what was named, and why.
    Refused(u8, String, Refusal),
}

/// The longest request: a name of 255 bytes.
const LONGEST: usize = 4 + 1 + 255 + 2;

/// Reads a request.
pub fn request(bytes: &[u8]) -> Request {
    let malformed = |why| Request::Refused(reply::FAILURE, String::new(), Refusal::Malformed(why));
    let &[version, command, reserved, kind, ref rest @ ..] = bytes else {
        return match bytes.first() {
            Some(5) | None => Request::Unfinished,
            Some(_) => malformed("it is no SOCKS 5 request"),
        };
    };
    if version != 5 || reserved != 0 {
        return malformed("it is no SOCKS 5 request");
    }
    if command != 1 {
        let why = Refusal::Malformed("of SOCKS only CONNECT is served");
        return Request::Refused(reply::COMMAND, String::new(), why);
    }
    let (length, from) = match kind {
        1 => (4, 0),
        4 => (16, 0),
        3 => match rest.first() {
            Some(length) => (usize::from(*length), 1),
            None => return Request::Unfinished,
        },
        _ => {
            let why = Refusal::Malformed("of SOCKS only IPv4, IPv6 and names are served");
            return Request::Refused(reply::ADDRESS_TYPE, String::new(), why);
        }
    };
    let Some(&[ref host @ .., high, low]) = rest.get(from..from + length + 2) else {
        return Request::Unfinished;
    };
    let text;
    let parsed = if let Ok(octets) = <[u8; 4]>::try_from(host)
        && kind == 1
    {
        text = Ipv4Addr::from(octets).to_string();
        text.parse::<Host>()
    } else if let Ok(octets) = <[u8; 16]>::try_from(host)
        && kind == 4
    {
        text = Ipv6Addr::from(octets).to_string();
        text.parse::<Host>()
    } else {
        text = String::from_utf8_lossy(host).into_owned();
        match std::str::from_utf8(host) {
            Ok(name) => name.parse::<Host>(),
            Err(_) => return Request::Refused(reply::FAILURE, text, Refusal::Host("it is no text")),
        }
    };
    match (parsed, u16::from_be_bytes([high, low])) {
        (Err(why), _) => Request::Refused(reply::FAILURE, text, Refusal::Host(why.0)),
        (Ok(_), 0) => Request::Refused(reply::FAILURE, text, Refusal::Host("its port must be 1 to 65535")),
        (Ok(host), port) => Request::Connect(Target { host, port }, 4 + from + length + 2),
    }
}

/// An answer. The address that we connect from is nobody's business.
fn answer(code: u8) -> [u8; 10] {
    [5, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

/// Says that there is no place for another connection.
pub(crate) async fn turn_away(client: &mut Client) {
    let mut said = vec![5, 0];
    said.extend(answer(reply::FAILURE));
    end(client, &said).await;
}

async fn end(client: &mut Client, said: &[u8]) {
    // Whoever has gone needs no answer.
    if client.write_all(said).await.is_ok() {
        let _ = client.shutdown().await;
    }
}

enum Asked {
    Connect(Target),
    Ended,
}

async fn asked(session: &Session, client: &mut Client) -> std::io::Result<Asked> {
    // Version, number of methods, methods.
    let mut head = [0; 2];
    client.read_exact(&mut head).await?;
    let mut methods = vec![0; usize::from(head[1])];
    client.read_exact(&mut methods).await?;
    if !methods.contains(&0) {
        let why = Refusal::Malformed("it wants a login, and there is none");
        session.journal.refused(&Wanted::nothing(), Protocol::Socks5, &why);
        end(client, &[5, 0xff]).await;
        return Ok(Asked::Ended);
    }
    client.write_all(&[5, 0]).await?;
    client.flush().await?;
    let mut bytes = Vec::with_capacity(LONGEST);
    loop {
        match request(&bytes) {
            // Byte by byte at its end, so that nothing of what follows is taken.
            Request::Unfinished => bytes.push(client.read_u8().await?),
            Request::Connect(target, _) => return Ok(Asked::Connect(target)),
            Request::Refused(code, text, why) => {
                session.journal.refused(&Wanted::text(&text), Protocol::Socks5, &why);
                end(client, &answer(code)).await;
                return Ok(Asked::Ended);
            }
        }
    }
}

/// Serves one connection.
pub(crate) async fn serve(session: std::sync::Arc<Session>, mut client: Client) {
    let limits = &session.shared.limits;
    let target = match timeout(limits.header_time, asked(&session, &mut client)).await {
        Ok(Ok(Asked::Connect(target))) => target,
        Ok(Ok(Asked::Ended) | Err(_)) => return,
        Err(_) => {
            session.journal.refused(&Wanted::nothing(), Protocol::Socks5, &Refusal::Slow);
            return;
        }
    };
    let reached = match session.admit(&target, Protocol::Socks5, false, &client.presence()).await {
        Ok(admitted) => reach(&session, admitted, Protocol::Socks5).await,
        Err(why) => Err(why),
    };
    let mut reached = match reached {
        Ok(reached) => reached,
        Err(why) => {
            session.journal.refused(&Wanted::from(&target), Protocol::Socks5, &why);
            end(&mut client, &answer(why.socks())).await;
            return;
        }
    };
    client.becomes_tunnel(&[]);
    let said = async {
        client.write_all(&answer(reply::SUCCEEDED)).await?;
        client.flush().await
    };
    if said.await.is_err() {
        return;
    }
    tunnel::run(&mut client, &mut reached.stream, reached.watch, &mut reached.passage, limits).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn connect(target: &str, offset: usize) -> Request {
        Request::Connect(target.parse().unwrap(), offset)
    }

    #[test]
    fn requests() {
        assert_eq!(request(&[5, 1, 0, 1, 1, 2, 3, 4, 1, 187, 9]), connect("1.2.3.4:443", 10));
        assert_eq!(request(b"\x05\x01\x00\x03\x05A.com\x00\x50"), connect("a.com:80", 12));
        assert_eq!(request(b"\x05\x01\x00\x03\x091.2.3.4.5\x00\x50"), refused("1.2.3.4.5"));
        assert_eq!(request(b"\x05\x01\x00\x03\x071.2.3.4\x00\x50"), connect("1.2.3.4:80", 14));
        let mut v6 = vec![5, 1, 0, 4];
        v6.extend("::1".parse::<Ipv6Addr>().unwrap().octets());
        v6.extend([0, 80]);
        assert_eq!(request(&v6), connect("[::1]:80", 22));
        let code = |bytes: &[u8]| match request(bytes) {
            Request::Refused(code, ..) => Some(code),
            _ => None,
        };
        assert_eq!(code(&[5, 2, 0, 1, 1, 2, 3, 4, 0, 80]), Some(reply::COMMAND));
        assert_eq!(code(&[5, 3, 0, 1]), Some(reply::COMMAND));
        assert_eq!(code(&[5, 1, 0, 2]), Some(reply::ADDRESS_TYPE));
        assert_eq!(code(&[4, 1, 0, 2]), Some(reply::FAILURE));
        assert_eq!(code(&[5, 1, 0, 1, 1, 2, 3, 4, 0, 0]), Some(reply::FAILURE));
        assert_eq!(code(b"\x05\x01\x00\x03\x00\x00\x50"), Some(reply::FAILURE));
        assert_eq!(code(b"\x05\x01\x00\x03\x03a\0b\x00\x50"), Some(reply::FAILURE));
    }

    fn refused(text: &str) -> Request {
        let why = Refusal::Host("it looks like an address; write four decimal numbers");
        Request::Refused(reply::FAILURE, text.into(), why)
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let all = [&[5u8, 1, 0, 3][..], &bytes].concat();
            match request(&all) {
                Request::Connect(_, end) => {
                    prop_assert!(end <= all.len() && end <= LONGEST);
                    for shorter in 0..end {
                        prop_assert_eq!(request(&all[..shorter]), Request::Unfinished);
                    }
                }
                Request::Unfinished => prop_assert!(all.len() < LONGEST),
                Request::Refused(..) => {}
            }
        }
    }
}
