"""Run by ctest with the build's own extension, or against an installed package: then SMSIM_TOOL and SMSIM_SOURCE say where
the tool and the checkout are."""
import json
import os
import pathlib
import shutil
import subprocess

import pytest

SOURCE = pathlib.Path(os.environ.get("SMSIM_SOURCE", pathlib.Path(__file__).resolve().parents[2]))


def _text(argument):
    return os.fspath(argument) if hasattr(argument, "__fspath__") else str(argument)


@pytest.fixture(scope="session")
def source():
    return SOURCE


@pytest.fixture(scope="session")
def scenario(source):
    return source / "scenarios" / "llama2_7b_p4d.toml"


@pytest.fixture(scope="session")
def tool():
    """What a tool's --json says: tool("smsim", "model", "gpt2")."""

    def run(name, *arguments, code=0):
        folder = os.environ.get("SMSIM_TOOL")
        program = os.path.join(folder, name) if folder else shutil.which(name)
        if not program or not os.path.exists(program):
            pytest.skip(f"skipped: no {name} to compare with")
        done = subprocess.run([program, *map(_text, arguments), "--json"], capture_output=True, text=True, cwd=SOURCE)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    return run
