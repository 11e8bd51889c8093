//! Addresses that are not let through unless somebody listed them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::{fmt, io};

use rustix::io::Errno;

/// Why an address is not let through by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// This machine, by the loopback.
    Loopback,
    /// This machine, by an address of one of its interfaces.
    ThisMachine,
    /// A private network, one shared by a provider's customers, or one local to a site.
    Private,
    /// The link.
    LinkLocal,
    /// Where clouds keep the secrets of a machine.
    Metadata,
    /// Many hosts at once.
    Multicast,
    /// No host of the public network: unspecified, reserved, for documentation or benchmarks.
    Reserved,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "loopback",
            Self::ThisMachine => "an address of this machine",
            Self::Private => "private",
            Self::LinkLocal => "link-local",
            Self::Metadata => "a metadata service",
            Self::Multicast => "multicast",
            Self::Reserved => "reserved",
        })
    }
}

/// Why this address is not let through by itself, from its number alone; nothing for the public network.
pub fn kind(address: IpAddr) -> Option<Kind> {
    match address.to_canonical() {
        IpAddr::V4(address) => kind_v4(address),
        IpAddr::V6(address) => kind_v6(address),
    }
}

fn kind_v4(address: Ipv4Addr) -> Option<Kind> {
    match address.octets() {
        // Link-local, Azure's, Alibaba's and Oracle's.
        [169, 254, 169, 254] | [168, 63, 129, 16] | [100, 100, 100, 200] | [192, 0, 0, 192] => {
            Some(Kind::Metadata)
        }
        [127, ..] => Some(Kind::Loopback),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => Some(Kind::Private),
        [169, 254, ..] => Some(Kind::LinkLocal),
        [224..=239, ..] => Some(Kind::Multicast),
        [0, ..]
        | [192, 0, 0, _]
        | [192, 0, 2, _]
        | [192, 88, 99, _]
        | [198, 18..=19, ..]
        | [198, 51, 100, _]
        | [203, 0, 113, _]
        | [240..=255, ..] => Some(Kind::Reserved),
        _ => None,
    }
}

fn kind_v6(address: Ipv6Addr) -> Option<Kind> {
    let s = address.segments();
    if address == Ipv6Addr::LOCALHOST {
        return Some(Kind::Loopback);
    }
    // AWS, over IPv6.
    if s == [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254] {
        return Some(Kind::Metadata);
    }
    match s {
        [0xfe80..=0xfebf, ..] => return Some(Kind::LinkLocal),
        [0xfc00..=0xfdff, ..] | [0xfec0..=0xfeff, ..] => return Some(Kind::Private),
        [0xff00..=0xffff, ..] => return Some(Kind::Multicast),
        // NAT64 of a network's own: where the IPv4 address stands is its own affair.
        [0x64, 0xff9b, 1, ..] => return Some(Kind::Private),
        _ => {}
    }
    if let Some(kind) = embedded(address).into_iter().flatten().find_map(kind_v4) {
        return Some(kind);
    }
    match s {
        // NAT64: judged by what it holds.
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => None,
        [0x2001, 0xdb8, ..] | [0x2001, 2, 0, ..] | [0x2001, 0x10..=0x2f, ..] | [0x3fff, 0..=0xfff, ..] => {
            Some(Kind::Reserved)
        }
        [0x2000..=0x3fff, ..] => None,
        // All that is or ever was public lies in 2000::/3.
        _ => Some(Kind::Reserved),
    }
}

/// The IPv4 addresses that an IPv6 one stands for.
pub(crate) fn embedded(address: Ipv6Addr) -> [Option<Ipv4Addr>; 2] {
    let s = address.segments();
    let v4 = |high: u16, low: u16| Some(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)));
    match s {
        // Mapped, translated, compatible, NAT64.
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0, 0, 0, 0, 0, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => [v4(high, low), None],
        // 6to4.
        [0x2002, high, low, ..] => [v4(high, low), None],
        // Teredo: its server, and the client in disguise.
        [0x2001, 0, high, low, _, _, client_high, client_low] => {
            [v4(high, low), v4(!client_high, !client_low)]
        }
        // ISATAP.
        [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => [v4(high, low), None],
        _ => [None, None],
    }
}

/// Whether an address is, or stands for, one of this machine's own. The kernel is asked; nothing is sent. Where it cannot
/// say, as when descriptors run out, the address counts as one.
pub(crate) fn is_this_machine(address: IpAddr) -> bool {
    let (any, nobodys): (IpAddr, IpAddr) = match address {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into()),
        IpAddr::V6(v6) => {
            if embedded(v6).into_iter().flatten().any(|v4| is_this_machine(v4.into())) {
                return true;
            }
            let nobodys = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
            (Ipv6Addr::UNSPECIFIED.into(), nobodys.into())
        }
    };
    let bind = |to: IpAddr| UdpSocket::bind((to, 0));
    match bind(address) {
        // Unless the system lets anybody be bound to that it does not have.
        Ok(_) if bind(nobodys).is_err() => return true,
        Ok(_) => {}
        Err(error) if is_nobody(&error) => {}
        Err(_) => return true,
    }
    // To most of its own addresses it goes from themselves.
    match bind(any) {
        Ok(socket) => {
            let from = socket.connect((address, 9)).and_then(|()| socket.local_addr());
            from.is_ok_and(|from| from.ip() == address)
        }
        Err(error) => !is_nobody(&error),
    }
}

/// Whether this says that the machine has no such address, or no such family.
fn is_nobody(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind() {
        use Kind::{LinkLocal, Loopback, Metadata, Multicast, Private, Reserved};
        let cases = [
            ("1.1.1.1", None),
            ("8.8.8.8", None),
            ("100.63.255.255", None),
            ("172.32.0.1", None),
            ("198.20.0.1", None),
            ("0.0.0.0", Some(Reserved)),
            ("0.1.2.3", Some(Reserved)),
            ("10.255.0.1", Some(Private)),
            ("100.64.0.1", Some(Private)),
            ("127.0.0.1", Some(Loopback)),
            ("127.255.255.254", Some(Loopback)),
            ("169.254.1.1", Some(LinkLocal)),
            ("169.254.169.254", Some(Metadata)),
            ("168.63.129.16", Some(Metadata)),
            ("172.16.0.1", Some(Private)),
            ("172.31.255.255", Some(Private)),
            ("192.0.0.8", Some(Reserved)),
            ("192.0.2.1", Some(Reserved)),
            ("192.168.1.1", Some(Private)),
            ("198.18.0.1", Some(Reserved)),
            ("198.51.100.1", Some(Reserved)),
            ("203.0.113.9", Some(Reserved)),
            ("224.0.0.1", Some(Multicast)),
            ("240.0.0.1", Some(Reserved)),
            ("255.255.255.255", Some(Reserved)),
            ("::", Some(Reserved)),
            ("::1", Some(Loopback)),
            ("::2", Some(Reserved)),
            ("::127.0.0.1", Some(Loopback)),
            ("::8.8.8.8", Some(Reserved)),
            ("::ffff:127.0.0.1", Some(Loopback)),
            ("::ffff:8.8.8.8", None),
            ("::ffff:0:10.0.0.1", Some(Private)),
            ("64:ff9b::10.0.0.1", Some(Private)),
            ("64:ff9b::169.254.169.254", Some(Metadata)),
            ("64:ff9b::8.8.8.8", None),
            ("64:ff9b:0:1::8.8.8.8", Some(Reserved)),
            ("64:ff9b:1::8.8.8.8", Some(Private)),
            ("100::1", Some(Reserved)),
            ("2001:db8::1", Some(Reserved)),
            ("2001:0:7f00:1::1", Some(Loopback)),
            ("2001:0:4136:e378:8000:63bf:f5ff:fffe", Some(Private)),
            ("2002:7f00:1::", Some(Loopback)),
            ("2002:a00:1::1", Some(Private)),
            ("2002:808:808::1", None),
            ("2606:4700::1111", None),
            ("2606:4700::5efe:10.0.0.1", Some(Private)),
            ("3fff::1", Some(Reserved)),
            ("4000::1", Some(Reserved)),
            ("fc00::1", Some(Private)),
            ("fd00:ec2::254", Some(Metadata)),
            ("fe80::1", Some(LinkLocal)),
            ("fec0::1", Some(Private)),
            ("ff02::1", Some(Multicast)),
        ];
        for (text, expected) in cases {
            assert_eq!(kind(text.parse().unwrap()), expected, "{text}");
        }
    }

    #[test]
    fn the_kernel_knows_its_own() {
        // The second one is not what the kernel goes from, as a second address of an interface is not.
        for own in ["127.0.0.1", "127.0.0.5", "::ffff:127.0.0.1", "2002:7f00:1::1"] {
            assert!(is_this_machine(own.parse().unwrap()), "{own}");
        }
        for other in ["192.0.2.1", "2001:db8::1", "2002:c000:201::1"] {
            assert!(!is_this_machine(other.parse().unwrap()), "{other}");
        }
    }
}
