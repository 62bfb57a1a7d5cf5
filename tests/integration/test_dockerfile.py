"""infra/Dockerfile and infra/compose.yaml: lint clean, and say what we promise about the image."""

import subprocess
import sysconfig
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "infra/Dockerfile"


def test_dockerfile_lints_clean() -> None:
    """hadolint finds nothing under the committed configuration."""
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    found = subprocess.run(
        [str(hadolint), "--config", str(ROOT / ".hadolint.yaml"), str(DOCKERFILE)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (found.returncode, found.stdout) == (0, "")


def test_image_runs_unprivileged() -> None:
    """The last stage ends as a fixed user without a name, and the process it starts is ours, not a shell's."""
    final = DOCKERFILE.read_text().rpartition("\nFROM ")[2].splitlines()

    assert "USER 10001:10001" in final
    assert final[-2:] == ['ENTRYPOINT ["pointsman"]', 'CMD ["serve"]']


def test_image_installs_by_hash() -> None:
    """Every release in the image comes from a lock and is checked against it."""
    commands = DOCKERFILE.read_text().replace("\\\n", " ").splitlines()
    installs = [part for line in commands for part in line.split("&&") if " install --no-cache-dir" in part]
    locked = [part for part in installs if "--require-hashes" in part]
    built = [part for part in installs if "--no-index" in part and "/wheels/*.whl" in part]

    assert (len(installs), len(locked), len(built)) == (3, 2, 1)


def test_compose_names_every_secret_as_required() -> None:
    """No default stands in for a secret in compose.yaml: without one nothing starts."""
    text = (ROOT / "infra/compose.yaml").read_text()
    services = yaml.safe_load(text)["services"]
    secrets = [
        value
        for service in services.values()
        for name, value in service["environment"].items()
        if name.endswith(("_KEY", "_PASSWORD"))
    ]

    assert {"dispatcher", "migrate", "postgres"} == set(services)
    assert len(secrets) == 4
    assert all(":?" in value for value in secrets)
