"""Quality against the share that goes on, and whether a calibrated threshold hits its share.

    python -m bench.cascade --edge SmolLM2.Q4_0.gguf --cloud SmolLM2.Q8_0.gguf --out FILE

Two real engines answer the questions of bench/data/cascade_questions.tsv, greedy, and the edge
tells its confidence. Both are quantisations of one 135M model, since no larger model is to be had
from a package index: the "cloud" is better by what its precision gives and knows nothing else.
The score's constants were chosen on the questions with even numbers; the figures that
count are of the others. `--answers FILE` keeps what the engines said, or uses what is there.
A threshold is made from half of `--unlabelled` further questions, and tried on the other half.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.cascade_prompts import unlabelled_questions
from bench.machine import machine
from orchestrator.dispatch.cascade.calibration import share_threshold
from orchestrator.dispatch.cascade.confidence import Confidence, TokenFigures
from shoal.v1 import inference_pb2 as pb
from tests.harness.engine_process import Answer, engine_client, running_engine

QUESTIONS = Path(__file__).parent / "data" / "cascade_questions.tsv"
INSTRUCTION = "Answer with one word or number."
MAX_TOKENS = 24
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
SPLITS = 200


@dataclass(frozen=True, slots=True)
class Question:
    kind: str
    text: str
    accepted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Said:
    """What an engine answered; figures are (log-probability, entropy, margin) a token."""

    text: str
    figures: tuple[tuple[float, float, float], ...]

    @property
    def score(self) -> float:
        confidence = Confidence()
        for each in self.figures:
            confidence.add(TokenFigures(*each))
        return confidence.score


def questions() -> list[Question]:
    lines = [line for line in QUESTIONS.read_text().splitlines() if not line.startswith("#")]
    rows = [line.split("\t") for line in lines]
    return [Question(kind, text, tuple(accepted.split("|"))) for kind, text, accepted in rows]


def is_right(question: Question, said: str) -> bool:
    """An accepted answer stands in the first sentence, the question's own numbers apart."""
    said = said.strip()
    first = re.split(r"(?<=[.!?])\s|\n", said)[0].lower() if said else ""
    for number in re.findall(r"\d+", question.text):
        first = re.sub(rf"(?<![\w.]){number}(?![\w.])", " ", first, count=1)
    return any(
        re.search(rf"(?<![\w.]){re.escape(each.lower())}(?!\w|\.\d)", first)
        for each in question.accepted
    )


async def ask(model: Path, asked: Sequence[str]) -> list[Said]:
    """All answers of one engine, eight at once."""
    with running_engine(model, "--context", "512", "--slots", "8") as engine:
        async with engine_client(engine) as client:
            places = asyncio.Semaphore(8)

            async def one(question: str) -> Answer:
                messages = [
                    pb.ChatMessage(role="system", content=INSTRUCTION),
                    pb.ChatMessage(role="user", content=question),
                ]
                request = pb.GenerateRequest(
                    chat=pb.ChatPrompt(messages=messages),
                    sampling=pb.Sampling(temperature=0),
                    max_tokens=MAX_TOKENS,
                    measure_confidence=True,
                )
                async with places:
                    return await client.run(request)

            answers = await asyncio.gather(*(one(each) for each in asked))
    return [
        Said(
            answer.text,
            tuple(
                zip(
                    answer.confidence.logprob,
                    answer.confidence.entropy,
                    answer.confidence.margin,
                    strict=True,
                )
            ),
        )
        for answer in answers
    ]


def curve(scores: list[float], edge: list[bool], cloud: list[bool]) -> dict[str, object]:
    """Right answers when the least confident go on, beside the straight line."""
    order = sorted(range(len(scores)), key=lambda n: scores[n])
    right = [sum(edge)]
    for n in order:
        right.append(right[-1] + cloud[n] - edge[n])
    count = len(scores)
    line = [sum(edge) + (sum(cloud) - sum(edge)) * n / count for n in range(count + 1)]
    gains = [100 * (a - b) / count for a, b in zip(right, line, strict=True)]
    return {
        "questions": count,
        "edge_alone": round(right[0] / count, 4),
        "cloud_alone": round(right[-1] / count, 4),
        "mean_gain_points": round(statistics.fmean(gains), 2),
        "worst_gain_points": round(min(gains), 2),
        "points_above_line_share": round(sum(g > 0 for g in gains[1:-1]) / (count - 1), 3),
        "auc": round(auc(scores, edge), 4),
        "points": [
            {
                "share": share,
                "quality": round(right[round(share * count)] / count, 4),
                "line": round(line[round(share * count)] / count, 4),
            }
            for share in (n / 10 for n in range(11))
        ],
    }


def auc(scores: list[float], right: list[bool]) -> float:
    """Chance that a right answer has the higher confidence of one right and one wrong."""
    good = [s for s, ok in zip(scores, right, strict=True) if ok]
    bad = [s for s, ok in zip(scores, right, strict=True) if not ok]
    wins = sum((g > b) + 0.5 * (g == b) for g in good for b in bad)
    return wins / (len(good) * len(bad))


def calibration(scores: list[float]) -> dict[str, object]:
    """Thresholds from every second answer, tried on the others; and random halves, many times."""
    return {
        "prompts_each_half": len(scores) // 2,
        "splits": SPLITS,
        "targets": [_held_out(scores, share) for share in SHARES],
    }


def _held_out(scores: list[float], share: float) -> dict[str, float]:
    dice = random.Random(11)
    errors = []
    for _ in range(SPLITS):
        mixed = dice.sample(scores, len(scores))
        errors.append(100 * abs(_reached(mixed[::2], mixed[1::2], share) - share))
    return {
        "share": share,
        "reached": round(_reached(scores[::2], scores[1::2], share), 4),
        "mean_error_points": round(statistics.fmean(errors), 2),
        "within_3_points": round(sum(error <= 3 for error in errors) / SPLITS, 3),
    }


def _reached(made_from: list[float], tried_on: list[float], share: float) -> float:
    threshold = share_threshold(made_from, share)
    return sum(score < threshold for score in tried_on) / len(tried_on)


def report(
    asked: list[Question], edge: list[Said], cloud: list[Said], unlabelled: list[Said]
) -> dict[str, object]:
    scores = [said.score for said in edge]
    right = [
        [is_right(question, each.text) for question, each in zip(asked, said, strict=True)]
        for said in (edge, cloud)
    ]
    return {
        "machine": machine(),
        "chosen_on": curve(scores[::2], right[0][::2], right[1][::2]),
        "held_out": curve(scores[1::2], right[0][1::2], right[1][1::2]),
        "all": curve(scores, *right),
        "calibration": calibration([said.score for said in unlabelled] or scores),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--edge", type=Path)
    parser.add_argument("--cloud", type=Path)
    parser.add_argument("--answers", type=Path)
    parser.add_argument("--unlabelled", type=int, default=2000, help="0: the labelled ones")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    asked = questions()
    if options.answers is not None and options.answers.exists():
        kept = json.loads(options.answers.read_text())
        edge, cloud, more = (
            [Said(**row) for row in kept.get(name, ())] for name in ("edge", "cloud", "unlabelled")
        )
    else:
        texts = [question.text for question in asked]
        more_texts = unlabelled_questions(options.unlabelled)
        said = asyncio.run(ask(options.edge, [*texts, *more_texts]))
        edge, more = said[: len(texts)], said[len(texts) :]
        cloud = asyncio.run(ask(options.cloud, texts))
        if options.answers is not None:
            rows = {"edge": edge, "cloud": cloud, "unlabelled": more}
            kept = {name: [asdict(each) for each in said] for name, said in rows.items()}
            options.answers.write_text(json.dumps(kept))
    found = report(asked, edge, cloud, more)
    options.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
