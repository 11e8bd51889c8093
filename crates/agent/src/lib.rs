//! Host side of the guest agent of Moltis.
