"""Two clusters of two workers each, started once for all tests of rows: one of processes, and one inside this process."""

from __future__ import annotations

import cloudpickle
import pytest

from robustly.rows import dask as dask_module


@pytest.fixture(scope="package")
def client_away():
    """Two worker processes of one thread each; a worker that dies is started again."""
    distributed = pytest.importorskip("distributed", reason="clusters need the distributed extra")
    options = {"processes": True, "threads_per_worker": 1, "dashboard_address": None, "memory_limit": "2GiB"}
    with distributed.LocalCluster(n_workers=2, **options) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.fixture
def client(client_away):
    with client_away.as_current():
        yield client_away


@pytest.fixture(scope="package")
def client_near():
    distributed = pytest.importorskip("distributed", reason="clusters need the distributed extra")
    options = {"processes": False, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(n_workers=2, **options) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.fixture
def near(client_near, monkeypatch):
    """Two workers in this process: passes are compiled once for all. That they could be sent away is looked at here."""
    send = dask_module.DaskRows._send
    monkeypatch.setattr(
        dask_module.DaskRows, "_send", lambda self, one: (cloudpickle.loads(cloudpickle.dumps(one)), send(self, one))[1]
    )
    with client_near.as_current():
        yield client_near
