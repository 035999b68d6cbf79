"""Aggregation rules, one file a family: a rule turns a Gram matrix into a plan."""
