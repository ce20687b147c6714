from pathlib import Path

from shoal.cli.launches import AgentOptions, UpOptions, agent_launch, orchestrator_launch
from shoal.cli.progress import ProgressWriter, follow_progress
from shoal.home import Home


def a_home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.make_private_dirs()
    return home


def test_follower_sees_each_stage_once_and_no_half_line(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    follower = follow_progress(home)
    assert next(follower) is None
    writer = ProgressWriter(home)
    writer.say("one")
    writer.say("two", "local-1", models=["m"])
    with (home.run_dir / "progress.jsonl").open("a") as file:
        file.write('{"stage": "hal')
        file.flush()
        first, second, nothing = (next(follower) for _ in range(3))
        file.write('f"}\n')
    assert first
    assert first["stage"] == "one"
    assert second
    assert second["models"] == ["m"]
    assert nothing is None
    assert next(follower) == {"stage": "half"}


def test_options_survive_the_command_line() -> None:
    options = UpOptions(8421, 2, ("a", "b"), "cloud.toml", 4, 1024)
    assert UpOptions.from_json(options.to_json()) == options


def test_join_token_is_kept_off_the_command_line(tmp_path: Path) -> None:
    fleet = UpOptions(8421, 1, ("m",))
    launch = agent_launch(a_home(tmp_path), AgentOptions("local-1", "http://x", "secret", fleet))
    assert not any("secret" in word for word in launch.command)
    assert launch.environment == {"SHOAL_TOKEN": "secret"}


def test_cloud_config_reaches_the_orchestrator(tmp_path: Path) -> None:
    launch = orchestrator_launch(a_home(tmp_path), UpOptions(8421, 0, (), "/c.toml"), 7000)
    assert launch.command[-2:] == ("--cloud-config", "/c.toml")
    assert "redis://127.0.0.1:7000" in launch.command
