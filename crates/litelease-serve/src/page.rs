//! The files of the web page, which are part of the program.

use axum::http::header;
use axum::response::{IntoResponse, Response};

/// A file that is served as it is.
pub(crate) struct File {
    pub(crate) path: &'static str,
    kind: &'static str,
    text: &'static str,
}

/// Every file.
pub(crate) const FILES: &[File] = &[];

/// Nothing from anywhere else, no inline script, in nobody's frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

impl IntoResponse for &'static File {
    fn into_response(self) -> Response {
        let headers =
            [(header::CONTENT_TYPE, self.kind), (header::CONTENT_SECURITY_POLICY, POLICY)];
        (headers, self.text).into_response()
    }
}
