"""Demo apps to load: the sleep app in three styles, and the two traps users fall into."""
