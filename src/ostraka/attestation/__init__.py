"""Evidence and policies: verifiers take bytes and raise, and simulation has a root of its own."""
