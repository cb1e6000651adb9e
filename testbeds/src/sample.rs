//! How much of a long search a test does.

/// Returns the stride of a search: `every` in `make test`, and 1 in `make soak`, which tries everything.
pub fn sample(every: usize) -> usize {
    match std::env::var_os("NODEYARD_SOAK") {
        Some(_) => 1,
        None => every,
    }
}
