//! Names and numbers of addresses, by the system's resolver (getaddrinfo(3), getnameinfo(3)).

use std::ffi::{CStr, CString, c_int};
use std::net::{IpAddr, SocketAddr};

use socket2::SockAddr;

use crate::tcl::{Interp, c_string, error_name, error_text};

/// The address family that the variable `::tcl::unsupported::socketAF` of Tcl's core prescribes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    #[default]
    Any,
    V4,
    V6,
}

impl Family {
    pub(crate) fn of(interp: Interp) -> Self {
        match interp.global(c"::tcl::unsupported::socketAF").as_deref() {
            Some("inet") => Family::V4,
            Some("inet6") => Family::V6,
            _ => Family::Any,
        }
    }
}

/// The error of a look-up: a negative number of the resolver (`EAI_NONAME`, getaddrinfo(3)), or a system error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LookupError(pub(crate) i32);

impl LookupError {
    fn new(code: c_int) -> Self {
        match code {
            libc::EAI_SYSTEM => {
                LookupError(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL))
            }
            code => LookupError(code),
        }
    }

    /// The resolver's own text.
    pub(crate) fn text(self) -> String {
        if self.0 > 0 {
            return error_text(self.0);
        }
        // SAFETY: the function returns a static string for every number.
        unsafe { CStr::from_ptr(libc::gai_strerror(self.0)) }.to_string_lossy().into_owned()
    }

    /// The symbolic name.
    pub(crate) fn name(self) -> String {
        match self.0 {
            error @ 1.. => error_name(error),
            libc::EAI_NONAME => "EAI_NONAME".into(),
            libc::EAI_NODATA => "EAI_NODATA".into(),
            libc::EAI_AGAIN => "EAI_AGAIN".into(),
            libc::EAI_FAIL => "EAI_FAIL".into(),
            libc::EAI_FAMILY => "EAI_FAMILY".into(),
            libc::EAI_SERVICE => "EAI_SERVICE".into(),
            libc::EAI_MEMORY => "EAI_MEMORY".into(),
            code => format!("EAI_{}", -code),
        }
    }
}

/// Whether a host is given by its address, which the resolver converts without files and servers.
pub(crate) fn is_numeric(host: &str) -> bool {
    resolve(Some(host), 0, Family::Any, libc::AI_NUMERICHOST).is_ok()
}

/// The stream addresses of a host in the resolver's order; `None`: the loopback addresses, or with `binds` the
/// wildcard addresses.
pub(crate) fn look_up(
    host: Option<&str>,
    port: i32,
    family: Family,
    binds: bool,
) -> Result<Vec<SocketAddr>, LookupError> {
    let flags = if binds { libc::AI_PASSIVE } else { 0 };
    let mut addresses = resolve(host, port, family, flags)?;
    if binds {
        // IPv4 first: older scripts expect the first name of a listener to be one.
        addresses.sort_by_key(|address| !address.is_ipv4());
    }
    Ok(addresses)
}

fn resolve(
    host: Option<&str>,
    port: i32,
    family: Family,
    flags: c_int,
) -> Result<Vec<SocketAddr>, LookupError> {
    let host = host.map(c_string);
    let port = (port != 0).then(|| c_string(&port.to_string()));
    // The resolver accepts the absence of one of them only.
    let port = if host.is_none() { port.or_else(|| Some(c_string("0"))) } else { port };
    // SAFETY: all zeros is a valid value of this plain structure.
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    hints.ai_family = match family {
        Family::Any => libc::AF_UNSPEC,
        Family::V4 => libc::AF_INET,
        Family::V6 => libc::AF_INET6,
    };
    hints.ai_socktype = libc::SOCK_STREAM;
    hints.ai_flags = flags;
    let mut list = std::ptr::null_mut();
    // SAFETY: strings or null, valid hints, and a place for the result.
    let code = unsafe {
        libc::getaddrinfo(pointer(host.as_ref()), pointer(port.as_ref()), &raw const hints, &raw mut list)
    };
    if code != 0 {
        return Err(LookupError::new(code));
    }
    let mut addresses = Vec::new();
    let mut entry = list;
    // SAFETY: a list of the resolver: each entry has an address of the given length, and is null at the end. It is
    // freed once, after its last use.
    unsafe {
        while let Some(info) = entry.as_ref() {
            let copied = SockAddr::try_init(|storage, length| {
                let size = info.ai_addrlen;
                std::ptr::copy_nonoverlapping(info.ai_addr.cast::<u8>(), storage.cast::<u8>(), size as usize);
                *length = size;
                Ok(())
            });
            addresses.extend(copied.ok().and_then(|((), address)| address.as_socket()));
            entry = info.ai_next;
        }
        libc::freeaddrinfo(list);
    }
    Ok(addresses)
}

fn pointer(text: Option<&CString>) -> *const std::ffi::c_char {
    text.map_or(std::ptr::null(), |text| text.as_ptr())
}

/// The name of an address by reverse look-up, which may take long; its number if there is no name.
pub(crate) fn host_name(address: SocketAddr) -> String {
    name_info(address, 0).unwrap_or_else(|| host_number(address))
}

fn name_info(address: SocketAddr, flags: c_int) -> Option<String> {
    let raw = SockAddr::from(address);
    let mut host = [0_u8; libc::NI_MAXHOST as usize];
    // SAFETY: a valid address and a buffer of the given length.
    let code = unsafe {
        libc::getnameinfo(
            raw.as_ptr().cast(),
            raw.len(),
            host.as_mut_ptr().cast(),
            host.len() as libc::socklen_t,
            std::ptr::null_mut(),
            0,
            flags,
        )
    };
    let name = CStr::from_bytes_until_nul(&host).ok()?;
    (code == 0).then(|| name.to_string_lossy().into_owned())
}

/// The number of an address, with the zone of a link-local one.
pub(crate) fn host_number(address: SocketAddr) -> String {
    match address {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => {
            name_info(address, libc::NI_NUMERICHOST).unwrap_or_else(|| v6.ip().to_string())
        }
        _ => address.ip().to_string(),
    }
}

/// The elements that `-sockname` and `-peername` have for one address: number, name, port.
pub(crate) fn name_elements(address: SocketAddr, interp: Option<Interp>) -> [String; 3] {
    let is_any = match address.ip() {
        IpAddr::V4(v4) => v4.is_unspecified(),
        IpAddr::V6(v6) => v6.is_unspecified() || v6.to_ipv4_mapped().is_some_and(|v4| v4.is_unspecified()),
    };
    let is_numeric =
        is_any || interp.is_some_and(|interp| interp.global(c"::tcl::unsupported::noReverseDNS").is_some());
    let number = host_number(address);
    let name = if is_numeric { number.clone() } else { host_name(address) };
    [number, name, address.port().to_string()]
}

/// A port number from a number or a service name, for a `socket` command.
pub(crate) fn port_number(
    text: &crate::tcl::Value,
    interp: Interp,
) -> Result<i32, crate::tcl::CommandFailed> {
    let number = match text.to_integer(None) {
        Ok(number) => number,
        Err(_) => match service_port(&text.to_text(), c"tcp") {
            Some(port) => port,
            None => text.to_integer(Some(interp))?,
        },
    };
    if number > 0xffff {
        return Err(interp.fail("couldn't open socket: port number too high"));
    }
    Ok(number)
}

/// The port of a service of a protocol by its name (services(5)).
pub(crate) fn service_port(name: &str, protocol: &CStr) -> Option<i32> {
    let name = c_string(name);
    // SAFETY: strings; the result is static until the next call of this thread, and is read at once.
    unsafe {
        let entry = libc::getservbyname(name.as_ptr(), protocol.as_ptr()).as_ref()?;
        Some(i32::from(u16::from_be(entry.s_port as u16)))
    }
}
