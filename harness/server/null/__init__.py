"""A server that does nothing: it answers at once, or after a seeded random delay.

A program of its own, in the standard library alone: `python -I -S harness/server/null --help`.
"""
