//! gRPC over one HTTP/2 connection: a request, and its answer or answers.
//!
//! The head and the message of a request are written in one piece. Clients that write them one
//! after the other wake the server twice, which takes longer than all the work here.

use std::future::poll_fn;
use std::marker::PhantomData;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::client::{Builder, SendRequest};
use h2::{RecvStream, SendStream};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, StatusCode, Uri};
use percent_encoding::percent_decode;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};

/// How many bytes of answers may be under way.
const WINDOW: u32 = 4 << 20;
/// The length of the header of a message: a byte for its compression, and its size.
const PREFIX: usize = 5;

/// A connection. Clones share it.
#[derive(Clone)]
pub(crate) struct Channel {
    requests: SendRequest<Bytes>,
    scheme: Scheme,
    authority: Authority,
}

/// The reason why there is no answer: the server's error, or the connection's.
#[derive(Debug)]
pub(crate) struct Status {
    pub(crate) code: u32,
    pub(crate) message: String,
}

/// The codes of gRPC that are used here.
pub(crate) mod code {
    pub(crate) const UNKNOWN: u32 = 2;
    pub(crate) const INVALID_ARGUMENT: u32 = 3;
    pub(crate) const PERMISSION_DENIED: u32 = 7;
    pub(crate) const RESOURCE_EXHAUSTED: u32 = 8;
    pub(crate) const FAILED_PRECONDITION: u32 = 9;
    pub(crate) const OUT_OF_RANGE: u32 = 11;
    pub(crate) const UNIMPLEMENTED: u32 = 12;
    pub(crate) const UNAVAILABLE: u32 = 14;
    pub(crate) const UNAUTHENTICATED: u32 = 16;
}

/// A message as it is sent.
#[derive(Clone)]
pub(crate) struct Framed(Bytes);

impl Framed {
    pub(crate) fn new(message: &impl Message) -> Self {
        let length = message.encoded_len();
        let mut framed = Vec::with_capacity(PREFIX + length);
        framed.put_u8(0);
        framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
        message.encode_raw(&mut framed);
        Framed(framed.into())
    }

    /// Returns how many bytes it has.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Channel {
    /// Begins to speak over a connection, and drives it in a task of its own.
    pub(crate) async fn open<S>(
        stream: S,
        scheme: Scheme,
        authority: Authority,
    ) -> Result<Self, h2::Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut builder = Builder::new();
        builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW);
        let (requests, connection) = builder.enable_push(false).handshake(stream).await?;
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(Channel { requests, scheme, authority })
    }

    /// Returns when a request can be sent. Fails if the connection has come to its end.
    pub(crate) async fn ready(&mut self) -> Result<(), h2::Error> {
        poll_fn(|context| self.requests.poll_ready(context)).await
    }

    /// Sends a request, and returns its answer.
    pub(crate) async fn ask<A: Message + Default>(
        &mut self,
        path: &'static str,
        message: Framed,
        token: Option<HeaderValue>,
    ) -> Result<A, Status> {
        let mut answers = self.send(path, message, token, true).await?;
        let answer = answers.next().await?;
        let answer = answer.ok_or_else(|| unknown("an answer without a message".into()))?;
        while answers.next().await?.is_some() {}
        Ok(answer)
    }

    /// Sends the first message of a request, and returns its answers, one after the other. The
    /// request ends when they are dropped.
    pub(crate) async fn stream<A: Message + Default>(
        &mut self,
        path: &'static str,
        message: Framed,
        token: Option<HeaderValue>,
    ) -> Result<Answers<A>, Status> {
        self.send(path, message, token, false).await
    }

    async fn send<A: Message + Default>(
        &mut self,
        path: &'static str,
        message: Framed,
        token: Option<HeaderValue>,
        is_all: bool,
    ) -> Result<Answers<A>, Status> {
        self.ready().await?;
        let (response, mut request) = self.requests.send_request(self.head(path, token), false)?;
        request.send_data(message.0, is_all)?;
        let (head, body) = response.await?.into_parts();
        if head.status != StatusCode::OK {
            return Err(unknown(format!("HTTP status {}: is this etcd?", head.status)));
        }
        // An error without a message has its status in the head.
        if head.headers.contains_key("grpc-status") {
            end(&head.headers)?;
        }
        Ok(Answers { request, body, read: BytesMut::new(), answer: PhantomData })
    }

    fn head(&self, path: &'static str, token: Option<HeaderValue>) -> Request<()> {
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(self.scheme.clone());
        uri.authority = Some(self.authority.clone());
        uri.path_and_query = Some(PathAndQuery::from_static(path));
        let mut head = Request::new(());
        *head.method_mut() = Method::POST;
        // All three parts are there.
        *head.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
        let headers = head.headers_mut();
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        if let Some(token) = token {
            headers.insert("token", token);
        }
        head
    }
}

/// Answers to one request.
pub(crate) struct Answers<A> {
    /// The server ends a stream whose client has closed its side, which this does when it is
    /// dropped.
    request: SendStream<Bytes>,
    body: RecvStream,
    /// Bytes of a message that is not complete yet.
    read: BytesMut,
    answer: PhantomData<A>,
}

impl<A: Message + Default> Answers<A> {
    /// Sends another message of the request.
    pub(crate) fn send(&mut self, message: Framed) -> Result<(), Status> {
        Ok(self.request.send_data(message.0, false)?)
    }

    /// Waits for the next answer. Returns none after the last one, and fails if the server does not
    /// call that a success. A caller may give up waiting, and wait again.
    pub(crate) async fn next(&mut self) -> Result<Option<A>, Status> {
        loop {
            if let Some(message) = taken(&mut self.read)? {
                let odd = |error: prost::DecodeError| unknown(error.to_string());
                return A::decode(message).map(Some).map_err(odd);
            }
            let Some(chunk) = self.body.data().await else { break };
            let chunk = chunk?;
            self.body.flow_control().release_capacity(chunk.len())?;
            self.read.extend_from_slice(&chunk);
        }
        let trailers = self.body.trailers().await?;
        end(&trailers.unwrap_or_default()).map(|()| None)
    }
}

/// Removes the next message from the bytes that were read, if all of it is there.
fn taken(read: &mut BytesMut) -> Result<Option<Bytes>, Status> {
    let Some((&[compressed, a, b, c, d], rest)) = read.split_first_chunk::<PREFIX>() else {
        return Ok(None);
    };
    if compressed != 0 {
        return Err(unknown("a compressed answer, which nobody asked for".into()));
    }
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if rest.len() < length {
        return Ok(None);
    }
    read.advance(PREFIX);
    Ok(Some(read.split_to(length).freeze()))
}

/// Reads the status at the end of an answer.
fn end(headers: &HeaderMap) -> Result<(), Status> {
    let number = headers.get("grpc-status").and_then(|value| value.to_str().ok()?.parse().ok());
    let text = headers.get("grpc-message").map(HeaderValue::as_bytes).unwrap_or_default();
    match number {
        Some(0) => Ok(()),
        Some(code) => {
            let message = percent_decode(text).decode_utf8_lossy().into_owned();
            Err(Status { code, message })
        }
        None => Err(unknown("an answer without a status: is this etcd?".into())),
    }
}

fn unknown(message: String) -> Status {
    Status { code: code::UNKNOWN, message }
}

impl From<h2::Error> for Status {
    fn from(error: h2::Error) -> Self {
        unknown(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[derive(Clone, PartialEq, Message)]
    struct Text {
        #[prost(string, tag = "1")]
        text: String,
    }

    #[test]
    fn messages_are_taken_when_they_are_complete() {
        let message = |text: &str| Text { text: text.into() };
        let mut both = BytesMut::from(&Framed::new(&message("one")).0[..]);
        both.extend_from_slice(&Framed::new(&message("two")).0);
        let mut read = BytesMut::new();
        let mut found = Vec::new();
        for byte in both {
            read.extend_from_slice(&[byte]);
            while let Some(taken) = taken(&mut read).unwrap() {
                found.push(Text::decode(taken).unwrap());
            }
        }
        assert_eq!(found, [message("one"), message("two")]);
        assert!(read.is_empty());
        assert!(taken(&mut BytesMut::from(&[1, 0, 0, 0, 0][..])).is_err());
        assert_eq!(taken(&mut BytesMut::from(&[0, 0, 0, 0, 0][..])).unwrap(), Some(Bytes::new()));
    }

    #[test]
    fn only_the_status_zero_is_a_success() {
        let with = |status: &'static str, message: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-status", HeaderValue::from_static(status));
            headers.insert("grpc-message", HeaderValue::from_static(message));
            end(&headers)
        };
        assert!(with("0", "").is_ok());
        let refused = with("7", "permission%20denied: %C3%BC").unwrap_err();
        assert_eq!((refused.code, refused.message.as_str()), (7, "permission denied: ü"));
        assert_eq!(with("", "").unwrap_err().code, code::UNKNOWN);
        assert_eq!(end(&HeaderMap::new()).unwrap_err().code, code::UNKNOWN);
    }
}
