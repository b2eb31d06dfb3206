"""Mistakes that are easily made in an asynchronous client, as load tools.

    python -m harness.load.mistakes.missing_await http://127.0.0.1:8000/
    python -m harness.load.mistakes.session_per_request http://127.0.0.1:8000/

Each program makes its mistake and then does it right, against any server, and prints what shows.
They need aiohttp. `tool` makes a load tool of each form of each.
"""
