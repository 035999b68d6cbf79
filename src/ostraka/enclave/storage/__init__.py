"""What the enclave keeps on a disk that the host owns: sealed files, each written as a whole."""
