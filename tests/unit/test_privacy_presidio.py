"""Presidio as the detector, where it is installed (`shoal[detector]`)."""

from __future__ import annotations

import socket

import pytest

pytest.importorskip("presidio_analyzer", reason="the optional extra 'detector' is not installed")

from orchestrator.dispatch.detector import Detector
from orchestrator.dispatch.endpoint import DetectorSettings
from orchestrator.dispatch.presidio import DetectorMissingError, load_detector


@pytest.fixture(scope="module")
def detector() -> Detector:
    return load_detector(DetectorSettings("presidio"))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Mail me at jo@example.com.", "EMAIL_ADDRESS"),
        ("My card is 4111 1111 1111 1111.", "CREDIT_CARD"),
        ("IBAN DE89370400440532013000", "IBAN_CODE"),
        ("SSN 536-90-4399", "US_SSN"),
    ],
)
def test_personal_data_is_found_without_the_network(
    detector: Detector, text: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert kind in detector.kinds(text)


def test_plain_text_is_left_alone(detector: Detector) -> None:
    assert detector.kinds("Name three fish that live in 2 rivers since 1990.") == frozenset()


def test_kind_that_needs_a_language_model_is_refused() -> None:
    with pytest.raises(DetectorMissingError, match="PERSON"):
        load_detector(DetectorSettings("presidio", entities=("PERSON",)))
