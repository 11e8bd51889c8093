//! The stand-in for Apple's `container` that the tests put on a search path of their own.

fn main() {
    moltis_testkit::apple::main()
}
