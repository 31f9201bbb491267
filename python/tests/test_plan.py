import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

import smsim

QUESTION = {"target": "p3.16xlarge", "model": "gpt2", "nodes": 1, "global_batch": 64}
TIMES = ("seconds", "cpu_seconds", "evaluations_per_s")


@pytest.fixture(scope="module")
def found():
    return smsim.plan(**QUESTION)


def timeless(document):
    search = {key: value for key, value in document["search"].items() if key not in TIMES}
    return {**document, "search": search}


def test_plans_are_the_commands_to_the_last_bit(found, tool):
    want = tool("smplan", "--target", "p3.16xlarge", "--model", "gpt2", "--nodes", 1, "--global-batch", 64)
    assert timeless(found.to_dict()) == timeless(want)


def test_a_found_plan_simulates_to_its_own_figures(found, tmp_path):
    best = found.best
    assert best.rank == 1 and best is found.plans[0]
    assert smsim.simulate(best).step_time_s == best.step_time_s
    best.save(tmp_path / "plan.toml")
    assert smsim.simulate(tmp_path / "plan.toml").step_time_s == best.step_time_s
    assert found.plans[1].step_time_s >= best.step_time_s
    assert smsim.simulate(found.plans[1]).step_time_s == found.plans[1].step_time_s


def test_the_chance_to_run_out_is_of_the_device_whatever_the_margin(tool):
    question = ("smplan", "--target", "p4d.24xlarge", "--nodes", 1, "--model", "llama-2-7b", "--global-batch", 512, "--top", 5)
    free, kept = tool(*question), tool(*question, "--memory-margin", 8)
    assert not free["memory_risk"]["is_recommended"]
    safer = free["memory_risk"]["safer"]
    assert safer["chance_of_running_out"] < 0.1 < free["memory_risk"]["chance_of_running_out"]
    # The more of the device a plan takes, the likelier it runs out: of all plans of both answers together.
    rows = sorted((row["peak_memory_gib"], row["chance_of_running_out"]) for row in free["plans"] + kept["plans"])
    assert [chance for _, chance in rows] == sorted(chance for _, chance in rows)
    # A margin as large as that of the safer plan makes it, or one as safe, the first.
    margin = int(100 * (1 - safer["peak_memory_gib"] / free["plans"][0]["available_memory_gib"]))
    assert tool(*question, "--memory-margin", margin)["memory_risk"]["is_recommended"]


def test_every_plan_of_the_space_is_in_the_account(found):
    search = found.search
    assert search.space == search.evaluated + sum(search.rejected.values()) + search.pruned + search.unvisited


def test_progress_is_told_and_can_stop_the_search():
    told = []

    def watch(at):
        told.append(at)
        return at["best"] is None

    found = smsim.plan("llama-2-70b", "p4d.24xlarge", nodes=16, global_batch=512, time_limit=600, progress=watch)
    assert told and set(told[0]) == {"done", "all", "best", "lower_bound", "seconds"}
    assert told[-1]["all"] == found.search.space
    assert found.interrupted and found.plans and not found.search.proven_optimal
    assert found.search.unvisited > 0


def test_what_progress_raises_is_raised():
    class Enough(Exception):
        pass

    def watch(at):
        raise Enough("no more")

    with pytest.raises(Enough, match="no more"):
        smsim.plan("llama-2-70b", "p4d.24xlarge", nodes=16, global_batch=512, time_limit=600, progress=watch)


def interrupted_when_found(program):
    """Exit code of a Python program that is interrupted once it has printed "found", and what it printed from there on."""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        for line in child.stdout:
            if line.strip() == "found":
                break
        child.send_signal(signal.SIGINT)
        rest, _ = child.communicate(timeout=120)
    finally:
        child.kill()
    return child.returncode, rest


def test_control_c_stops_a_search_with_its_best_so_far():
    program = textwrap.dedent(
        """
        import smsim
        def watch(at):
            print("at" if at["best"] is None else "found", flush=True)
        found = smsim.plan("llama-2-70b", "p4d.24xlarge", nodes=16, global_batch=512, time_limit=600, progress=watch)
        print("interrupted", found.interrupted, len(found.plans) > 0, found.best.step_time_s > 0, flush=True)
        """
    )
    code, rest = interrupted_when_found(program)
    assert code == 0 and "interrupted True True True" in rest


def test_searches_in_two_threads_are_as_alone(found):
    answers = [None, None]

    def search(i):
        answers[i] = smsim.plan(**QUESTION)

    threads = [threading.Thread(target=search, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [timeless(answer.to_dict()) for answer in answers] == [timeless(found.to_dict())] * 2


def test_offers_are_the_commands(tool):
    question = {**QUESTION, "tokens": "30B", "objective": "expected-cost"}
    answer = smsim.plan(**question)
    want = tool("smplan", *(f"--{key.replace('_', '-')}={value}" for key, value in question.items()))
    assert answer.to_dict() == want
    # On one cluster, bought in several ways: cheapest first.
    assert len(answer.offers) > 1 and answer.best is answer.offers[0]
    assert [offer.usd_mean for offer in answer.offers] == sorted(offer.usd_mean for offer in answer.offers)
    assert len({offer.purchase for offer in answer.offers}) == len(answer.offers)
    assert answer.best.purchase in answer._repr_html_()
    # At the same price of a node every way to buy costs the same an hour.
    ways = ["on-demand", "reserved"]
    priced = smsim.plan(**question, purchase=ways, price=[f"p3.16xlarge:{way}=10" for way in ways])
    assert {offer.purchase: offer.usd_per_hour for offer in priced.offers} == {way: 10 for way in ways}
    with pytest.raises(smsim.NoPlanError):
        smsim.plan(**question, finish_by="1h")


def test_nothing_fits_is_an_error_of_its_own():
    with pytest.raises(smsim.NoPlanError) as caught:
        smsim.plan("llama-2-70b", "p3.2xlarge", nodes=1, global_batch=1, offload="none")
    assert caught.value.diagnostics and not isinstance(caught.value, smsim.InputError)


def test_what_limits_cost_is_counted_from_the_best_without_them_wherever_its_optimizer_is():
    question = dict(model="gpt2-xl", target="p3.8xlarge", nodes=1, global_batch=16, seq_len=512, top=1)
    free = smsim.plan(**question)
    # Whole state on each of four 16 GB devices: only with the optimizer on the hosts.
    kept = smsim.plan(**question, dp=4, sharding="none")
    assert free.best.optimizer_offload == "none" and kept.best.optimizer_offload == "host"
    without = kept.limits["without"]
    assert without["step_time_s"] == pytest.approx(free.best.step_time_s)
    assert kept.limits["cost_pct"] == pytest.approx(100 * (kept.best.step_time_s / free.best.step_time_s - 1))


def test_what_would_be_faster_with_state_on_the_hosts_is_said_and_found_when_asked_for():
    question = dict(model="gpt2-xl", target="g4dn.12xlarge", nodes=1, global_batch=256, tp=1, pp=1, top=1)
    answer = smsim.plan(**question)
    told = answer.on_hosts
    assert answer.best.optimizer_offload == "none" and "optimizer on the hosts" in told["plan"]
    asked = smsim.plan(**question, optimizer_offload="host")
    assert asked.best.optimizer_offload == "host"
    assert asked.best.step_time_s == pytest.approx(told["step_time_s"])
    assert told["faster_pct"] == pytest.approx(100 * (answer.best.step_time_s / asked.best.step_time_s - 1))
    # Not where the devices were asked for, and not where they have room to spare.
    assert not hasattr(smsim.plan(**question, optimizer_offload="none"), "on_hosts")
    assert not hasattr(smsim.plan(**{**question, "model": "gpt2"}), "on_hosts")


def test_wrong_options_are_named_as_the_keywords():
    with pytest.raises(smsim.InputError) as caught:
        smsim.plan("gpt2", "p3.16xlarge", max_nodes=0, objective="sped")
    keys = {entry.key for entry in caught.value.diagnostics}
    assert {"max_nodes", "objective"} <= keys
    objective = next(entry for entry in caught.value.diagnostics if entry.key == "objective")
    assert "speed" in objective.allowed and objective.value == "sped"
    with pytest.raises(smsim.InputError, match="--nodez"):
        smsim.plan("gpt2", "p3.16xlarge", nodez=1)


def test_partition_is_the_commands(tool):
    answer = smsim.partition("gpt2", devices=4)
    want = tool("smplan", "partition", "--graph", "gpt2", "--devices", 4)
    keys = ("objective", "unit", "proven_optimal", "lower_bound", "stages", "cuts", "first_units")
    assert {key: answer[key] for key in keys} == {key: want[key] for key in keys}
    # The heaviest stage carries no less than an equal share.
    assert answer.objective == max(stage.load for stage in answer.stages)
    with pytest.raises(smsim.NoPlanError):
        smsim.partition("gpt2", devices=1, memory="1MiB")


def test_export_says_what_the_target_cannot(source, tool, found):
    plan = source / "scenarios" / "llama2_70b_p4d.toml"
    exported = smsim.export(plan, "megatron")
    assert exported.to_dict() == tool("smplan", "export", plan, "--to", "megatron")
    assert "--tensor-model-parallel-size" in exported.text
    # A plan that was found is no file yet: the text names the one to save it as.
    assert " plan.toml " in smsim.export(found.best, "torchrun").text and ".smsim-plan-" not in smsim.export(found.best, "torchrun").text
    with pytest.raises(smsim.InputError) as caught:
        smsim.export(plan, "megatrn")
    assert caught.value.diagnostics[0].key == "to"
    assert not list(source.glob(".smsim-plan-*"))


def test_validate_scores_and_tells_progress(source, tool, tmp_path):
    measurements = source.parent / "shared" / "measurements"
    if not (measurements / "calibration.csv").exists():
        pytest.skip("skipped: no measurements beside the checkout")
    lines = (measurements / "calibration.csv").read_text().splitlines(keepends=True)
    few = tmp_path / "few.csv"
    few.write_text("".join(lines[:6]))
    told = []
    answer = smsim.validate(few, measurements / "clusters.csv", progress=told.append)
    assert answer.to_dict() == tool("smsim", "validate", few, "--clusters", measurements / "clusters.csv")
    assert len(answer.rows) == 5
    assert not told or told[-1]["all"] == 5
    with pytest.raises(smsim.InputError, match="missing.csv"):
        smsim.validate("missing.csv", measurements / "clusters.csv")


def test_a_progress_that_returns_false_ends_a_validation_with_the_rows_so_far(source, tmp_path):
    lines = (source / "tests" / "golden" / "runs" / "own_runs.csv").read_text().splitlines()
    many = tmp_path / "many.csv"
    many.write_text("\n".join([lines[0], *(f"RUN-{i},{lines[1].split(',', 1)[1]}" for i in range(20000))]) + "\n")
    answer = smsim.validate(many, source / "tests" / "golden" / "runs" / "own_clusters.csv", progress=lambda at: False)
    assert answer.interrupted and 0 < len(answer.rows) < 20000
    assert len(answer.rows) + answer.rows_left_out == 20000
    assert len({row["predicted_step_s"] for row in answer.rows}) == 1


def test_control_c_ends_a_partition_with_its_best_so_far(tmp_path):
    # Twelve chains of twelve between a fork and a join: 13^12 sets of nodes that stages may begin at.
    nodes = ['[[node]]\nname = "fork"\ntime = "1ms"']
    for chain in range(12):
        before = "fork"
        for i in range(12):
            name, time = f"c{chain}_{i}", 1000 + (chain * 37 + i * 91) % 1500
            nodes.append(f'[[node]]\nname = "{name}"\ntime = "{time}us"\ninputs = ["{before}"]\noutput_time = "{(chain + i) % 7}us"')
            before = name
    ends = ", ".join(f'"c{chain}_11"' for chain in range(12))
    nodes.append(f'[[node]]\nname = "join"\ntime = "1ms"\ninputs = [{ends}]')
    graph = tmp_path / "graph.toml"
    graph.write_text("version = 1\n[graph]\ndevices = 16\n" + "\n".join(nodes) + "\n")
    program = textwrap.dedent(
        f"""
        import smsim
        def watch(at):
            print("at" if at["best"] is None else "found", flush=True)
        placed = smsim.partition({str(graph)!r}, time_limit=600, progress=watch)
        print("interrupted", placed.interrupted, len(placed.stages) > 1, placed.lower_bound < placed.objective, flush=True)
        """
    )
    code, rest = interrupted_when_found(program)
    assert code == 0 and "interrupted True True True" in rest


def test_rich_display(found):
    page = found._repr_html_()
    assert "p3.16xlarge" in page and page.count("<tr>") == 1 + len(found.plans)
    assert "why" in str(found)
