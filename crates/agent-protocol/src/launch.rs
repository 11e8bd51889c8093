//! What the host tells the launch helper: the plan of a `namespaces` sandbox. Policy is decided on the host; the
//! helper carries the plan out step by step and knows none of its reasons.
