"""The command line: the demonstration runs, and mistakes are one line with exit code 2."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from robustly.cli import app


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    return folder, CliRunner().invoke(app, ["demo", "--out", str(folder)])


def test_the_demo_shows_both_models_and_the_known_outliers(demo):
    folder, result = demo
    assert result.exit_code == 0, result.output
    assert "most surprising days: 1, 3, 4, 21" in result.output
    page = (folder / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 8
    assert "http://" not in page
    assert "https://" not in page


def test_stack_loss_agrees_with_lange_little_and_taylor(demo):
    # Lange, Little & Taylor (1989): degrees of freedom about 1.1, coefficients -38.5, .85, .49, -.07.
    rows = {line.rsplit(None, 2)[0]: float(line.split()[-1]) for line in demo[1].output.splitlines()[2:6]}
    assert rows["Intercept"] == pytest.approx(-38.5, abs=0.3)
    assert rows["air flow"] == pytest.approx(0.85, abs=0.01)
    assert rows["water temperature"] == pytest.approx(0.49, abs=0.01)


def test_a_folder_that_cannot_be_made_is_one_line_and_exit_code_2(tmp_path):
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "robustly.cli", "demo", "--out", str(tmp_path / "file" / "x")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("robustly: cannot make the folder")
    assert len(done.stderr.splitlines()) == 1
