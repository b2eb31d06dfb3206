"""200 MB in each worker; waits 50 ms."""

import time

from common import app_that

DATA = [bytes([i % 256]) * 1000 for i in range(200_000)]
app = app_that(lambda: time.sleep(0.05 if len(DATA) else 0.0))
