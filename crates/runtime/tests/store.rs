//! The store shared by many processes, killed at any moment, on a full disk and on one that cannot be written to.

mod child;
mod concurrency;
mod kill;
mod places;
