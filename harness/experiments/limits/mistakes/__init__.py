"""Mistakes that are easily made in an asynchronous client, to be run and looked at.

    python -m harness.experiments.limits.mistakes.missing_await http://127.0.0.1:8000/
    python -m harness.experiments.limits.mistakes.session_per_request http://127.0.0.1:8000/

Each makes its mistake and then does it right, against any server, and prints what shows. They need
aiohttp.
"""
