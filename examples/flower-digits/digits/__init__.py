"""Logistic regression on digits, trained by a federation."""
