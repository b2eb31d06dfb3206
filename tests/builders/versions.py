"""The versions of Gunicorn in the tests. To download them:

python -m tests.builders.versions
"""

from workerlab.server.versions import provide

VERSIONS = ("23.0.0", "24.1.1", "25.3.0", "26.2.0", "27.0.1")

if __name__ == "__main__":
    for version in VERSIONS:
        provide(version)
