"""A small CNN on CIFAR-10, trained by a federation."""
