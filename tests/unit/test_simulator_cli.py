import json

import pytest
from typer.testing import CliRunner

from shoal.cli.app import app
from shoal.cli.exit_codes import ExitCode


@pytest.fixture
def shoal():
    runner = CliRunner()
    return lambda *arguments: runner.invoke(app, ["simulate", *arguments])


def test_json_has_a_run_for_each_policy_asked_for(shoal):
    asked = ("--policy", "least_loaded", "--policy", "shoal_edp")
    result = shoal("--requests", "200", "--devices", "40", *asked, "--json")
    document = json.loads(result.stdout)
    assert [run["policy"] for run in document["runs"]] == ["least_loaded", "shoal_edp"]
    assert document["fleet"]["num_devices"] == 40
    assert document["workload"]["load"] == 0.7


def test_table_and_chart_show_every_policy(shoal, tmp_path):
    chart = tmp_path / "chart.svg"
    result = shoal("--requests", "200", "--plot", str(chart))
    assert result.exit_code == 0
    for policy in ("round_robin", "least_loaded", "shoal_latency", "shoal_edp"):
        assert policy in result.stdout
        assert policy in chart.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--fleet", "/nowhere.toml"), "No such file"),
        (("--policy", "magic"), "invalid choice: 'magic'"),
        (("--devices", "2"), "one of each kind"),
        (("--plot", "/nowhere/chart.svg"), "No such file"),
    ],
)
def test_wrong_input_ends_with_the_usage_code_and_its_reason(shoal, arguments, said):
    result = shoal("--requests", "10", *arguments, "--json")
    assert result.exit_code == ExitCode.USAGE
    assert said in json.loads(result.stdout)["error"]["message"]
