"""A document as one page for a browser, and its figures as pictures for what is not one."""

from harness.report.html.page import render
from harness.report.html.pictures import pictures

__all__ = ["pictures", "render"]
