"""Sample posts, the same ones every time."""

import random

from apps.blog.posts import Draft

TOPICS = (
    "queues", "threads", "sockets", "caches", "workers", "timeouts", "backlogs", "event loops",
    "connections", "retries", "percentiles", "round trips",
)  # fmt: skip
MOODS = ("quiet", "patient", "sudden", "crowded", "forgotten", "honest", "slow", "cheerful")
VERBS = ("wait for", "depend on", "measure", "forget", "share", "outlive", "explain", "hide")
PARAGRAPHS = 8
AT = 1_700_000_000  # their creation time, seconds since 1970: fixed, so that pages never change


def draft(number: int) -> Draft:
    """The sample post of this number, from 1."""
    dice = random.Random(number)

    def sentence() -> str:
        mood, topic, verb, other = (
            dice.choice(MOODS), dice.choice(TOPICS), dice.choice(VERBS), dice.choice(TOPICS),
        )  # fmt: skip
        share = dice.randint(2, 97)
        return f"Most {mood} {topic} {verb} *{other}*, and {share} of a hundred do so twice."

    def paragraph() -> str:
        return " ".join(sentence() for _ in range(dice.randint(2, 5)))

    title = f"{number}. On {dice.choice(MOODS)} {dice.choice(TOPICS)}"
    parts = [paragraph() for _ in range(PARAGRAPHS)]
    parts.insert(2, f"## What {dice.choice(TOPICS)} have to do with it")
    parts.insert(4, "\n".join(f"- {sentence()}" for _ in range(3)))
    parts.insert(6, f"> {sentence()}")
    parts.insert(8, f"    wait({dice.random():.3f})  # seconds")
    return Draft.of(title, "\n\n".join(parts))
