"""The mathematics: pure functions over numpy arrays. No I/O, no clock, no randomness of its own."""
