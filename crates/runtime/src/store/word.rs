//! Values of sessions that travel as one word or string, read by the rules of moltis.toml.

use std::borrow::Cow;

use moltis_config::value::domain::Domain;
use moltis_config::value::image::ImageReference;
use moltis_config::value::{Context, Text};
use moltis_config::words::{BackendChoice, OnUnknown, Words};
use moltis_config::{InvalidValue, parse_image};
use moltis_sandbox::DomainPattern;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value that is written as one string.
pub trait Word: Sized {
    /// Reads it.
    fn read(text: &str) -> Result<Self, InvalidValue>;
    /// Writes it.
    fn show(&self) -> String;
}

macro_rules! words {
    ($($name:ty),*) => {$(
        impl Word for $name {
            fn read(text: &str) -> Result<Self, InvalidValue> {
                Words::parse(text)
            }

            fn show(&self) -> String {
                self.word().to_owned()
            }
        }
    )*};
}

words!(BackendChoice, OnUnknown);

impl Word for ImageReference {
    fn read(text: &str) -> Result<Self, InvalidValue> {
        parse_image(text)
    }

    fn show(&self) -> String {
        self.as_str().to_owned()
    }
}

impl Word for DomainPattern {
    fn read(text: &str) -> Result<Self, InvalidValue> {
        Domain::parse(text, &Context::default())
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// Carries a [`Word`] through serde.
struct Carried<T>(T);

impl<T: Word> Serialize for Carried<&T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.show())
    }
}

impl<'de, T: Word> Deserialize<'de> for Carried<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        T::read(&text).map(Self).map_err(|why| {
            let told = why.diagnosis("value");
            let fix = told.fix.as_ref().map_or(String::new(), |fix| format!("; {fix}"));
            serde::de::Error::custom(format!("{why}{fix}"))
        })
    }
}

/// `#[serde(with)]` for a value that may be absent.
pub mod option {
    use super::*;

    /// Writes it.
    pub fn serialize<T: Word, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        value.as_ref().map(Carried).serialize(serializer)
    }

    /// Reads it.
    pub fn deserialize<'de, T: Word, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
        Ok(Option::<Carried<T>>::deserialize(deserializer)?.map(|carried| carried.0))
    }
}

/// `#[serde(with)]` for a list that may be absent.
pub mod list {
    use super::*;

    /// Writes it.
    pub fn serialize<T: Word, S: Serializer>(
        value: &Option<Vec<T>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let carried: Option<Vec<_>> = value.as_ref().map(|list| list.iter().map(Carried).collect());
        carried.serialize(serializer)
    }

    /// Reads it.
    pub fn deserialize<'de, T: Word, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<T>>, D::Error> {
        let carried = Option::<Vec<Carried<T>>>::deserialize(deserializer)?;
        Ok(carried.map(|list| list.into_iter().map(|carried| carried.0).collect()))
    }
}

/// `#[serde(with)]` for a change of a value.
pub mod patch {
    use super::*;
    use crate::store::overrides::Patch;

    /// Reads it.
    pub fn deserialize<'de, T: Word, D: Deserializer<'de>>(deserializer: D) -> Result<Patch<T>, D::Error> {
        super::option::deserialize(deserializer).map(Patch::from)
    }
}

/// `#[serde(with)]` for a change of a list.
pub mod list_patch {
    use super::*;
    use crate::store::overrides::Patch;

    /// Reads it.
    pub fn deserialize<'de, T: Word, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Patch<Vec<T>>, D::Error> {
        super::list::deserialize(deserializer).map(Patch::from)
    }
}
