"""Damaged and malicious GGUF files, made from a valid one, the same for the same seed."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
NEAR_LIMITS = (
    (1 << 63) - 1, 1 << 63, (1 << 63) + 1, (1 << 64) - 1, (1 << 64) - 32, 1 << 62, 1 << 48,
    1 << 32, (1 << 32) - 1, 1 << 31, (1 << 31) - 1,
)  # fmt: skip
HOSTILE_TEMPLATES = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'a' * 10000000000 }}",
    "{{ ('a' * 999999999) | length }}{{ ('b' * 999999999) | length }}",
    "{% for a in range(99999) %}{{ ('%0999999d' % loop.index) | length }}{% endfor %}",
    "{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
    "{{ '{:>999999999}'.format(1) }}{{ '%999999999d' % 1 }}",
    "{{ 9 ** 9 ** 9 }}",
    "{{ 1e999 | int }}",
    "{{ [].__class__.__base__.__subclasses__() }}",
    "{{ ''.__class__.__mro__[1].__subclasses__()[0].__init__.__globals__ }}",
    "{{ lipsum.__globals__['os'].popen('touch {mark}').read() }}",
    "{{ cycler.__init__.__globals__.os.system('touch {mark}') }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ raise_exception.__globals__['json'].__loader__ }}",
    "{{ strftime_now.__globals__ }}",
    "{{ (messages | map(attribute='__class__') | list)[0].__init__ }}",
    "{{ messages | attr('__class__') }}",
    "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "{% set x = messages.append(messages) %}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os.system('touch {mark}') }}",
    "{% extends 'base' %}",
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(0) }}",
    "{% set ns = namespace(s='x') %}{% for a in range(64) %}{% set ns.s = ns.s + ns.s %}"
    "{% endfor %}{{ ns.s }}",
    "{% for" + " ",
    "{{ " + "(" * 3000 + ")" * 3000 + " }}",
    "".join("{% for a in range(9) %}" for _ in range(40)) + "{% endfor %}" * 40,
    "{{ " + "-" * 20000 + "1 }}",
    "{{ " + "[" * 500 + "]" * 500 + " }}",
    "{{ strftime_now('%999999999d') }}",
    "{{ strftime_now('%Y' * 999999) }}",
    "{{ messages | tojson(indent=99999999) }}",
    "{{ undefined.attribute.of_nothing }}",
    "{{ raise_exception('no') }}",
    "{% while true %}{% endwhile %}",
    "\x00\ufffd{{ '\x00' }}",
    "{{ messages[0]['content'] }}{{ '{{ 7 * 7 }}' }}",
    "{{ 'a' | center(999999999) }}",
    "{{ range(99999) | list | tojson }}" * 40,
)


@dataclass(frozen=True, slots=True)
class Field:
    """Some bytes of a GGUF file's header and what they are; `key` is whose."""

    kind: str
    start: int
    size: int
    key: str = ""


@dataclass(frozen=True, slots=True)
class Hostile:
    """One file; `family` is how it was made, `template` only for those."""

    family: str
    content: bytes
    template: str = ""


def hostile_files(valid: bytes, count: int, seed: int) -> Iterator[Hostile]:
    """`count` files, the families in turn."""
    fields = list(fields_of(valid))
    for number in range(count):
        rng = random.Random(f"{seed}-{number}")
        family = FAMILIES[number % len(FAMILIES)]
        yield family(_Source(valid, fields, rng))


@dataclass(frozen=True, slots=True)
class _Source:
    valid: bytes
    fields: list[Field]
    rng: random.Random

    @property
    def header_bytes(self) -> int:
        return self.fields[-1].start + self.fields[-1].size

    def pick(self, *kinds: str, prefix: str = "") -> Field:
        chosen = [f for f in self.fields if f.kind in kinds and f.key.startswith(prefix)]
        return self.rng.choice(chosen)

    def put(self, field: Field, value: int) -> bytes:
        number = value % (1 << (8 * field.size))
        return self.replaced(field, number.to_bytes(field.size, "little"))

    def replaced(self, field: Field, data: bytes) -> bytes:
        return self.valid[: field.start] + data + self.valid[field.start + field.size :]


def fields_of(content: bytes) -> Iterator[Field]:
    """Every field of a valid file's header, in order."""
    yield Field("magic", 0, 4)
    yield Field("version", 4, 4)
    yield Field("count", 8, 8, "tensors")
    yield Field("count", 16, 8, "keys")
    num_tensors, num_keys = struct.unpack_from("<QQ", content, 8)
    at = 24

    def text(kind: str, key: str = "") -> Iterator[Field]:
        nonlocal at
        (length,) = struct.unpack_from("<Q", content, at)
        yield Field("length", at, 8, key)
        yield Field(kind, at + 8, length, key)
        at += 8 + length

    for _ in range(num_keys):
        (length,) = struct.unpack_from("<Q", content, at)
        key = content[at + 8 : at + 8 + length].decode()
        yield from text("key", key)
        (kind,) = struct.unpack_from("<I", content, at)
        yield Field("type", at, 4, key)
        at += 4
        if kind == _STRING:
            yield from text("text", key)
        elif kind == _ARRAY:
            element, count = struct.unpack_from("<IQ", content, at)
            yield Field("type", at, 4, key)
            yield Field("count", at + 4, 8, key)
            at += 12
            for _ in range(count):
                if element == _STRING:
                    yield from text("text", key)
                else:
                    yield Field("item", at, _SIZES[element], key)
                    at += _SIZES[element]
        else:
            yield Field("number", at, _SIZES[kind], key)
            at += _SIZES[kind]
    for _ in range(num_tensors):
        yield from text("name", "tensor")
        (dims,) = struct.unpack_from("<I", content, at)
        yield Field("dims", at, 4, "tensor")
        for number in range(dims):
            yield Field("dim", at + 4 + 8 * number, 8, "tensor")
        yield Field("type", at + 4 + 8 * dims, 4, "tensor")
        yield Field("offset", at + 8 + 8 * dims, 8, "tensor")
        at += 16 + 8 * dims


def _flips(content: bytes, rng: random.Random, limit: int) -> bytes:
    damaged = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        damaged[rng.randrange(limit)] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def _header_flips(s: _Source) -> Hostile:
    return Hostile("bit flips in the header", _flips(s.valid, s.rng, s.header_bytes))


def _flips_anywhere(s: _Source) -> Hostile:
    return Hostile("bit flips anywhere", _flips(s.valid, s.rng, len(s.valid)))


def _truncated(s: _Source) -> Hostile:
    limit = s.rng.choice((s.header_bytes, len(s.valid)))
    return Hostile("truncation", s.valid[: s.rng.randrange(limit)])


def _near_limits(s: _Source) -> Hostile:
    field = s.pick(s.rng.choice(("length", "count", "dim", "offset")))
    value = s.rng.choice(NEAR_LIMITS) + s.rng.choice((0, 0, -1, 1, -32))
    return Hostile("lengths near 2^31 to 2^64", s.put(field, value))


def _wrong_types(s: _Source) -> Hostile:
    return Hostile("wrong types", s.put(s.pick("type"), s.rng.choice((*range(48), 255, 1 << 31))))


def _deep_arrays(s: _Source) -> Hostile:
    depth = s.rng.choice((1, 2, 10, 1000, 20000))
    nested = struct.pack("<IQ", _ARRAY, s.rng.choice((1, 1, 2, 1 << 20))) * depth
    value = struct.pack("<I", _ARRAY) + nested + struct.pack("<IQ", 4, 0)
    key = s.pick("type", prefix=s.rng.choice(("general.", "llama.", "tokenizer.")))
    return Hostile("deep arrays", s.replaced(key, value))


def _huge_counts(s: _Source) -> Hostile:
    value = s.rng.choice((0, 1, 2, 1000, 10**5, 10**6, 10**7, 10**9, 10**12))
    return Hostile("huge counts", s.put(s.pick("count", "dims", "dim"), value))


def _tokenizer(s: _Source) -> Hostile:
    field = s.pick("text", "item", "number", "count", prefix="tokenizer.ggml.")
    if field.kind == "text":
        texts = (b"", b"\xff\xfe\xff", b"\x00" * 4, b"<s>", b"</s>", b"x" * 70_000, b"<0xZZ>")
        text = s.rng.choice(texts)
        length = Field("length", field.start - 8, field.size + 8)
        return Hostile("tokenizer", s.replaced(length, struct.pack("<Q", len(text)) + text))
    values = (0, 1, 2, 3, 6, 7, 291, 292, 293, 1 << 30, -1, 0x7FC00000, 0x7F800000, 0xFF800000)
    return Hostile("tokenizer", s.put(field, s.rng.choice(values)))


def _geometry(s: _Source) -> Hostile:
    content = s.valid
    for _ in range(s.rng.choice((1, 1, 2))):
        field = s.pick("number", prefix="llama.")
        value = s.rng.choice(
            (0, 1, 2, 3, 7, 16, 31, 33, 513, 4096, 1 << 20, 1 << 31, -1, 0x7FC00000)
        )
        content = _Source(content, s.fields, s.rng).put(field, value)
    return Hostile("geometry", content)


def _template(s: _Source) -> Hostile:
    template = s.rng.choice(HOSTILE_TEMPLATES)
    text = template.encode()
    field = next(f for f in s.fields if f.kind == "text" and f.key == "tokenizer.chat_template")
    length = Field("length", field.start - 8, field.size + 8)
    content = s.replaced(length, struct.pack("<Q", len(text)) + text)
    return Hostile("templates", _aligned(content, s), template)


def _aligned(content: bytes, s: _Source) -> bytes:
    """The tensors' data begins at a multiple of 32, as it did before the header grew."""
    end = s.header_bytes + len(content) - len(s.valid)
    data = s.valid[-(-s.header_bytes // 32) * 32 :]
    return content[:end] + bytes(-end % 32) + data


FAMILIES: tuple[Callable[[_Source], Hostile], ...] = (
    _header_flips, _flips_anywhere, _truncated, _near_limits, _wrong_types, _deep_arrays,
    _huge_counts, _tokenizer, _geometry, _template,
)  # fmt: skip
