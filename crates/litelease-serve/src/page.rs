//! The files of the web page, compiled into the program.

use bytes::Bytes;

use crate::response::{Response, TEXT};

/// A static file.
pub(crate) struct File {
    pub(crate) path: &'static str,
    kind: &'static str,
    text: &'static str,
}

/// Lists files of the folder `page` under their own names.
macro_rules! files {
    ($($path:literal: $kind:expr, $file:literal;)*) => {
        /// All files.
        pub(crate) const FILES: &[File] = &[$(File {
            path: $path,
            kind: $kind,
            text: include_str!(concat!("../page/", $file)),
        }),*];
    };
}

files! {
    "/": HTML, "index.html";
    "/page.js": SCRIPT, "page.js";
    "/live.js": SCRIPT, "live.js";
    "/words.js": SCRIPT, "words.js";
    "/parts.js": SCRIPT, "parts.js";
    "/overview.js": SCRIPT, "overview.js";
    "/name.js": SCRIPT, "name.js";
    "/queue.js": SCRIPT, "queue.js";
    "/past.js": SCRIPT, "past.js";
    "/ask.js": SCRIPT, "ask.js";
    "/vendor/preact.js": SCRIPT, "vendor/preact.js";
    "/vendor/LICENSES": TEXT, "vendor/LICENSES";
    "/style.css": STYLE, "style.css";
    "/icon.svg": "image/svg+xml", "icon.svg";
    "/try": HTML, "try.html";
    "/try.js": SCRIPT, "try.js";
    "/try.css": STYLE, "try.css";
    "/pool.js": SCRIPT, "pool.js";
    "/chart.js": SCRIPT, "chart.js";
    "/docs": HTML, "docs.html";
    "/docs.js": SCRIPT, "docs.js";
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// Allows nothing from other sites, no inline scripts, and no framing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

impl File {
    pub(crate) fn response(&self) -> Response {
        let text = Bytes::from_static(self.text.as_bytes());
        Response::new(200, self.kind, text).with("content-security-policy", POLICY)
    }
}
