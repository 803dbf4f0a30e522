"""The program `flashoptim`, as it is installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from flashoptim_cpp import FlashAdamW, __version__, save_checkpoint
from safetensors.torch import save_file
from torch import nn

PROGRAM = Path(sysconfig.get_path("scripts")) / "flashoptim"
ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("plan", "inspect", "verify", "convert", "info", "bench", "completion", "man")

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
MISTRAL = {**LLAMA, "model_type": "mistral", "vocab_size": 32000}
QWEN = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
}


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(PROGRAM), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def ok(*arguments: str | Path) -> str:
    result = run(*arguments)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


@pytest.fixture
def state(tmp_path: Path) -> Path:
    model = nn.Linear(200, 30).bfloat16()
    optimizer = FlashAdamW(model.parameters())
    model(torch.ones(1, 200).bfloat16()).sum().backward()
    optimizer.step()
    save_checkpoint(tmp_path / "state.safetensors", model, optimizer)
    return tmp_path / "state.safetensors"


# The counts are those that the models are published with.
@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (LLAMA, 8_030_261_248),
        (MISTRAL, 7_241_732_096),
        (QWEN, 494_032_768),
        (GPT2, 124_439_808),
    ],
)
def test_plan_counts_a_config(tmp_path: Path, config: dict[str, object], parameters: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    plan = json.loads(ok("plan", tmp_path / "config.json", "--json"))
    assert plan["parameters"] == parameters


def test_plan_agrees_with_the_memory_report(state: Path) -> None:
    plan = json.loads(ok("plan", state, "--json", "--optimizer", "adamw"))
    model = nn.Linear(200, 30).bfloat16()
    optimizer = FlashAdamW(model.parameters())
    model(torch.ones(1, 200).bfloat16()).sum().backward()
    optimizer.step()
    kinds = optimizer.memory_report().by_kind
    row = plan["rows"][0]
    assert row["optimizer"] == "FlashAdamW, 24 bits"
    assert (row["weights"], row["gradients"]) == (kinds.weights, kinds.gradients)
    assert row["states"] == kinds.optimizer


def test_plan_shards_and_releases(tmp_path: Path) -> None:
    whole, sharded, released = (
        json.loads(ok("plan", "--params", "8B", "--json", "--optimizer", "adamw", *more))["rows"]
        for more in ((), ("--ranks", "8"), ("--gradient-release",))
    )
    assert sharded[0]["total"] == pytest.approx(whole[0]["total"] / 8, rel=1e-3)
    assert released[0]["states"] == whole[0]["states"]
    assert released[0]["gradients"] == pytest.approx(whole[0]["gradients"] / 16, rel=1e-3)
    exact = json.loads(ok("plan", "--params", "1234567", "--json", "--optimizer", "sgd"))
    assert exact["parameters"] == 1234567
    assert 80 in whole[0]["fits_gb"]
    assert 80 not in whole[-1]["fits_gb"]
    assert whole[-1]["total"] == pytest.approx(16 * 8e9, rel=1e-4)
    assert "Activations" in ok("plan", "--params", "125M")


def test_verify_tells_good_from_damaged(state: Path) -> None:
    assert "states of 2 parameters decode" in ok("verify", state)
    data = bytearray(state.read_bytes())
    data[-3] ^= 1
    state.write_bytes(data)
    result = run("verify", state)
    assert result.returncode == 1
    assert re.search(r"tensor '.*': its checksum", result.stderr)


def test_inspect_describes_the_state(state: Path) -> None:
    text = json.loads(ok("inspect", state, "--json"))
    assert text["elements"] == 200 * 30 + 30
    by_name = {parameter["name"]: parameter for parameter in text["parameters"]}
    assert (by_name["weight"]["codec"], by_name["bias"]["codec"]) == ("root", "none")
    assert by_name["weight"]["moments"][0]["nonfinite"] == 0
    assert by_name["weight"]["moments"][0]["groups"] == 30 * 4
    assert text["options"]["rule"] == "adam"
    table = ok("inspect", state)
    assert "weight.exp_avg_sq" in table
    assert "bytes per parameter: 5." in table


def test_convert_goes_there_and_back(state: Path, tmp_path: Path) -> None:
    archive, index, back = (
        tmp_path / name
        for name in ("a.safetensors.zst", "a.safetensors.index.json", "b.safetensors")
    )
    ok("convert", state, archive)
    ok("convert", archive, index, "--shard-size", "8K")
    assert len(list(tmp_path.glob("a-g*.safetensors"))) > 1
    ok("convert", index, back)
    assert back.read_bytes() == state.read_bytes()


def test_long_work_shows_a_bar_on_a_terminal_only(state: Path) -> None:
    ours, theirs = os.openpty()
    command = [str(PROGRAM), "verify", str(state)]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=theirs, check=True)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert "verifying [" in shown
    assert "100 %" in shown
    assert run("verify", state).stderr == ""


def test_info_and_bench_describe_this_machine() -> None:
    info = json.loads(ok("info", "--json"))
    assert info["version"] == __version__
    assert info["cpu_target"] in info["cpu_targets"]
    bench = json.loads(ok("bench", "--elements", "65536", "--seconds", "0.05", "--json"))
    assert bench["step_ms"] > 0
    assert bench["bytes_moved"] / bench["elements"] == pytest.approx(12.25)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "subcommand is required"),
        (("nonsense",), 2, "'nonsense'"),
        (("plan",), 2, "needs a model or --params"),
        (("plan", "--params", "many"), 2, "'many' is not a number"),
        (("plan", "--params", "8B", "--ranks", "0"), 2, "--ranks"),
        (("convert", "a.pt", "b.safetensors"), 2, "python -m flashoptim_cpp convert"),
        (("verify", "no-such.safetensors"), 1, "no-such.safetensors"),
        (("completion", "csh"), 2, "csh"),
    ],
)
def test_exit_codes(arguments: tuple[str, ...], code: int, says: str) -> None:
    result = run(*arguments)
    assert result.returncode == code
    assert says in result.stderr


@pytest.mark.parametrize("arguments", [("plan", "--params", "8B"), ("man",), ("--help",)])
def test_output_that_does_not_arrive_is_a_failure(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [str(PROGRAM), *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=120,
        )
    assert result.returncode == 3
    assert "No space left" in result.stderr


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_hidden_layers": 2**30}, "num_hidden_layers must be a whole number from 1 to 65536"),
        ({"vocab_size": 2**30}, "vocab_size must be"),
        ({"head_dim": 2**20}, "num_attention_heads times head_dim must be"),
        ({"num_attention_heads": 8192}, "hidden_size by num_attention_heads, must be"),
        ({"hidden_size": "4096"}, "hidden_size must be"),
    ],
)
def test_plan_refuses_a_config_of_no_model(
    tmp_path: Path, change: dict[str, object], says: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **change}))
    result = run("plan", tmp_path / "config.json")
    assert result.returncode == 1
    assert "config.json: " in result.stderr
    assert says in result.stderr


def test_inspect_shows_names_of_strangers_without_their_control_characters(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a\x1b[2J\nb\x9bm": torch.zeros(2)}, path, {"key\r": "value\x07 ä"})
    shown = ok("inspect", path)
    assert "a\\x1b[2J\\x0ab\\x9bm" in shown
    assert "key\\x0d: value\\x07 ä" in shown
    assert json.loads(ok("inspect", path, "--json"))["tensors"][0]["name"] == "a\x1b[2J\nb\x9bm"


def test_inspect_takes_a_file_whose_name_is_no_text(state: Path) -> None:
    path = os.fsencode(state.parent) + b"/\xff.safetensors"
    Path(os.fsdecode(path)).write_bytes(state.read_bytes())
    command = [os.fsencode(PROGRAM), b"inspect", path, b"--json"]
    result = subprocess.run(command, capture_output=True, check=False, timeout=120)
    assert (result.returncode, result.stderr) == (0, b"")
    assert json.loads(result.stdout)["checksums"]


def test_every_command_has_help_with_an_example() -> None:
    for command in COMMANDS:
        assert f"flashoptim {command}" in ok(command, "--help")


def test_the_manual_page_is_that_of_the_program() -> None:
    page = ok("man")
    assert page == (ROOT / "tools" / "flashoptim.1").read_text(encoding="utf-8"), (
        "run: flashoptim man > tools/flashoptim.1"
    )
    for command in COMMANDS:
        assert f".SS {command}\n" in page
        for option in re.findall(r"^ +(?:-\w,)?--([a-z-]+)", ok(command, "--help"), re.M):
            assert option.replace("-", "\\-") in page


def shell(name: str, script: str, *options: str) -> list[str]:
    """What a shell prints, in which `flashoptim` is the program."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"there is no {name} here")
    command = [path, *options, "-c", script]
    environment = {**os.environ, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert result.stderr == ""
    return result.stdout.splitlines()


def test_bash_completes() -> None:
    script = (
        'eval "$(flashoptim completion bash)"; COMP_WORDS=(flashoptim plan --gr); COMP_CWORD=2; '
        '_flashoptim; echo "${COMPREPLY[@]}"; COMP_WORDS=(flashoptim ins); COMP_CWORD=1; '
        '_flashoptim; echo "${COMPREPLY[@]}"'
    )
    assert shell("bash", script) == ["--gradient-release", "inspect"]


def test_fish_completes() -> None:
    script = (
        "flashoptim completion fish | source; complete -C 'flashoptim plan --gr'; "
        "complete -C 'flashoptim ins'"
    )
    option, command = shell("fish", script, "--no-config")
    assert option.split("\t") == [
        "--gradient-release",
        "free each gradient as soon as its parameter is stepped",
    ]
    assert command.split("\t")[0] == "inspect"


def test_zsh_completes() -> None:
    # A terminal in which somebody types, as zsh has no other way to ask; in it, `flashoptim` shows
    # its arguments.
    script = r"""
    zmodload zsh/zpty
    zpty z zsh -f -i
    zpty -w z 'autoload -U compinit && compinit -D -u; eval "$(flashoptim completion zsh)"'
    zpty -w z 'bindkey "^I" complete-word; flashoptim() { print -r "[$*]" }; print re''ady'
    zpty -r z answer $'*\nready*'
    for line in $'plan --grad\t --pa\t x' $'ins\t x'; do
      zpty -n -w z "flashoptim $line"$'\n'
      zpty -r z answer $'*\n[[]*[]]*'
      print -r -- $answer
    done
    zpty -d z
    """
    answers = [line for line in shell("zsh", script, "-f") if line.startswith("[")]
    assert answers == ["[plan --gradient-release --params x]", "[inspect x]"]


def test_every_shell_knows_every_command_and_option() -> None:
    for name, form in (("bash", "--{}"), ("zsh", "--{}["), ("fish", "-l {} ")):
        script = ok("completion", name)
        for command in COMMANDS:
            assert re.search(rf"\b{command}\b", script), (name, command)
            for option in re.findall(r"^ +(?:-\w,)?--([a-z-]+)", ok(command, "--help"), re.M):
                assert form.format(option) in script, (name, option)


def test_the_package_hands_over_to_the_program() -> None:
    command = [sys.executable, "-m", "flashoptim_cpp", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.strip()) == (0, __version__)
