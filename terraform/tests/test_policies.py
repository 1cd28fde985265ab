"""Compares rendered session policies with policies.json, byte for byte.

Other implementations of the policy are tested against the same file. After a change
to the template, `python test_policies.py` regenerates the texts; a new case needs only
a name and an input. Terraform needs no providers for this.
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
# base64, because Terraform's console escapes strings.
EXPRESSION = f'base64encode(jsonencode([for case in jsondecode(file("policies.json")) : {RENDER}]))'


def render():
    """Renders the template for every input."""
    program = shutil.which(os.environ.get("TERRAFORM", "terraform"))
    if not program:
        return None
    # Ignore the caller's CLI configuration, which may name a file that does not exist.
    answer = subprocess.run([program, "console"], cwd=HERE, input=EXPRESSION + "\n", capture_output=True, text=True,
                            env={**os.environ, "TF_CLI_CONFIG_FILE": os.devnull, "CHECKPOINT_DISABLE": "1"})
    assert answer.returncode == 0, answer.stderr
    return json.loads(base64.b64decode(answer.stdout.strip().strip('"')))


def test_the_template_renders_the_recorded_policies():
    rendered = render()
    if rendered is None:
        pytest.skip("terraform is not on the PATH; install Terraform 1.9 or newer")
    assert {case["name"]: text for case, text in zip(CASES, rendered, strict=True)} == {case["name"]: case["policy"] for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_function_returns_the_recorded_policy(case):
    assert session_policy(**case["input"]) == case["policy"]
    assert len(case["policy"]) == case["characters"]


if __name__ == "__main__":
    lines = []
    for case, text in zip(CASES, render(), strict=True):
        parts = {"name": case["name"], "input": case["input"], "policy": text, "characters": len(text)}
        lines.append("  {\n" + ",\n".join(f"    {json.dumps(name)}: {json.dumps(part)}" for name, part in parts.items()) + "\n  }")
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n")
