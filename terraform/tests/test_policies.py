"""policies.json: sessions, and the policy of each, to the letter.

Programs that make the policy themselves are tested against the same file.
After a change of the template `python test_policies.py` writes the texts anew;
a new case needs its name and its input only. Terraform needs no providers for it.
"""

import base64
import json
import os
import pathlib
import shutil
import subprocess

import pytest

from policy import session_policy

HERE = pathlib.Path(__file__).resolve().parent
FILE = HERE / "policies.json"
CASES = json.loads(FILE.read_text())
RENDER = 'trimspace(templatefile("../policies/session.json.tftpl", case.input))'
# Terraform's console prints strings with escapes of its own; base64 has none.
EXPRESSION = f'base64encode(jsonencode([for case in jsondecode(file("policies.json")) : {RENDER}]))'


def render():
    """What the template makes of every input."""
    program = shutil.which(os.environ.get("TERRAFORM", "terraform"))
    if not program:
        return None
    # No settings of the caller's: they may name a file that is not there.
    answer = subprocess.run([program, "console"], cwd=HERE, input=EXPRESSION + "\n", capture_output=True, text=True,
                            env={**os.environ, "TF_CLI_CONFIG_FILE": os.devnull, "CHECKPOINT_DISABLE": "1"})
    assert answer.returncode == 0, answer.stderr
    return json.loads(base64.b64decode(answer.stdout.strip().strip('"')))


def test_the_template_gives_exactly_these():
    rendered = render()
    if rendered is None:
        pytest.skip("terraform is not on the PATH; install Terraform 1.9 or newer")
    assert {case["name"]: text for case, text in zip(CASES, rendered, strict=True)} == {case["name"]: case["policy"] for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_function_gives_exactly_this(case):
    assert session_policy(**case["input"]) == case["policy"]
    assert len(case["policy"]) == case["characters"]


if __name__ == "__main__":
    lines = []
    for case, text in zip(CASES, render(), strict=True):
        parts = {"name": case["name"], "input": case["input"], "policy": text, "characters": len(text)}
        lines.append("  {\n" + ",\n".join(f"    {json.dumps(name)}: {json.dumps(part)}" for name, part in parts.items()) + "\n  }")
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n")
