"""Import what Podium's and Ray's processes import, so that the image has the bytecode of it; for the Dockerfile."""

from __future__ import annotations

import importlib

MODULES = (
    "alembic.command",
    "fastapi",
    "jinja2",
    "orjson",
    "plotly",
    "prometheus_client",
    "ray._private.log_monitor",
    "ray._private.runtime_env.agent.main",
    "ray._private.workers.default_worker",
    "ray.dashboard.agent",
    "ray.scripts.scripts",
    "sqlmodel",
    "tensordict",
    "torch._dynamo",
    "torch.distributed",
    "typer",
    "uvicorn",
)

for name in MODULES:
    importlib.import_module(name)

# Ray's agent finds the rest of its modules by their base class.
utils = importlib.import_module("ray.dashboard.utils")
utils.get_all_modules(utils.DashboardAgentModule)
