"""The paged KV cache: blocks of 128 tokens, from host memory to the fleet's shared tier.

    opening         builds it all from settings
    prefix_cache    what the step loop calls; joins codec and block cache
    selfcheck       start-up proof that the codec knows this library's state layout
    codec           state blobs to blocks and back (layout, state_reader)
    cache           begin, poll, take, offer, close over all tiers
    tails           prefixes of any length: partial blocks, where KV depends on no cut
    tail_files      partial blocks on disk: names, and the search among them
    ledger          pure: tables, pins, claims (lru: one tier's books)
    fetching        one sequence's way to its prefix
    policy, link    pure: fetch or recompute; breaker, speed, bandwidth budget
    host, disk, redis_tier    where bytes lie (shelf, write_behind, reading: threads)
    seal            authenticated encryption of what leaves this process's memory
    budget          how much memory the cache gets, explained

Invariants: a hash covers all that decides a block's bytes; what enters equals a cold
prefill: any computed token where the kernel makes it so, else only whole blocks
prefilled in canonical cuts; partial blocks stay on the device; only contiguous,
authenticated blocks are restored; nothing here blocks the owner thread; no failure of
a tier is an error.
"""
