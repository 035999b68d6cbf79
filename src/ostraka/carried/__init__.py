"""A federation carried by another framework's messages."""
