"""Nested limits of time: really run, drawn, and explored."""
