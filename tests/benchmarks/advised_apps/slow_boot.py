"""Takes four seconds to import; waits 50 ms."""

import time

from common import app_that

time.sleep(4)
app = app_that(lambda: time.sleep(0.05))
