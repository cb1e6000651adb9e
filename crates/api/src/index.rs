//! The HTML page at `/`: links to what a port serves.
//!
//! It contains only fixed text, so it is served without a token. Its Content-Security-Policy forbids scripts and loads.

use std::fmt::Write as _;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;

const HTML: &str = "text/html; charset=utf-8";
const POLICY: &str =
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A rendered index page. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct IndexPage(Bytes);

impl IndexPage {
    /// Renders a page with a link to each path, which its description follows.
    pub fn new<'a>(title: &str, links: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let title = escaped(title);
        let mut html = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>{title}</title></head>\n\
             <body>\n<h1>{title}</h1>\n<ul>\n"
        );
        for (path, description) in links {
            let (path, description) = (escaped(path), escaped(description));
            // Writing to a string cannot fail.
            let _ = writeln!(
                html,
                "<li><a href=\"{path}\">{path}</a>: {description}</li>"
            );
        }
        html.push_str("</ul>\n</body>\n</html>\n");
        Self(html.into())
    }

    /// Returns the page as an HTTP response.
    pub fn response(&self) -> Response {
        let mut response = Response::new(Body::from(self.0.clone()));
        let headers: [(HeaderName, &'static str); 4] = [
            (header::CONTENT_TYPE, HTML),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
        ];
        for (name, value) in headers {
            response
                .headers_mut()
                .insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        let page = IndexPage::new("<T>", [("/a\"b", "x & y")]);
        let html = std::str::from_utf8(&page.0).unwrap();
        assert!(html.contains("<h1>&lt;T&gt;</h1>"), "{html}");
        assert!(
            html.contains("<li><a href=\"/a&quot;b\">/a&quot;b</a>: x &amp; y</li>"),
            "{html}"
        );
    }
}
