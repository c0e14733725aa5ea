//! Connections through a proxy that answers as a test says.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write, copy};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use super::*;
use crate::stub::{Stub, grant};
use crate::transport::Transport;

/// Gives this answer to requests for a tunnel, and returns their heads.
fn proxy(answer: &'static str) -> (String, Receiver<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (heads, asked) = channel();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let lines = BufReader::new(client.try_clone().unwrap()).lines();
            let head: Vec<_> = lines.map_while(Result::ok).take_while(|l| !l.is_empty()).collect();
            client.write_all(answer.as_bytes()).unwrap();
            if answer.contains("200") {
                let server = head[0].split(' ').nth(1).unwrap();
                let mut server = TcpStream::connect(server).unwrap();
                let mut back = (server.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || copy(&mut back.0, &mut back.1));
                let mut client = client;
                thread::spawn(move || {
                    let _ = copy(&mut client, &mut server);
                    server.shutdown(Shutdown::Both)
                });
            }
            // The test may have ended.
            let _ = heads.send(head);
        }
    });
    (format!("http://aladdin:opensesame@{address}"), asked)
}

/// Sends one request to the server through a proxy.
fn sent(server: &ServerUrl, proxy: &str) -> Outcome {
    let mut connections = Connections::new(server, None, RootCertStore::empty()).unwrap();
    assert!(connections.proxy.is_none(), "a loopback address needs none");
    connections.proxy = Matcher::builder().all(proxy).build().intercept(&connections.uri);
    let transport = Arc::new(Transport::new(connections));
    let (name, owner, wait, min_token) = ("n".into(), "a".into(), 0.0, None);
    let (ttl, note) = (3.0, None);
    let (tick_ms, attempts, schedule) = (None, None, None);
    let claim = litelease_wire::Claim {
        name,
        owner,
        ttl,
        wait,
        min_token,
        note,
        tick_ms,
        attempts,
        schedule,
    };
    let same = Arc::clone(&transport);
    let request = Message::new(&claim, Duration::from_secs(60));
    transport.wait(async move { same.send(request).await }).unwrap()
}

#[test]
fn a_proxy_is_asked_for_a_tunnel_with_its_password() {
    let stub = Stub::new(grant);
    let server = ServerUrl::parse(stub.url()).unwrap();
    let (url, heads) = proxy("HTTP/1.1 200 Connection established\r\nvia: test\r\n\r\n");
    assert!(matches!(sent(&server, &url), Outcome::Done(value) if value["token"] == 1));
    let address = server.loopback.unwrap();
    assert_eq!(
        heads.recv().unwrap(),
        [
            format!("CONNECT {address} HTTP/1.1"),
            format!("Host: {address}"),
            "Proxy-Authorization: Basic YWxhZGRpbjpvcGVuc2VzYW1l".to_owned(),
        ]
    );
    let (url, _heads) = proxy("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n");
    assert!(matches!(sent(&server, &url), Outcome::Unknown(why) if why.contains("407")));
    let gone = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", gone.local_addr().unwrap());
    drop(gone);
    assert!(matches!(sent(&server, &url), Outcome::Unreached(_)));
    assert_eq!(stub.count("/v1/claim"), 1, "nothing goes past the proxy");
}
