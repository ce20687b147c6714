"""What a gateway hands to bare devices, over real HTTP and without a key."""

import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from shoal.onboarding.depot import make_depot
from tests.harness.gateway_rig import GatewayRig, running_gateway
from tests.harness.redis_server import running_redis


@pytest.fixture(scope="module")
def state_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@pytest.fixture
async def rig(tmp_path: Path, state_url: str) -> AsyncIterator[GatewayRig]:
    make_depot(tmp_path / "depot", "http://192.0.2.7:8421")
    async with running_gateway(tmp_path, state_url, depot_dir=tmp_path / "depot") as running:
        yield running


async def test_script_list_and_files_need_no_key_and_fit_one_another(rig: GatewayRig) -> None:
    async with httpx.AsyncClient(base_url=rig.url, trust_env=False) as http:
        script = await http.get("/shoal/v1/install.sh")
        sums = await http.get("/shoal/v1/agent/SHA256SUMS")
        assert hashlib.sha256(sums.content).hexdigest() in script.text
        for line in sums.text.splitlines():
            digest, name = line.split("  ")
            file = await http.get(f"/shoal/v1/agent/{name}")
            assert hashlib.sha256(file.content).hexdigest() == digest, name


@pytest.mark.parametrize(
    "name", ["depot.json", "install.sh", "..%2fca%2fca.key", "%2e%2e/salt.key", "/etc/passwd", ""]
)
async def test_nothing_else_can_be_fetched(rig: GatewayRig, name: str) -> None:
    async with httpx.AsyncClient(base_url=rig.url, trust_env=False) as http:
        answer = await http.get(f"/shoal/v1/agent/{name}")
    assert answer.status_code == 404
    assert "PRIVATE" not in answer.text


async def test_token_comes_with_the_lines_and_the_scripts_hash(rig: GatewayRig) -> None:
    headers = {"authorization": f"Bearer {rig.admin_key}"}
    async with httpx.AsyncClient(base_url=rig.url, headers=headers, trust_env=False) as http:
        made = (await http.post("/shoal/v1/tokens", json={})).json()
        script = (await http.get("/shoal/v1/install.sh")).content
    assert made["install"] == (
        f"curl -fsSL {rig.url}/shoal/v1/install.sh | sh -s -- --token {made['token']}"
    )
    assert made["script_sha256"] == hashlib.sha256(script).hexdigest()
    assert made["script_sha256"] in made["install_verified"]


async def test_gateway_without_a_depot_makes_tokens_all_the_same(
    tmp_path: Path, state_url: str
) -> None:
    async with running_gateway(tmp_path, state_url) as rig:
        headers = {"authorization": f"Bearer {rig.admin_key}"}
        async with httpx.AsyncClient(base_url=rig.url, headers=headers, trust_env=False) as http:
            made = (await http.post("/shoal/v1/tokens", json={})).json()
            assert (await http.get("/shoal/v1/install.sh")).status_code == 404
    assert made["token"].startswith("shoal-join.")
    assert "install" not in made


async def test_rollout_is_begun_shown_and_cancelled_by_an_administrator_only(
    rig: GatewayRig,
) -> None:
    async with httpx.AsyncClient(base_url=rig.url, trust_env=False) as http:
        for path in ("rollouts", "rollouts/last/cancel"):
            for key in ("wrong", rig.key):
                headers = {"authorization": f"Bearer {key}"}
                answer = await http.post(f"/shoal/v1/{path}", headers=headers, json={})
                assert answer.status_code in {401, 403}
        http.headers["authorization"] = f"Bearer {rig.admin_key}"
        wrong = [{"selector": "site=far"}, {"batch": "0"}, {"version": "9"}, {"selector": "x"}]
        for body in wrong:
            answer = await http.post("/shoal/v1/rollouts", json=body)
            assert answer.status_code in {400, 404}, body
            assert answer.json()["error"]["param"] in body
        begun = await http.post(
            "/shoal/v1/rollouts", json={"selector": "class=arm_cpu", "batch": "1"}
        )
        assert begun.json()["devices"] == [{"device": "bench-arm", "phase": "waiting", "why": ""}]
        again = await http.post("/shoal/v1/rollouts", json={})
        assert "--cancel" in again.json()["error"]["message"]
        await http.post("/shoal/v1/rollouts/last/cancel")
        shown = (await http.get("/shoal/v1/rollouts/last")).json()
    assert (shown["id"], shown["cancelled"]) == (begun.json()["id"], True)
    assert shown["release"].startswith(f"{shown['version']}-")
