import concurrent.futures
import pickle

import pytest

import smsim


def without_place(document):
    return {key: value for key, value in document.items() if key != "warnings"}


def test_a_prediction_is_the_commands_document_to_the_last_bit(scenario, tool):
    assert smsim.simulate(scenario).to_dict() == tool("smsim", scenario)


def test_overrides_are_the_commands_set_options(scenario, tool):
    want = tool("smsim", scenario, "--set", "plan.micro_batch=1", "--set", "cluster.nodes=4")
    for overrides in (
        {"plan__micro_batch": 1, "cluster__nodes": 4},
        {"plan": {"micro_batch": 1}, "cluster": {"nodes": 4}},
        {"plan.micro_batch": 1, "cluster.nodes": 4},
    ):
        assert smsim.simulate(scenario, **overrides).to_dict() == want


def test_a_dictionary_is_what_its_file_would_be(tmp_path, tool):
    document = {
        "version": 1,
        "model": {"name": "gpt2-xl"},
        "cluster": {"instance": "p3.16xlarge", "nodes": 2},
        "plan": {"data_parallel": 16, "micro_batch": 1, "micro_batches": 4, "sharding": "optimizer", "precision": "fp16"},
    }
    file = tmp_path / "same.toml"
    file.write_text(smsim._core.to_toml(document))
    assert smsim.simulate(document).to_dict() == tool("smsim", file)


def test_a_breakdown_adds_up_to_the_step(scenario):
    prediction = smsim.simulate(scenario)
    assert sum(prediction.breakdown_s.values()) == pytest.approx(prediction.step_time_s, rel=1e-12)
    # A GPU's share of the model's arithmetic in a step, over its peak: 312 TFLOP/s of bf16 (NVIDIA's A100 datasheet).
    assert prediction.mfu == pytest.approx(prediction.model_tflops_per_gpu / 312, rel=1e-9)
    assert prediction.samples_per_s == pytest.approx(prediction.global_batch / prediction.step_time_s)
    low, high = prediction.step_time_s_80
    assert low < prediction.step_time_s < high
    assert prediction.memory[0].peak_gib <= prediction.peak_memory_gib


def test_a_plan_that_does_not_fit_is_an_answer(scenario):
    prediction = smsim.simulate(scenario, plan__micro_batch=8, plan__micro_batches=1, plan__recompute="none")
    assert prediction.fits is False
    assert prediction.peak_memory_gib > prediction.available_memory_gib
    assert prediction.out_of_memory


def test_every_mistake_is_a_diagnostic_with_its_place(tmp_path):
    file = tmp_path / "wrong.toml"
    file.write_text('version = 1\n[model]\nname = "llama-2-7b"\nhiden = 3\n[plan]\nmicro_batch = 0\nrecompute = "sometimes"\n[cluster]\ninstance = "p4d.24xlarge"\nnodes = 1\n')
    with pytest.raises(smsim.InputError) as caught:
        smsim.simulate(file)
    entries = {entry.key: entry for entry in caught.value.diagnostics if entry.severity == "error"}
    batch = entries["plan.micro_batch"]
    assert (batch.file, batch.line, batch.column) == (str(file), 6, 15)
    assert batch.value == "0"
    assert batch.allowed and "1" in batch.allowed[0]
    assert set(entries["plan.recompute"].allowed) == {"none", "selective", "full"}
    assert entries["plan.recompute"].value == "'sometimes'"
    assert "hiden" in next(key for key in entries if key.startswith("model"))
    assert isinstance(caught.value, ValueError)
    assert "hint:" in str(caught.value)


def test_mistakes_in_a_dictionary_have_a_key_and_no_file():
    with pytest.raises(smsim.InputError) as caught:
        smsim.simulate({"version": 1, "model": {"name": "llama-2-7b", "hiden": 3}})
    assert len(caught.value.diagnostics) >= 2  # the key, and what is missing
    assert all(entry.file is None and entry.line is None for entry in caught.value.diagnostics)
    assert any(entry.key == "model.hiden" for entry in caught.value.diagnostics)


@pytest.mark.parametrize("wrong", [{"plan": {"micro_batch"}}, {"model": {"name": object()}}, {1: 2}])
def test_what_is_no_value_is_a_type_error(wrong):
    with pytest.raises(TypeError):
        smsim.simulate(wrong)


def test_a_missing_file_and_a_wrong_kind_are_input_errors(tmp_path):
    with pytest.raises(smsim.InputError, match="missing.toml"):
        smsim.simulate(tmp_path / "missing.toml")
    with pytest.raises(smsim.InputError, match="no scenario"):
        smsim.simulate(3)
    with pytest.raises(smsim.InputError, match="micro_batc"):
        smsim.simulate({"version": 1}, plan__micro_batc=3)


def test_an_error_survives_a_pickle():
    with pytest.raises(smsim.InputError) as caught:
        smsim.simulate({"version": 1})
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.diagnostics == caught.value.diagnostics


def test_two_threads_at_once_are_as_each_alone(scenario):
    points = [{"plan__micro_batch": batch, "plan__recompute": how} for batch in (1, 2) for how in ("none", "full")]
    alone = [smsim.simulate(scenario, **point).to_dict() for point in points]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda point: smsim.simulate(scenario, **point).to_dict(), points * 3))
    assert together == alone * 3


def test_the_interpreter_runs_beside_a_simulation(scenario):
    import threading
    import time

    ticks, done = 0, threading.Event()

    def work():
        smsim.simulate(scenario, cluster__nodes=8, unfolded=True, explain=True)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        ticks += 1
        time.sleep(0.001)
    thread.join()
    assert ticks > 3  # with the lock held there would be one at most


def test_files_are_written_and_named(scenario, tmp_path):
    prediction = smsim.simulate(scenario, trace=tmp_path / "t.json", html=tmp_path / "t.html", csv=tmp_path / "t.csv")
    assert prediction.written == tuple(str(tmp_path / name) for name in ("t.json", "t.html", "t.csv"))
    assert all((tmp_path / name).stat().st_size > 0 for name in ("t.json", "t.html", "t.csv"))
    with pytest.raises(smsim.MachineError):
        smsim.simulate(scenario, csv=tmp_path / "no" / "folder.csv")


def test_text_frame_and_rich_display(scenario):
    prediction = smsim.simulate(scenario)
    assert "step" in str(prediction) and repr(prediction).startswith("Prediction(")
    page = prediction._repr_html_()
    assert "llama-2-7b" in page and "<table>" in page and page.count("<div") == page.count("</div>")
    pandas = pytest.importorskip("pandas", reason="skipped: no pandas")
    row = prediction.to_frame()
    assert isinstance(row, pandas.DataFrame) and row["step_time_s"][0] == prediction.step_time_s


def test_compare_adds_up_to_the_difference(source):
    files = [source / "scenarios" / name for name in ("bert_large_p3.toml", "bert_large_p3dn.toml")]
    compared = smsim.compare(*files)
    first, second = compared.step_time_s
    assert sum(part.seconds for part in compared.parts) == pytest.approx(second - first, rel=1e-9)
    with pytest.raises(smsim.InputError, match="two scenarios"):
        smsim.compare(files[0])


def test_plans_that_are_no_files_are_compared(source):
    found = smsim.plan(source / "scenarios" / "models" / "llama-2-70b.config.json", "p4d.24xlarge", nodes=8, global_batch=64, top=2)
    compared = smsim.compare(*found.plans)
    assert compared.step_time_s == (found.plans[0].step_time_s, found.plans[1].step_time_s)
    first, second = compared.step_time_s
    assert sum(part.seconds for part in compared.parts) == pytest.approx(second - first, rel=1e-9, abs=1e-9)


def test_hardware_is_listed_and_shown(tool):
    assert smsim.hardware("p4d.24xlarge").to_dict() == tool("smsim", "hardware", "p4d.24xlarge")
    assert smsim.hardware("p4d.24xlarge").files[0].endswith("p4d.24xlarge.toml")
    assert smsim.hardware().to_dict() == tool("smsim", "hardware")
    assert "p5.48xlarge" in {one.name for one in smsim.hardware()}
    with pytest.raises(smsim.InputError, match="p4d"):
        smsim.hardware("p4d.24xlrge")


def test_the_version_is_the_tools(tool):
    assert smsim.__version__.count(".") == 2 and smsim.__commit__
