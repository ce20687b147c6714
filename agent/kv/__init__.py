"""The paged KV cache: blocks, ledger, tiers."""
