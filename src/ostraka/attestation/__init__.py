"""Evidence and policy: verifiers that take bytes and raise; simulation under its own root."""
