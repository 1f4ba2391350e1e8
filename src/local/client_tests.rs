#![cfg(unix)]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::thread::{self, JoinHandle};

use super::*;

const SOON: Duration = Duration::from_secs(5);

/// A listener that reads one request and answers with these pieces.
fn server(dir: &Path, pieces: Vec<&'static [u8]>) -> (Client, JoinHandle<String>) {
    let path = dir.join("s.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let handle = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut seen = Vec::new();
        let mut buf = [0; 4096];
        while !seen.ends_with(b"}") && !seen.ends_with(b"\r\n\r\n") {
            let n = stream.read(&mut buf).unwrap();
            seen.extend_from_slice(&buf[..n]);
        }
        for piece in pieces {
            stream.write_all(piece).unwrap();
            stream.flush().unwrap();
        }
        String::from_utf8(seen).unwrap()
    });
    (Client::new(path), handle)
}

#[test]
fn a_request_and_its_answer_in_torn_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let (client, server) = server(
        dir.path(),
        vec![
            b"HTTP/1.1 200 OK\r\nContent-Le",
            b"ngth: 7\r\n\r\n{\"a\"",
            b":1}garbage",
        ],
    );
    let value: serde_json::Value = client
        .post("/hook", &serde_json::json!({"x": 1}), SOON)
        .unwrap();
    assert_eq!(value, serde_json::json!({"a": 1}));
    let seen = server.join().unwrap();
    assert!(seen.starts_with("POST /hook HTTP/1.1\r\n"), "{seen}");
    assert!(
        seen.ends_with("content-length: 7\r\n\r\n{\"x\":1}"),
        "{seen}"
    );
}

#[test]
fn a_chunked_answer_is_joined() {
    let dir = tempfile::tempdir().unwrap();
    let (client, _server) = server(
        dir.path(),
        vec![
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\n[1,\r",
            b"\n2\r\n2]\r\n0\r\n\r\n",
        ],
    );
    assert_eq!(client.get::<Vec<u8>>("/x", SOON).unwrap(), vec![1, 2]);
}

#[test]
fn a_problem_is_an_error_with_its_code() {
    let dir = tempfile::tempdir().unwrap();
    let (client, _server) = server(
        dir.path(),
        vec![
            b"HTTP/1.1 404 Not Found\r\n\r\n{\"code\":\"unknown_task\",\"status\":404,\"title\":\"no task\"}",
        ],
    );
    let error = client.get::<serde_json::Value>("/x", SOON).unwrap_err();
    assert_eq!(error.code(), Code::UnknownTask);
    assert_eq!(error.to_string(), "no task (unknown_task)");
}

#[test]
fn an_answer_over_the_limit_is_refused_however_it_is_framed() {
    for answer in [
        &b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n"[..],
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffff\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n0123456789abcdef",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (client, _server) = server(dir.path(), vec![answer]);
        let error = client
            .max_body(8)
            .exchange("GET", "/", b"", SOON)
            .unwrap_err();
        assert!(
            matches!(error, ClientError::TooLarge { limit: 8 }),
            "{error}"
        );
    }
}

#[test]
fn garbage_and_a_cut_answer_are_errors_and_not_panics() {
    for answer in [
        &b"SSH-2.0-x\r\n\r\n"[..],
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (client, _server) = server(dir.path(), vec![answer]);
        let error = client.exchange("GET", "/", b"", SOON).unwrap_err();
        assert_eq!(error.code(), Code::ProtocolError, "{error}");
    }
}

#[test]
fn nobody_there_is_told_apart_from_nobody_answering() {
    let dir = tempfile::tempdir().unwrap();
    let absent = Client::new(dir.path().join("none.sock"));
    assert!(matches!(
        absent.exchange("GET", "/", b"", SOON),
        Err(ClientError::NotRunning { .. })
    ));
    let path = dir.path().join("deaf.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(matches!(
        Client::new(&path).exchange("GET", "/", b"", SOON),
        Err(ClientError::NotRunning { .. })
    ));
    let silent = dir.path().join("silent.sock");
    let _listener = UnixListener::bind(&silent).unwrap();
    let began = Instant::now();
    let error = Client::new(&silent)
        .exchange("GET", "/", b"", Duration::from_millis(60))
        .unwrap_err();
    assert!(matches!(error, ClientError::Timeout), "{error}");
    assert!(began.elapsed() < SOON);
}

#[test]
fn a_stopped_daemon_with_a_full_backlog_costs_no_more_than_the_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("full.sock");
    let fd = rustix::net::socket(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    rustix::net::bind(&fd, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&fd, 1).unwrap();
    let began = Instant::now();
    let client = Client::new(&path);
    for _ in 0..5 {
        let error = client
            .exchange("GET", "/", b"", Duration::from_millis(50))
            .unwrap_err();
        assert!(matches!(error, ClientError::Timeout), "{error}");
    }
    assert!(began.elapsed() < SOON);
}

#[test]
fn a_body_that_nobody_reads_ends_at_the_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let big = vec![b'x'; 8 << 20];
    let error = Client::new(&path)
        .exchange("POST", "/", &big, Duration::from_millis(60))
        .unwrap_err();
    assert!(matches!(error, ClientError::Timeout), "{error}");
}
