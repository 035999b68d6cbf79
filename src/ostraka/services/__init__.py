"""A role + transport + clock + retries + storage + evidence from the platform."""
