//! The document of the API as the page has it, in `ui/openapi.json`.

use std::path::Path;

use moltis_gateway::openapi;
use serde_json::Value;

/// `MOLTIS_WRITE=1 cargo test -p moltis-gateway document` writes it anew.
#[test]
fn the_page_has_the_document_that_the_gateway_serves() {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ui/openapi.json");
    let now = openapi::document();
    if std::env::var_os("MOLTIS_WRITE").is_some() {
        let text = serde_json::to_string_pretty(now).unwrap();
        std::fs::write(&place, format!("{text}\n")).unwrap();
    }
    let written: Value =
        serde_json::from_str(&std::fs::read_to_string(&place).unwrap_or_default()).unwrap_or_default();
    assert!(
        written == *now,
        "ui/openapi.json is not what the gateway serves: run `MOLTIS_WRITE=1 cargo test -p moltis-gateway document`"
    );
}
