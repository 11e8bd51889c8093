//! TAP devices by the kernel's own calls.

use std::ffi::CString;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::error::{Error, Result};

// Of `<linux/if_tun.h>`.
const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
const TUNSETPERSIST: libc::Ioctl = 0x4004_54cb;
const TUNSETOWNER: libc::Ioctl = 0x4004_54cc;
const IFF_TAP: libc::c_short = 0x0002;
const IFF_NO_PI: libc::c_short = 0x1000;
const IFF_VNET_HDR: libc::c_short = 0x4000;
/// The device must not be there yet.
const IFF_TUN_EXCL: u16 = 0x8000;

/// Whether the kernel makes such devices for us.
pub fn possible() -> std::result::Result<(), Errno> {
    open().map(drop)
}

fn open() -> std::result::Result<OwnedFd, Errno> {
    openat(CWD, "/dev/net/tun", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Whether an interface of this name is there. Blocks.
pub fn exists(name: &str) -> bool {
    std::path::Path::new("/sys/class/net").join(name).exists()
}

/// Makes a device for this user with this address, and switches it on. Blocks.
///
/// # Errors
/// [`Error::Tap`]. One that was there is left alone.
pub fn make(name: &str, user: u32, address: Ipv4Addr) -> Result<()> {
    let failed = |what| move |cause: Errno| Error::Tap { name: name.to_owned(), what, cause: cause.into() };
    let device = open().map_err(failed("made"))?;
    let mut request = request_of(name).map_err(failed("made"))?;
    let flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | IFF_TUN_EXCL as libc::c_short;
    request.ifr_ifru.ifru_flags = flags;
    call(device.as_fd(), TUNSETIFF, &request).map_err(failed("made"))?;
    // Until it is made to last, it goes with the descriptor.
    number(&device, TUNSETOWNER, user).map_err(failed("given to its user"))?;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    let socket = socket.map_err(failed("set up"))?;
    let mask = Ipv4Addr::from(u32::MAX << (32 - u32::from(super::PREFIX)));
    for (code, value) in [(libc::SIOCSIFADDR, address), (libc::SIOCSIFNETMASK, mask)] {
        let mut request = request_of(name).map_err(failed("set up"))?;
        let address = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: 0,
            sin_addr: libc::in_addr { s_addr: u32::from(value).to_be() },
            sin_zero: [0; 8],
        };
        // SAFETY: both are plain structs of 16 bytes, and the kernel reads the one as the other.
        request.ifr_ifru.ifru_addr =
            unsafe { std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(address) };
        call(socket.as_fd(), code as libc::Ioctl, &request).map_err(failed("given its address"))?;
    }
    let mut request = request_of(name).map_err(failed("set up"))?;
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    call(socket.as_fd(), libc::SIOCSIFFLAGS as libc::Ioctl, &request).map_err(failed("switched on"))?;
    number(&device, TUNSETPERSIST, 1).map_err(failed("made to last"))
}

/// Removes a device of ours. One that is not there is no error. Blocks.
///
/// # Errors
/// [`Error::Tap`], as while something still uses it.
pub fn remove(name: &str) -> Result<()> {
    if !exists(name) {
        return Ok(());
    }
    let failed = |cause: Errno| Error::Tap { name: name.to_owned(), what: "removed", cause: cause.into() };
    let device = open().map_err(failed)?;
    let mut request = request_of(name).map_err(failed)?;
    request.ifr_ifru.ifru_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
    call(device.as_fd(), TUNSETIFF, &request).map_err(failed)?;
    number(&device, TUNSETPERSIST, 0).map_err(failed)
}

/// Whether an interface of this machine has an address in this range. Blocks.
pub fn in_use((first, last): (Ipv4Addr, Ipv4Addr)) -> bool {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the C library fills the pointer on success, and the list is freed once below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return false;
    }
    let mut found = false;
    let mut next = list;
    while !next.is_null() {
        // SAFETY: an entry of the list, which lives until it is freed; its address, if there is one, is a socket address
        // whose family says how long it is.
        unsafe {
            let address = (*next).ifa_addr;
            if !address.is_null() && i32::from((*address).sa_family) == libc::AF_INET {
                let inet = address.cast::<libc::sockaddr_in>().read_unaligned();
                let address = Ipv4Addr::from(u32::from_be(inet.sin_addr.s_addr));
                found |= (first..=last).contains(&address);
            }
            next = (*next).ifa_next;
        }
    }
    // SAFETY: the list came from `getifaddrs` and is used no more.
    unsafe { libc::freeifaddrs(list) };
    found
}

fn request_of(name: &str) -> std::result::Result<libc::ifreq, Errno> {
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    // SAFETY: all-zero is a valid value of this struct of integers and byte arrays.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    if name.as_bytes().len() >= request.ifr_name.len() {
        return Err(Errno::NAMETOOLONG);
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.as_bytes()) {
        *to = *from as libc::c_char;
    }
    Ok(request)
}

fn call(
    socket: std::os::fd::BorrowedFd<'_>,
    code: libc::Ioctl,
    request: &libc::ifreq,
) -> std::result::Result<(), Errno> {
    let mut copy = *request;
    // SAFETY: the descriptor is open, and the kernel reads a request of this struct for these codes; what it writes back
    // for TUNSETIFF goes into the copy.
    match unsafe { libc::ioctl(socket.as_raw_fd(), code, &raw mut copy) } {
        0 => Ok(()),
        _ => Err(last()),
    }
}

fn number(device: &OwnedFd, code: libc::Ioctl, value: u32) -> std::result::Result<(), Errno> {
    // SAFETY: these codes take a plain number.
    match unsafe { libc::ioctl(device.as_raw_fd(), code, libc::c_ulong::from(value)) } {
        0 => Ok(()),
        _ => Err(last()),
    }
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}
