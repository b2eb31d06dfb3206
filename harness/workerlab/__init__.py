"""A lab for Gunicorn worker classes: load them, observe them, and show where requests wait."""

__version__ = "0.2.0"
