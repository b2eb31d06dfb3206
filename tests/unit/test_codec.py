"""Types that several threads decode for the first time."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

# In each round all threads decode a new type for the first time. If another thread is still
# inspecting the type, `msgspec.json.decode` crashes the interpreter, usually in the first rounds
READERS = """
import sys, threading
import msgspec
from workerlab import codec

DEPTH, THREADS, ROUNDS = 60, 3, 30
sys.setswitchinterval(1e-5)
document = {"a": 1}
for number in range(10, 0, -1):
    document = {"a": 1, "inner": document}
results = []
for number in range(ROUNDS):
    kind = msgspec.defstruct("Last", [("a", int)])
    for depth in range(DEPTH):
        kind = msgspec.defstruct(f"Level{depth}", [("a", int), ("inner", kind | None, None)])
    barrier = threading.Barrier(THREADS)
    def read():
        barrier.wait()
        results.append(codec.convert(document, kind) if number % 2 else
                       codec.decode(codec.encode(document), kind))
    threads = [threading.Thread(target=read) for _ in range(THREADS)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
print(len(results), {result.inner.inner.a for result in results})
"""


def test_several_threads_decode_a_new_type() -> None:
    argv = [sys.executable, "-X", "faulthandler", "-c", READERS]
    result = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout) == (0, "90 {1}\n"), result.stderr
