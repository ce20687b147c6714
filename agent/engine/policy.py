"""How prefill and decode share the steps of the loop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchingPolicy:
    """Latency mode up to a threshold of concurrent requests, throughput mode above it.

    A step is one prefill chunk or one decode of all running sequences. In latency
    mode running streams get a token after every chunk, so that a long prompt stalls
    them for one chunk at a time. In throughput mode several chunks run in a row:
    slots that are filled early make every later decode step worth more.
    """

    # DOMAIN.md: dynamic batching when more than 4 requests are concurrent.
    threshold: int = 4
    throughput_chunks: int = 4
    # A fast stream's tokens leave together, at most so far apart: each frame costs every
    # hop about as much as a small model's token. 20 and 10 frames a second look smooth;
    # a first token, an end and an error never wait.
    latency_frame_s: float = 0.05
    throughput_frame_s: float = 0.1

    def chunks_between_decodes(self, num_concurrent: int) -> int:
        """Prefill chunks that may run before running streams get their next token."""
        return 1 if num_concurrent <= self.threshold else self.throughput_chunks

    def frame_interval_s(self, num_concurrent: int) -> float:
        """For how long new text may wait for more to be sent with it."""
        return self.latency_frame_s if num_concurrent <= self.threshold else self.throughput_frame_s

    def prefills_next(
        self, *, num_concurrent: int, num_decoding: int, chunks_since_decode: int
    ) -> bool:
        """Whether the next step is a prefill chunk, given that one is waiting."""
        if num_decoding == 0:
            return True
        return chunks_since_decode < self.chunks_between_decodes(num_concurrent)
