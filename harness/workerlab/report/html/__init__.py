"""A document as one HTML page, and its figures as images for use elsewhere."""

from workerlab.report.html.page import render
from workerlab.report.html.pictures import pictures

__all__ = ["pictures", "render"]
