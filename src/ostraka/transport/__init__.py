"""Moves bytes (gRPC), and knows no roles."""
