"""Pure functions over numpy arrays, without I/O, without a clock, and with randomness passed in."""
