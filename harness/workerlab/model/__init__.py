"""The types that all components share: `plan`, then `evidence`, then `result`."""
