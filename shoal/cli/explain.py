"""`shoal explain`: why a request went where it went, by the values that decided it."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from shoal.cli.addresses import part
from shoal.cli.commands import admin_client, reported
from shoal.cli.output import JsonFlag, answer, joules_text, ms_text, print_json

# Answers that a cascade had no use for, though their device or endpoint did not fail.
_NOT_USED = frozenset({"cancelled", "hopeless", "low_confidence", "no_answer", "slow"})


@reported
def explain(
    request_id: Annotated[str, typer.Argument(help="From x-shoal-request-id.")],
    as_json: JsonFlag = False,
) -> None:
    """Show a request's routing decision: candidates, rejections, predicted and actual."""
    path = f"/shoal/v1/decisions/{part(request_id, 'request')}"
    record = admin_client().get(path)
    if as_json:
        print_json(record)
        return
    answer.print(f"[bold]{escape(record['request_id'])}[/bold]  {escape(record['model'])}")
    answer.print(f"tier      {record['tier']}", markup=False)
    if record["class_order"]:
        answer.print(f"classes   {' > '.join(record['class_order'])}", markup=False)
    answer.print(f"decision  {record['reason']}", markup=False, soft_wrap=True)
    answer.print(f"outcome   {record['outcome']}", markup=False)
    if record.get("queue_ms"):
        answer.print(f"queued    {record['queue_ms']:.0f} ms in the hub", markup=False)
    for attempt in record["attempts"]:
        end = attempt_end(attempt["failed"])
        answer.print(f"attempt   {attempt['device_name']}: {end}", markup=False)
    lines = (*cascade_lines(record), *drafted_lines(record), *cost_lines(record))
    for line in filter(None, (*lines, prefill_line(record), *cache_lines(record))):
        answer.print(line, markup=False, soft_wrap=True)
    if record["candidates"]:
        answer.print()
        answer.print(_candidate_table(record["candidates"]))
    if record["actual"]:
        answer.print()
        answer.print(_comparison(record))


def attempt_end(failed: str) -> str:
    """How one attempt ended; `failed` as in the record."""
    if failed in _NOT_USED:
        return f"not used: {failed}"
    return f"failed: {failed}" if failed else "served"


def cost_lines(record: dict[str, Any]) -> list[str]:
    """How far the request might travel, and tokens and money by tier; none in older records."""
    lines = [f"privacy   {record['privacy']}"] if record.get("privacy") else []
    money = record.get("money_by_tier", {})
    for tier, tokens in record.get("tokens_by_tier", {}).items():
        line = f"used      {tier}: {tokens['prompt']} + {tokens['completion']} tokens"
        if tier in money:
            amount = f"{money[tier]['amount']:.9f}".rstrip("0").rstrip(".")
            line += f", {amount} {money[tier]['currency']}"
        joules = record.get("joules_by_tier", {}).get(tier)
        if joules is not None:
            line += f", {joules:.3g} J"
        lines.append(line)
    if record.get("usage_flags"):
        lines.append(f"usage     {', '.join(record['usage_flags'])}")
    return lines


def cascade_lines(record: dict[str, Any]) -> list[str]:
    """What a cascade decided and by which values; none for other requests."""
    told = record.get("cascade")
    if not told:
        return []
    reason = told["reason"].replace("_", " ") or "cancelled"
    lines = [f"mode      {record['mode']} {told['policy']}: {told['decision']}, {reason}"]
    if told["confidence"] is not None:
        lines.append(
            f"sure      {told['confidence']:.3f} (threshold {told['threshold']:.3f}) over"
            f" {told['measured_tokens']} tokens of {told['edge_model']}: mean log-probability"
            f" {told['mean_logprob']:.2f}, entropy {told['mean_entropy']:.2f},"
            f" margin {told['mean_margin']:.2f}"
        )
    if told["target_model"]:
        lines.append(f"then      {told['target_model']} ({told['target_tier']})")
    return [*lines, *(_leg_line(leg) for leg in told.get("legs", ()))]


def _leg_line(leg: dict[str, Any]) -> str:
    """One of those who were asked for the answer, and what it used."""
    where = leg["device"] or leg["tier"]
    line = f"leg       {leg['model']} on {where} ({leg['tier']}): {leg['outcome']},"
    line += f" {leg['prompt_tokens']} + {leg['completion_tokens']} tokens"
    if leg["total_ms"] is not None:
        line += f", {leg['total_ms']:.0f} ms"
    return line if leg["joules"] is None else f"{line}, {leg['joules']:.3g} J"


def drafted_lines(record: dict[str, Any]) -> list[str]:
    """How a sequence was drafted and verified; none for other requests."""
    told = (record["actual"] or {}).get("speculative")
    if not told:
        return []
    mode, target = told["mode"].replace("_", " "), told.get("target", "")
    lines = [f"mode      {record['mode']} for {target}: {mode}; {told['target_passes']} passes"]
    if told["acceptance_rate"] is not None:
        lines.append(
            f"drafts    {told['accepted_tokens']} of {told['drafted_tokens']} stood in"
            f" {told['rounds']} rounds; round trip {told['round_trip_ms']:.1f} ms"
        )
    if told["because"]:
        lines.append(f"window    {told['because']}")
    if told["fallback"]:
        lines.append(f"verifier  given up: {told['fallback']}")
    return lines


def prefill_line(record: dict[str, Any]) -> str:
    """Who computed the prompt, where another device could have; empty: there was no question."""
    told = record.get("shared_prefill")
    if not told:
        return ""
    figures = f"{told['shared_ms']:.0f} ms by {told['device_name']}, {told['local_ms']:.0f} ms here"
    if not told["elsewhere"]:
        return f"prompt    computed where it was answered: predicted {figures}"
    ended = f"{told.get('outcome', 'not ended')} after {told.get('took_ms', 0.0):.0f} ms"
    return f"prompt    asked of {told['device_name']}, {ended}: predicted {figures}"


def cache_lines(record: dict[str, Any]) -> list[str]:
    """Whether a prefix was fetched, by which figures, and what restoring took; often none."""
    actual = record["actual"] or {}
    lines = []
    if told := actual.get("kv_fetch"):
        verb = "fetched" if told["fetch"] else "computed"
        fetch = "an unmeasured time" if told["fetch_ms"] is None else f"{told['fetch_ms']:.0f} ms"
        lines.append(
            f"prefix    {verb}, {told['reason']}: {told['num_blocks']} blocks, predicted"
            f" {fetch} to fetch, {told['recompute_ms']:.0f} ms to compute"
        )
    if took := actual.get("kv_restore_ms"):
        times = ", ".join(f"{tier} {ms:.1f} ms" for tier, ms in took.items())
        lines.append(f"restored  {times}")
    return lines


def _candidate_table(candidates: list[dict[str, Any]]) -> Table:
    table = Table("candidate", "class", "TTFT", "TPOT", "verdict", box=None, header_style="bold")
    for each in candidates:
        prediction = each["prediction"] or {}
        verdict = escape(each["rejected"]) if each["rejected"] else "[green]chosen[/green]"
        times = ms_text(prediction.get("ttft_ms")), ms_text(prediction.get("tpot_ms"))
        table.add_row(each["device_name"], each["device_class"], *times, verdict)
    return table


def _comparison(record: dict[str, Any]) -> Table:
    actual = record["actual"]
    # What was predicted of a device says nothing of a cloud endpoint that answered instead.
    of_devices = record["candidates"] if record["tier"] != "cloud" else []
    chosen: dict[str, Any] = next((each for each in of_devices if not each["rejected"]), {})
    predicted = chosen.get("prediction") or {}
    table = Table("", "predicted", "actual", box=None, header_style="bold")
    for label, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms")):
        table.add_row(label, ms_text(predicted.get(key)), ms_text(actual.get(key)))
    energy = (
        joules_text(each.get("joules"), estimated=bool(each.get("joules_estimated")))
        for each in (predicted, actual)
    )
    table.add_row("energy (~ estimated)", *energy)
    prompt = str(predicted.get("prompt_tokens", "-"))
    cached = f"{actual['prompt_tokens']} ({actual['cached_tokens']} cached)"
    table.add_row("prompt tokens", prompt, cached)
    table.add_row("output tokens", "-", str(actual["completion_tokens"]))
    return table
