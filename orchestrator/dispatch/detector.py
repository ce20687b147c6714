"""Personal data in prompts: a detector may raise a request's level, never lower it."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import structlog

from orchestrator.dispatch.endpoint import DetectorSettings
from orchestrator.dispatch.ruling import Ruling, closed
from orchestrator.request import Privacy
from shoal.v1 import inference_pb2 as pb

_log = structlog.get_logger(__name__)

_MAX_REMEMBERED = 4_096
_NOTHING = Ruling(Privacy.ANY, "No detector is configured.")


class Detector(Protocol):
    """Finds personal data; called in a thread of its own."""

    def kinds(self, text: str) -> frozenset[str]:
        """Names of the kinds of personal data in the text, never the data."""
        ...


class Screen(Protocol):
    """Judges prompts before they leave."""

    async def judge(self, request: pb.GenerateRequest) -> Ruling:
        """A level by the prompt alone; `closed` when it cannot be judged."""
        ...

    def close(self) -> None:
        """Take no more work."""
        ...


class NoScreen:
    """No detector is configured: nothing is raised."""

    async def judge(self, request: pb.GenerateRequest) -> Ruling:
        """See `Screen.judge`."""
        return _NOTHING

    def close(self) -> None:
        """See `Screen.close`."""


class DetectorScreen:
    """Asks the detector about each prompt once; remembers verdicts by the text's hash.

    Loading starts at once, in the thread that will also judge. Until it is done, when it
    failed, and for a text that takes too long, requests stay local.
    """

    def __init__(self, settings: DetectorSettings) -> None:
        self._settings = settings
        self._detector: Detector | None = None
        self._failure = ""
        self._verdicts: OrderedDict[bytes, Ruling] = OrderedDict()
        # One thread: detectors keep the CPU busy, and serving goes first.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="detector")
        self._loading = self._thread.submit(self._load)

    async def judge(self, request: pb.GenerateRequest) -> Ruling:
        """See `Screen.judge`."""
        if self._failure:
            return Ruling(Privacy.LOCAL_ONLY, self._failure)
        if self._detector is None:
            return closed("The detector of personal data is not loaded yet.")
        text = prompt_text(request)
        if text is None:
            because = "A prompt of token ids cannot be searched for personal data."
            return Ruling(Privacy.LOCAL_ONLY, because)
        digest = hashlib.sha256(text.encode("utf-8", "replace")).digest()
        known = self._verdicts.get(digest)
        if known is not None:
            return known
        ruling = await self._ask(self._detector, text)
        if not ruling.in_doubt:
            self._verdicts[digest] = ruling
            if len(self._verdicts) > _MAX_REMEMBERED:
                self._verdicts.popitem(last=False)
        return ruling

    async def loaded(self) -> None:
        """Return when loading has ended, well or not."""
        await asyncio.wrap_future(self._loading)

    def close(self) -> None:
        """See `Screen.close`."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _ask(self, detector: Detector, text: str) -> Ruling:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                kinds = await loop.run_in_executor(self._thread, detector.kinds, text)
        except TimeoutError:
            return closed("The detector of personal data did not answer in time.")
        except Exception as error:  # noqa: BLE001 - whatever a detector dies of, the text stays
            _log.warning("detector_failed", cause=type(error).__name__)
            return closed("The detector of personal data failed.")
        if not kinds:
            return Ruling(Privacy.ANY, "The detector found no personal data.")
        listed = ", ".join(sorted(kinds))
        return Ruling(
            Privacy(self._settings.raises_to), f"The detector found personal data ({listed})."
        )

    def _load(self) -> None:
        from orchestrator.dispatch.presidio import load_detector

        try:
            self._detector = load_detector(self._settings)
        except Exception as error:  # noqa: BLE001 - a detector that cannot load closes the gate
            self._failure = f"The detector of personal data cannot be loaded: {error}"
            _log.error("detector_not_loaded", cause=str(error))
        else:
            _log.info("detector_loaded", detector=self._settings.kind)


def make_screen(settings: DetectorSettings) -> NoScreen | DetectorScreen:
    """The screen that the settings ask for."""
    return DetectorScreen(settings) if settings.kind else NoScreen()


def prompt_text(request: pb.GenerateRequest) -> str | None:
    """All that the client wrote, as one text; None for token ids."""
    kind = request.WhichOneof("prompt")
    if kind == "tokens":
        return None
    if kind == "chat":
        parts = [f"{m.name}\n{m.content}" if m.name else m.content for m in request.chat.messages]
    else:
        parts = [request.text]
    # What else of a request is free text, and goes out.
    return "\n".join([*parts, *request.stop])
