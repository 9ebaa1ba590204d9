//! The listening socket: the one that systemd passes, or a new one.

use std::io;
use std::net::{SocketAddr, TcpListener};

/// Connections that may wait to be accepted: a burst of clients should not see resets.
const BACKLOG: i32 = 1024;

/// A socket handed over by systemd (or `systemd-socket-activate`), else one bound to `address`.
///
/// # Errors
/// Names the address, with the operating system's reason.
pub fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    if let Some(listener) = listenfd::ListenFd::from_env().take_tcp_listener(0)? {
        listener.set_nonblocking(true)?;
        return Ok(listener);
    }
    bind(address)
}

/// A new socket.
///
/// # Errors
/// As [`listener`].
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    open(address).map_err(|e| io::Error::new(e.kind(), format!("{address}: {e}")))
}

fn open(address: SocketAddr) -> io::Result<TcpListener> {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // Restarts bind while old connections linger. Not SO_REUSEPORT: a second daemon must fail, not share.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
