//! The reference page of the documentation, made from the table of keys.
