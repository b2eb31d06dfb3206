"""A document as one page for a browser, and its figures as pictures for what is not one."""

from workerlab.report.html.page import render
from workerlab.report.html.pictures import pictures

__all__ = ["pictures", "render"]
