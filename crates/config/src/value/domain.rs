//! Domain patterns of the network policy.

use moltis_sandbox::DomainPattern;

use super::{Context, Text};
use crate::error::InvalidValue;

/// A domain pattern.
pub struct Domain;

impl Text for Domain {
    type Value = DomainPattern;

    const NAME: &'static str = "domain pattern";
    const EXAMPLE: &'static str = "*.example.com";

    fn parse(text: &str, _: &Context) -> Result<DomainPattern, InvalidValue> {
        text.parse().map_err(|why: moltis_sandbox::domain::NoPattern| {
            InvalidValue::malformed(text, "a domain pattern", &why.to_string())
        })
    }

    fn text(value: &DomainPattern) -> String {
        value.to_string()
    }
}
