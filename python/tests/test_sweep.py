import concurrent.futures

import pytest

import smsim

POINTS = smsim.grid(plan__micro_batch=[1, 2], plan__recompute=["none", "full"])


@pytest.fixture(scope="module")
def alone(scenario):
    return [smsim.simulate(scenario, **point).to_dict() for point in POINTS]


def documents(swept):
    return [row.document for row in swept]


def test_a_grid_varies_its_last_key_fastest():
    assert POINTS[:2] == [
        {"plan.micro_batch": 1, "plan.recompute": "none"},
        {"plan.micro_batch": 1, "plan.recompute": "full"},
    ]


def test_a_process_pool_answers_as_one_process(scenario, alone):
    told = []
    swept = smsim.sweep(POINTS, scenario, progress=told.append)
    assert documents(swept) == alone
    assert told[-1] == {"done": 4, "all": 4}


def test_any_executor_serves(scenario, alone):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert documents(smsim.sweep(POINTS, scenario, executor=pool)) == alone
        assert pool.submit(int, "3").result() == 3  # it stays open


def test_a_wrong_point_is_a_row_with_its_error(scenario, alone):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        swept = smsim.sweep([POINTS[0], {"plan.micro_batch": 0}], scenario, executor=pool)
    assert swept[0].document == alone[0] and swept[0].error is None
    assert swept[1].document is None and "plan.micro_batch" in swept[1].error


def test_a_sweep_is_resumed(scenario, alone, tmp_path):
    store = tmp_path / "answers.sqlite"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        part = smsim.sweep(POINTS, scenario, executor=pool, resume=store, progress=lambda at: at["done"] < 2)
        assert 2 <= len(part) <= 4
        calls = []

        class Counting(concurrent.futures.Executor):
            def submit(self, *arguments, **more):
                calls.append(arguments)
                return pool.submit(*arguments, **more)

        whole = smsim.sweep(POINTS, scenario, executor=Counting(), resume=store)
    assert documents(whole) == alone
    assert whole.reused >= 2 and len(calls) == 4 - whole.reused
    # Another point, or a changed scenario, is another question.
    other = tmp_path / "other.toml"
    other.write_text(scenario.read_text() + "\n# changed\n")
    assert smsim.sweep(POINTS[:1], other, executor=concurrent.futures.ThreadPoolExecutor(1), resume=store).reused == 0


def test_rows_are_a_frame(scenario, alone):
    pytest.importorskip("pandas", reason="skipped: no pandas")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        table = smsim.sweep(POINTS, scenario, executor=pool).to_frame()
    assert list(table["plan.micro_batch"]) == [1, 1, 2, 2]
    assert list(table["step_time_s"]) == [document["step_time_s"] for document in alone]


def test_the_best_row_fits(scenario):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        swept = smsim.sweep(POINTS, scenario, executor=pool)
    best = swept.best()
    assert best.document["fits"]
    assert all(best.document["step_time_s"] <= row.document["step_time_s"] for row in swept if row.document["fits"])


def test_dask_with_two_workers(scenario, alone):
    distributed = pytest.importorskip("distributed", reason="skipped: no dask.distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        with distributed.Client(cluster) as client:
            assert documents(smsim.sweep(POINTS, scenario, executor=client.get_executor())) == alone


def test_mpi4py(scenario, alone):
    import os
    import shutil
    import subprocess
    import sys

    pytest.importorskip("mpi4py", reason="skipped: no mpi4py")
    launcher = shutil.which("mpirun")
    if launcher is None:
        pytest.skip("skipped: no mpirun")
    program = (
        "import json, sys, smsim\n"
        "from mpi4py.futures import MPIPoolExecutor\n"
        "if __name__ == '__main__':\n"
        "    points = smsim.grid(plan__micro_batch=[1, 2], plan__recompute=['none', 'full'])\n"
        "    with MPIPoolExecutor() as pool:\n"
        "        print(json.dumps([row.document for row in smsim.sweep(points, sys.argv[1], executor=pool)]))\n"
    )
    script = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"smsim_mpi_{os.getpid()}.py")
    with open(script, "w") as file:
        file.write(program)
    try:
        command = [launcher, "--oversubscribe", "-n", "3"]
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
        done = subprocess.run([*command, sys.executable, "-m", "mpi4py.futures", script, str(scenario)], capture_output=True, text=True, timeout=300)
    finally:
        os.unlink(script)
    assert done.returncode == 0, done.stderr
    import json

    assert json.loads(done.stdout) == alone
