"""Apps whose requests wait, compute, or both."""

import hashlib
import random
import time

from common import app_that, compute


def wait_and_compute() -> None:
    compute(0.005)
    time.sleep(0.03)


waits = app_that(lambda: time.sleep(0.05))
computes = app_that(lambda: compute(0.02))
mixed = app_that(wait_and_compute)
heavy_tail = app_that(lambda: time.sleep(1.0 if random.random() < 0.03 else 0.03))
# About 15 ms in a library
releases_gil = app_that(lambda: hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 30_000))
