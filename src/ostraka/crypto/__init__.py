"""Secrets in use: random streams, sealed updates, worker channels and receipts."""
