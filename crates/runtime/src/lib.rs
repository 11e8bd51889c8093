//! Sessions on sandboxes: the one place that decides what runs where.
