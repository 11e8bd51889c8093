//! Confinement of PID 1 before it serves.
