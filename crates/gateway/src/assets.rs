//! The web page: its files, embedded by the build, and what a browser is told to allow them.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::response::Response;

use crate::problem::Problem;
use crate::route::Answered;

/// A file of the page.
struct File {
    /// Its path in addresses, from the root.
    path: &'static str,
    plain: &'static [u8],
    gzip: Option<&'static [u8]>,
    brotli: Option<&'static [u8]>,
}

include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// What the page may do: run and be styled by its own files, speak with its own gateway, show images that it was given.
/// Nothing of it is inline, nothing comes from elsewhere, and nobody frames it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Beginnings of paths that are never the page's.
const OTHERS: [&str; 6] = ["/api", "/mcp", "/metrics", "/healthz", "/readyz", "/assets"];

/// Whether the page is there.
pub fn is_there() -> bool {
    !FILES.is_empty()
}

/// The page itself, which is asked for each time: the names of its files change with what is in them.
pub fn page(headers: &HeaderMap) -> Response {
    let mut response = match find("/index.html") {
        Some(file) => sent(file, headers),
        None => {
            let mut response = Response::new(Body::from(format!(
                "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
                 content=\"width=device-width\">\n<title>Moltis</title>\n<h1>Moltis</h1>\n<p>{MISSING} Everything but \
                 the page works.</p>\n<p>To get it, install Node.js 20.19 or later with npm, and build the program \
                 again: <code>cargo build</code>.</p>\n<p>The API is at <code>/api/v1</code>, and <a \
                 href=\"/api/v1/openapi.json\">its document</a> says what it can do.</p>\n</html>\n"
            )));
            let kind = HeaderValue::from_static("text/html; charset=utf-8");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            response
        }
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    response
}

/// A file of the page by its path, such as `/assets/index-1a2b.js`.
///
/// # Errors
/// `page-file-missing`.
pub fn file(path: &str, headers: &HeaderMap) -> Answered {
    let Some(file) = find(path).filter(|_| path != "/index.html") else {
        let path: String = path.chars().take(200).collect();
        return Err(Problem::missing("page-file-missing", format!("the page has no file {path:?}"))
            .fix("load the page anew: it was of another version"));
    };
    let mut response = sent(file, headers);
    // The name of what lies there holds a hash of it.
    let kept = if path.starts_with("/assets/") { "public, max-age=31536000, immutable" } else { "no-cache" };
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static(kept));
    Ok(response)
}

/// Whether what is asked for is a place of the page: places are addresses without files.
pub fn is_place(method: &Method, path: &str, headers: &HeaderMap) -> bool {
    let other = OTHERS
        .iter()
        .any(|other| path.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
    if other || !matches!(*method, Method::GET | Method::HEAD) {
        return false;
    }
    // A program that wants JSON is told that there is none.
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("*/*");
    accept.contains("text/html") || accept.contains("*/*")
}

fn find(path: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.path == path)
}

/// A file in the shortest form that is accepted.
fn sent(file: &'static File, headers: &HeaderMap) -> Response {
    let accepted = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let accepted: Vec<_> = accepted.flat_map(|list| list.split(',')).filter(|one| !is_refused(one)).collect();
    let accepts = |coding: &str| {
        accepted
            .iter()
            .any(|one| one.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(coding))
    };
    let (bytes, coding) = match (file.brotli, file.gzip) {
        (Some(bytes), _) if accepts("br") => (bytes, Some("br")),
        (_, Some(bytes)) if accepts("gzip") => (bytes, Some("gzip")),
        _ => (file.plain, None),
    };
    let mut response = Response::new(Body::from(bytes));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind(file.path)));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if let Some(coding) = coding {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding));
    }
    response
}

/// Whether a coding is named as one that is not wanted.
fn is_refused(coding: &str) -> bool {
    let weight =
        coding.split(';').skip(1).find_map(|part| part.trim().strip_prefix("q=")?.trim().parse::<f32>().ok());
    weight == Some(0.0)
}

fn kind(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("woff2") => "font/woff2",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_the_page_s_and_the_rest_is_not() {
        let mut headers = HeaderMap::new();
        for path in ["/sandboxes", "/sessions/team%2Fa", "/apiary", "/network", "/favicon.ico"] {
            assert!(is_place(&Method::GET, path, &headers), "{path}");
        }
        for path in ["/api", "/api/v1/nothing", "/mcp/x/y", "/metrics/x", "/healthz/", "/assets/old.js"] {
            assert!(!is_place(&Method::GET, path, &headers), "{path}");
        }
        assert!(!is_place(&Method::POST, "/sandboxes", &headers));
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        assert!(!is_place(&Method::GET, "/sandboxes", &headers));
        headers.insert(header::ACCEPT, HeaderValue::from_static("text/html,application/xhtml+xml"));
        assert!(is_place(&Method::GET, "/sandboxes", &headers));
    }

    #[test]
    fn a_file_is_sent_in_a_form_that_is_accepted() {
        static FILE: File =
            File { path: "/a.js", plain: b"plain", gzip: Some(b"gzip"), brotli: Some(b"brotli") };
        for (accepted, coding) in [
            (None, None),
            (Some("gzip, deflate, br, zstd"), Some("br")),
            (Some("gzip"), Some("gzip")),
            (Some("br;q=0, gzip;q=0.5"), Some("gzip")),
            (Some("GZIP"), Some("gzip")),
            (Some("identity"), None),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(accepted) = accepted {
                headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(accepted));
            }
            let response = sent(&FILE, &headers);
            let found = response.headers().get(header::CONTENT_ENCODING).map(|value| value.to_str().unwrap());
            assert_eq!(found, coding, "{accepted:?}");
            assert_eq!(response.headers()[header::CONTENT_TYPE], "text/javascript; charset=utf-8");
        }
    }
}
