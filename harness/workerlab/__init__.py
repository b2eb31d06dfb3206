"""A lab for Gunicorn worker classes: load them, watch them, say where requests wait."""

__version__ = "0.2.0"
