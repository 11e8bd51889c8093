//! The machine's interfaces: loopback, and the one that the host gave it.

use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use moltis_agent_protocol::machine::Boot;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::{Result, at};
use crate::launch::loopback;

const DEVICE: &std::ffi::CStr = c"eth0";

/// Switches on what there is to be.
pub fn up(boot: &Boot) -> Result<()> {
    loopback::up().map_err(at("loopback"))?;
    // Commands listen on low ports too, as in containers.
    let _ = std::fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
    let Some((own, way, bits)) = boot.address else { return Ok(()) };
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None).map_err(at("a socket"))?;
    let mask = Ipv4Addr::from(u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0));
    for (code, value) in [(libc::SIOCSIFADDR, own), (libc::SIOCSIFNETMASK, mask)] {
        let mut request = request();
        request.ifr_ifru.ifru_addr = address(value);
        call(&socket, code as libc::Ioctl, &raw const request).map_err(at("eth0"))?;
    }
    let mut request = request();
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    call(&socket, libc::SIOCSIFFLAGS as libc::Ioctl, &raw const request).map_err(at("eth0"))?;
    // SAFETY: all-zero is a valid value of this struct of integers and pointers.
    let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
    route.rt_dst = address(Ipv4Addr::UNSPECIFIED);
    route.rt_genmask = address(Ipv4Addr::UNSPECIFIED);
    route.rt_gateway = address(way);
    route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
    call(&socket, libc::SIOCADDRT as libc::Ioctl, &raw const route).map_err(at("the way out"))
}

fn request() -> libc::ifreq {
    // SAFETY: all-zero is a valid value of this struct of integers and byte arrays.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(DEVICE.to_bytes()) {
        *to = *from as libc::c_char;
    }
    request
}

fn address(value: Ipv4Addr) -> libc::sockaddr {
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from(value).to_be() },
        sin_zero: [0; 8],
    };
    // SAFETY: both are plain structs of 16 bytes, and the kernel reads the one as the other.
    unsafe { std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(address) }
}

fn call<T>(socket: &OwnedFd, code: libc::Ioctl, request: *const T) -> std::result::Result<(), Errno> {
    // SAFETY: the socket is open, and the caller passes what the code takes, which outlives the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), code, request) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}
