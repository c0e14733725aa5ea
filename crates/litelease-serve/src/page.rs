//! The files of the web page, compiled into the program.

use bytes::Bytes;

use crate::response::Response;

/// A static file.
pub(crate) struct File {
    pub(crate) path: &'static str,
    kind: &'static str,
    text: &'static str,
}

/// All files.
pub(crate) const FILES: &[File] = &[
    File { path: "/", kind: HTML, text: include_str!("../page/index.html") },
    File { path: "/docs", kind: HTML, text: include_str!("../page/docs.html") },
    File {
        path: "/style.css",
        kind: "text/css; charset=utf-8",
        text: include_str!("../page/style.css"),
    },
    File { path: "/icon.svg", kind: "image/svg+xml", text: include_str!("../page/icon.svg") },
    File { path: "/app.js", kind: SCRIPT, text: include_str!("../page/app.js") },
    File { path: "/pool.js", kind: SCRIPT, text: include_str!("../page/pool.js") },
    File { path: "/chart.js", kind: SCRIPT, text: include_str!("../page/chart.js") },
    File { path: "/docs.js", kind: SCRIPT, text: include_str!("../page/docs.js") },
];

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Allows nothing from other sites, no inline scripts, and no framing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

impl File {
    pub(crate) fn response(&self) -> Response {
        let text = Bytes::from_static(self.text.as_bytes());
        Response::new(200, self.kind, text).with("content-security-policy", POLICY)
    }
}
