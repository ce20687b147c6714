"""The install script with this fleet's values in it; the hash of the file list among them.

Who checks the script's hash thereby checks everything that it installs from us.
"""

from __future__ import annotations

import re

from shoal import __version__
from shoal.onboarding.sources import install_script
from shoal.onboarding.wheel import wheel_name

# Nothing that a shell would read as more than a word goes between the script's quotes.
_PLAIN = re.compile(r"[A-Za-z0-9._:/\[\]-]*")


def filled_script(gateway_url: str, index_sha256: str) -> bytes:
    """The script for one list of files; an empty URL must be given when it is run.

    Raises ValueError when the URL holds what no URL of a gateway holds.
    """
    values = {
        "@GATEWAY_URL@": gateway_url,
        "@INDEX_SHA256@": index_sha256,
        "@VERSION@": __version__,
        "@WHEEL@": wheel_name(),
    }
    text = install_script().read_text(encoding="utf-8")
    for mark, value in values.items():
        if not _PLAIN.fullmatch(value):
            raise ValueError(f"{value!r} cannot stand in the install script")
        if text.count(mark) != 1:
            raise ValueError(f"the install script must name {mark} once")
        text = text.replace(mark, value)
    return text.encode()
