//! The contract that every backend of Moltis meets, attack cases and stand-ins.
