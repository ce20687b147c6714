"""Microsoft Presidio as a detector: its pattern recognisers, without a language model.

They find what has a form: card and account numbers, e-mail addresses, telephone
numbers, identity numbers. Names and places need a language model, which this does not
load. An optional dependency (`shoal[detector]`), imported when it is configured.
"""

from __future__ import annotations

from typing import Any

from orchestrator.dispatch.detector import Detector
from orchestrator.dispatch.endpoint import DetectorSettings

# Kinds that identify somebody or open an account. Left out by default: dates, URLs and
# UUIDs, which nearly every text has.
DEFAULT_ENTITIES = (
    "CREDIT_CARD",
    "CRYPTO",
    "EMAIL_ADDRESS",
    "IBAN_CODE",
    "IP_ADDRESS",
    "MEDICAL_LICENSE",
    "PHONE_NUMBER",
    "UK_NHS",
    "US_ITIN",
    "US_SSN",
)
_LANGUAGE = "en"


class DetectorMissingError(Exception):
    """The detector cannot be used; the message says what to install or change."""


def load_detector(settings: DetectorSettings) -> Detector:
    """Load Presidio; seconds and about 150 MB. Raises DetectorMissingError."""
    try:
        from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
        from presidio_analyzer.nlp_engine import NoOpNlpEngine
        from tldextract import tldextract
    except ImportError as error:
        raise DetectorMissingError(
            f"install it with `pip install 'shoal[detector]'` ({error.name} is missing)"
        ) from error
    # Else the first e-mail address has it fetch the list of domains from the network.
    tldextract.TLD_EXTRACTOR = tldextract.TLDExtract(cache_dir=None, suffix_list_urls=())
    registry = RecognizerRegistry(supported_languages=[_LANGUAGE])
    registry.load_predefined_recognizers(languages=[_LANGUAGE])
    # It reads what a language model found, and there is none.
    registry.remove_recognizer("SpacyRecognizer")
    model = {"lang_code": _LANGUAGE, "model_name": "none"}
    nlp_engine = NoOpNlpEngine(models=[model])
    nlp_engine.load()
    engine = AnalyzerEngine(
        registry=registry, nlp_engine=nlp_engine, supported_languages=[_LANGUAGE]
    )
    entities = settings.entities or DEFAULT_ENTITIES
    unknown = set(entities) - set(engine.get_supported_entities(_LANGUAGE))
    if unknown:
        raise DetectorMissingError(
            f"privacy.entities: {', '.join(sorted(unknown))} cannot be found by patterns"
        )
    return PresidioDetector(engine, tuple(entities), settings.min_score)


class PresidioDetector:
    """See `Detector`."""

    def __init__(self, engine: Any, entities: tuple[str, ...], min_score: float) -> None:
        self._engine = engine
        self._entities = entities
        self._min_score = min_score

    def kinds(self, text: str) -> frozenset[str]:
        """See `Detector.kinds`; about a millisecond per kilobyte."""
        found = self._engine.analyze(
            text=text,
            language=_LANGUAGE,
            entities=list(self._entities),
            score_threshold=self._min_score,
        )
        return frozenset(str(result.entity_type) for result in found)
