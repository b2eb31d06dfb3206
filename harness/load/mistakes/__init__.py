"""Mistakes that are easily made in an asynchronous client, as programs and as load tools (`tool`).

Each program makes its mistake and then does it right, against any server, and prints what shows.
"""
