"""Demo apps: the sleep app in three styles, two common traps, and a small blog."""
