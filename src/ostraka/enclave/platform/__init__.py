"""What the machine gives to the enclave: evidence about its code, and a key for its state."""
