//! What the daemon tells its supervisor, by systemd's protocol; nothing where there is none.
//!
//! sd-notify's own function takes the name of an abstract socket for a path, and waits for as long as the
//! supervisor does not read.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixDatagram;

use sd_notify::NotifyState;

/// Tells the supervisor of `state`, without ever waiting for it.
///
/// # Errors
/// When there is a supervisor and it could not be told.
pub fn notify(state: NotifyState<'_>) -> io::Result<()> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
        return Ok(());
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    match name.as_bytes().strip_prefix(b"@") {
        Some(name) => connect_abstract(&socket, name)?,
        None => socket.connect(OsStr::new(&name))?,
    }
    socket.send(format!("{state}\n").as_bytes()).map(|_| ())
}

#[cfg(target_os = "linux")]
fn connect_abstract(socket: &UnixDatagram, name: &[u8]) -> io::Result<()> {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::SocketAddr;
    socket.connect_addr(&SocketAddr::from_abstract_name(name)?)
}

#[cfg(not(target_os = "linux"))]
fn connect_abstract(_: &UnixDatagram, _: &[u8]) -> io::Result<()> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "abstract sockets are Linux's",
    ))
}
