//! Lets a thread take the present boot of the machine for another one, in proofs that are built
//! with `--cfg planted`.

pub use litelease_store::boot::Boot;
#[cfg(planted)]
pub use litelease_store::boot::pretend;

/// Fails: this build cannot pretend.
#[cfg(not(planted))]
pub fn pretend(_: Option<Boot>) {
    panic!("build with `--cfg planted`, as `cargo proof` and `make test` do");
}
