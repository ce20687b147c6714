"""Which requests run on this device for the hub, and whether new ones are taken."""

from __future__ import annotations

from shoal.errors import Reason, ShoalError


class RequestLedger:
    """Running requests by id, each with the model that serves it.

    A request is in the ledger from its submit until its terminal update, its
    cancel, its engine's death or the loss of the hub, whichever is first; an
    update of a request that is not in the ledger has no reader.
    """

    def __init__(self) -> None:
        self._model_of: dict[str, str] = {}
        self._of_model: dict[str, set[str]] = {}
        self._draining = ""

    def __len__(self) -> int:
        return len(self._model_of)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._model_of

    @property
    def draining(self) -> bool:
        """True once new requests are refused."""
        return bool(self._draining)

    def drain(self, reason: str) -> None:
        """Refuse new requests from now on; running ones go on."""
        self._draining = reason or "draining"

    def open(self, request_id: str, model: str) -> None:
        """Enter a request; ShoalError when draining or when the id runs already."""
        if self._draining:
            raise ShoalError(Reason.DRAINING, f"the device takes no new requests: {self._draining}")
        if not request_id or request_id in self._model_of:
            raise ShoalError(
                Reason.INVALID_ARGUMENT,
                "request_id is empty or of a request that runs; use a fresh one",
                param="request_id",
            )
        self._model_of[request_id] = model
        self._of_model.setdefault(model, set()).add(request_id)

    def close(self, request_id: str) -> str | None:
        """Remove a request and return its model; None when it was not there."""
        model = self._model_of.pop(request_id, None)
        if model is not None:
            self._of_model[model].discard(request_id)
        return model

    def close_model(self, model: str) -> tuple[str, ...]:
        """Remove and return all requests of one model, in no order."""
        request_ids = tuple(self._of_model.pop(model, ()))
        for request_id in request_ids:
            del self._model_of[request_id]
        return request_ids

    def close_all(self) -> dict[str, str]:
        """Remove and return all requests: id -> model."""
        removed, self._model_of = self._model_of, {}
        self._of_model.clear()
        return removed

    def check_integrity(self) -> None:
        """Raise RuntimeError when the two indexes differ."""
        flat = {r: m for m, requests in self._of_model.items() for r in requests}
        if flat != self._model_of:
            raise RuntimeError(f"ledger indexes differ: {flat} and {self._model_of}")
