//! What a supervisor sees: readiness, the end, the watchdog, and a socket that it opened itself.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{Connection, Daemon, PATIENCE, ask, command, set_environment};
use crate::{whole, with};

const FAKE: [&str; 5] = ["serve", "--backend", "fake", "--listen", "127.0.0.1:0"];

/// The next message to the supervisor.
fn told(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 4096];
    let n = socket
        .recv(&mut buffer)
        .expect("a message to the supervisor");
    String::from_utf8_lossy(&buffer[..n]).trim().to_owned()
}

fn nothing_told(socket: &UnixDatagram) -> bool {
    socket.set_nonblocking(true).unwrap();
    let nothing = socket.recv(&mut [0]).is_err();
    socket.set_nonblocking(false).unwrap();
    nothing
}

fn notified(
    bind: impl FnOnce() -> (UnixDatagram, String),
    settings: &[(&str, &str)],
) -> (Daemon, UnixDatagram) {
    let (socket, name) = bind();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = command(&FAKE, settings);
    command.env("NOTIFY_SOCKET", name);
    (Daemon::spawn(command), socket)
}

fn in_a_file(directory: &tempfile::TempDir) -> (UnixDatagram, String) {
    let path = directory.path().join("notify");
    (
        UnixDatagram::bind(&path).unwrap(),
        path.to_str().unwrap().to_owned(),
    )
}

fn abstract_name() -> (UnixDatagram, String) {
    let name = format!("cadenced-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    (
        UnixDatagram::bind_addr(&address).unwrap(),
        format!("@{name}"),
    )
}

fn assert_tells_of_readiness_and_of_the_end(mut d: Daemon, socket: &UnixDatagram) {
    let first = told(socket);
    assert!(first.lines().any(|l| l == "READY=1"), "{first}");
    // Said only when it is so: no waiting here.
    assert_eq!(d.get("/ready").status, 200);
    whole(&d, "at once", 3, true);
    let mut open = d.chat(&ask("open", 300, true));
    open.read_text(1);
    d.signal("TERM");
    assert!(told(socket).lines().any(|l| l == "STOPPING=1"));
    assert!(open.rest().is_done(), "it stops after this, not before");
    assert_eq!(d.wait().code(), Some(0));
}

/// B104, by a socket in the file system and by an abstract one.
#[test]
fn the_supervisor_is_told_of_readiness_and_of_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let settings = with("1000", &[]);
    let (d, socket) = notified(|| in_a_file(&directory), &settings);
    assert_tells_of_readiness_and_of_the_end(d, &socket);
    let (d, socket) = notified(abstract_name, &settings);
    assert_tells_of_readiness_and_of_the_end(d, &socket);
}

/// While the model warms up the daemon listens, lives, and has not said that it is ready.
#[test]
fn readiness_is_told_after_the_warm_up_only() {
    let directory = tempfile::tempdir().unwrap();
    // The warm-up's prompt says Hello, so the warm-up stalls.
    let settings = with(
        "0",
        &[
            ("fake.fault", "stall"),
            ("fake.fault_marker", "Hello"),
            ("fake.fault_at_token", "3"),
            ("fake.stall_ms", "600"),
        ],
    );
    let (d, socket) = notified(|| in_a_file(&directory), &settings);
    assert_eq!(d.get("/health").status, 200);
    assert_eq!(d.get("/ready").status, 503);
    assert_eq!(d.chat(&ask("early", 3, true)).response().status, 503);
    assert!(nothing_told(&socket), "it was not ready");
    assert_eq!(told(&socket), "READY=1");
    assert_eq!(d.get("/ready").status, 200);
}

#[test]
fn the_supervisors_watchdog_is_fed_while_a_decode_blocks() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, name) = in_a_file(&directory);
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let settings = with(
        "1000",
        &[
            ("fake.fault", "stall"),
            ("fake.fault_marker", "STALL"),
            ("fake.fault_at_token", "1"),
            ("fake.stall_ms", "600000"),
            ("lifecycle.step_age_limit_s", "2"),
        ],
    );
    let mut command = command(&FAKE, &settings);
    command
        .env("NOTIFY_SOCKET", name)
        .env("WATCHDOG_USEC", "200000");
    let mut d = Daemon::spawn(command).ready();
    let mut stalled = d.chat(&ask("STALL", 10, true));
    stalled.read_text(2);
    while !nothing_told(&socket) {}
    let mut fed = 0;
    while fed < 3 {
        fed += usize::from(told(&socket) == "WATCHDOG=1");
    }
    assert!(stalled.says_nothing(), "fed while nothing moved");
    // From here on the supervisor does not read: that must not keep the daemon from noticing what hangs.
    assert_eq!(d.wait().code(), Some(70), "{}", d.log());
}

/// Without a supervisor nothing is said, and nothing is missed.
#[test]
fn a_supervisor_that_is_not_there_is_no_error() {
    let mut command = command(&FAKE, &with("0", &[]));
    command.env("NOTIFY_SOCKET", "/nowhere/notify");
    let mut d = Daemon::spawn(command).ready();
    whole(&d, "served", 3, true);
    d.signal("TERM");
    assert_eq!(d.wait().code(), Some(0), "{}", d.log());
}

/// A socket that was open before the daemon: a client may be waiting on it already.
#[test]
fn a_socket_that_the_supervisor_opened_is_served() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    let mut early = Connection::open(addr);
    early.send("GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    // The shell becomes the daemon, so that its process id is the one that the socket is meant for.
    let script = format!(
        "exec env LISTEN_FDS=1 LISTEN_PID=$$ {} serve --backend fake --listen 127.0.0.1:1 3<&0",
        env!("CARGO_BIN_EXE_cadenced")
    );
    let mut command = Command::new("sh");
    command
        .args(["-c", &script])
        .stdin(Stdio::from(OwnedFd::from(socket)));
    set_environment(&mut command, &with("0", &[]));
    let d = Daemon::spawn(command).ready();
    assert_eq!(d.addr, addr, "not the one in the settings");
    assert_eq!(early.response().status, 200);
    whole(&d, "served", 3, true);
}

/// The same with systemd's own tool, which starts the daemon at the first connection.
#[test]
fn systemd_socket_activate_starts_it_at_the_first_connection() {
    const TOOL: &str = "systemd-socket-activate";
    if Command::new(TOOL).arg("--version").output().is_err() {
        println!("skipped: no {TOOL}");
        return;
    }
    // The tool takes no port 0; one that was free a moment ago will do.
    let addr = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut command = Command::new(TOOL);
    command.args([
        "--listen",
        &addr.to_string(),
        env!("CARGO_BIN_EXE_cadenced"),
    ]);
    command.args(&FAKE[..3]);
    set_environment(&mut command, &with("0", &[]));
    // It hands on only the variables that it is told to.
    let names: Vec<_> = command
        .get_envs()
        .filter_map(|(k, v)| v.and(k.to_str()))
        .map(str::to_owned)
        .collect();
    let mut tool = Command::new(TOOL);
    tool.args(command.get_args().take(2));
    for name in names {
        tool.args(["--setenv", &name]);
    }
    tool.args(command.get_args().skip(2));
    set_environment(&mut tool, &with("0", &[]));
    let knocks = std::thread::spawn(move || {
        let end = std::time::Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(addr).is_err() {
            assert!(std::time::Instant::now() < end, "nobody listens");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let d = Daemon::spawn(tool).ready();
    knocks.join().unwrap();
    assert_eq!(d.addr, addr);
    whole(&d, "served", 3, true);
}
