"""Masked supervised fine-tuning: which tokens are trained, and runs that survive an interruption."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from text2sql.config import SFTSettings
from text2sql.errors import DivergenceError, TrainingError
from text2sql.policy import check_policy
from trainers.rows import TrainingRow, write_rows
from trainers.sft import MaskedSFTTrainer, main, train_sft

pytestmark = pytest.mark.slow

SETTINGS = SFTSettings(
    epochs=1.0, learning_rate=1e-2, scheduler="constant", warmup_share=0.0, batch_size=2, gradient_accumulation=2,
    max_tokens=128, save_steps=2,
)  # fmt: skip


def make_rows(count: int, seed: int = 0) -> list[TrainingRow]:
    """Rows of 6 to 20 tokens: prompt, message, tool reply, message."""
    draw = random.Random(seed)
    rows = []
    for index in range(count):
        ids = tuple(draw.randrange(20, 250) for _ in range(draw.randrange(6, 20)))
        mask = tuple(int(2 <= at < 4 or at >= 5) for at in range(len(ids)))
        rows.append(TrainingRow(f"row{index}", ids, mask))
    return rows


def train(rows, policy, folder, settings=SETTINGS, seed=0, **options):
    """Train in `folder`; returns the summary and the metrics by step."""
    metrics: dict[int, dict[str, float]] = {}

    def note(values, step):
        metrics.setdefault(step, {}).update(values)

    summary = train_sft(
        rows, policy, folder / "out", settings, seed=seed, work=folder / "work", on_metrics=note, **options
    )
    return summary, metrics


def weights(policy: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def loss_by_hand(policy: Path, rows: list[TrainingRow]) -> float:
    """Sum of -log p over every trained token of `rows`, token by token, over their number."""
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    total, count = 0.0, 0
    for row in rows:
        with torch.no_grad():
            log_p = model(torch.tensor([row.input_ids])).logits[0].log_softmax(-1)
        for position in range(1, len(row.input_ids)):
            if row.loss_mask[position]:
                total -= log_p[position - 1, row.input_ids[position]].item()
                count += 1
    return total / count


def test_loss_is_the_mean_over_trained_tokens_from_the_first_answer_token_on(tiny_policy, tmp_path):
    """
    Cases ma-first-answer-token, ma-tool-tokens: the first step's loss is the sum over exactly the model's tokens,
    first one included and tool tokens left out, over their number: one mean across micro-batches of unequal length.
    """
    rows = make_rows(4)

    _, metrics = train(rows, tiny_policy, tmp_path)

    assert loss_by_hand(tiny_policy, rows) == pytest.approx(metrics[1]["loss"], rel=1e-4)


def test_tool_tokens_are_seen_but_not_trained(tiny_policy, tmp_path):
    """Case ma-tool-tokens: a row that differs in an untrained last token has the same loss and gives the same policy."""
    one = TrainingRow("a", (30, 31, 32, 33, 40), (0, 0, 1, 1, 0))
    other = TrainingRow("a", (30, 31, 32, 33, 99), (0, 0, 1, 1, 0))

    _, first = train([one], tiny_policy, tmp_path / "one")
    _, second = train([other], tiny_policy, tmp_path / "other")

    assert first[1]["loss"] == pytest.approx(second[1]["loss"], rel=1e-6)
    assert first[1]["grad_norm"] == pytest.approx(second[1]["grad_norm"], rel=1e-5)


def test_training_learns(tiny_policy, tmp_path):
    """The loss on rows seen many times falls well below its start."""
    rows = make_rows(8)

    summary, metrics = train(rows, tiny_policy, tmp_path, SETTINGS.model_copy(update={"epochs": 20.0}))

    assert summary["final_loss"] < 0.7 * metrics[1]["loss"]


def test_killed_run_goes_on_with_the_same_steps(tiny_policy, tmp_path):
    """
    Case tr-resume-with-base-model-in-engine, for SFT: killed with SIGKILL in mid-run and started again, the run
    continues at its last whole checkpoint; every later step has the loss and learning rate of an uninterrupted run.
    """
    settings = SETTINGS.model_copy(update={"epochs": 5.0, "scheduler": "cosine"})
    rows = make_rows(16)
    write_rows(rows, tmp_path / "rows.jsonl")
    folder = tmp_path / "killed"
    spec = {"rows": str(tmp_path / "rows.jsonl"), "policy": str(tiny_policy), "out": str(folder / "out"),
            "work": str(folder / "work"), "settings": settings.model_dump(), "seed": 0}  # fmt: skip
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    with subprocess.Popen(
        [sys.executable, "-m", "trainers.sft", str(tmp_path / "spec.json")],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line).get("step", 0) >= 5:
                os.kill(process.pid, signal.SIGKILL)
                break
    assert not (folder / "out").exists()

    summary, resumed = train(rows, tiny_policy, folder, settings)
    _, whole = train(rows, tiny_policy, tmp_path / "whole", settings)

    assert 4 <= summary["resumed_from_step"] < 20
    assert set(range(summary["resumed_from_step"] + 1, 21)) == set(resumed)
    for step, values in resumed.items():
        assert whole[step]["loss"] == pytest.approx(values["loss"], rel=1e-4)
        assert whole[step]["learning_rate"] == pytest.approx(values["learning_rate"])


def test_checkpoint_that_was_not_finished_is_skipped(tiny_policy, tmp_path):
    """A checkpoint without its marker is removed and the one before it is used."""
    rows = make_rows(16)
    train(rows, tiny_policy, tmp_path)
    (tmp_path / "work" / "checkpoint-4" / "whole").unlink()

    summary, metrics = train(rows, tiny_policy, tmp_path)

    assert 2 == summary["resumed_from_step"]
    assert {3, 4} == set(metrics)


def test_finished_run_takes_no_step_again(tiny_policy, tmp_path):
    """Called again after its last step, training writes the same policy, with the counts and the seconds of the whole."""
    rows = make_rows(16)
    first, _ = train(rows, tiny_policy, tmp_path)
    trained = weights(tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "work" / "checkpoint-4" / "whole").write_text("1000")

    again, metrics = train(rows, tiny_policy, tmp_path)

    assert {} == metrics
    assert torch.equal(trained, weights(tmp_path / "out"))
    assert {**first, "resumed_from_step": 4, "seconds": again["seconds"]} == again
    assert 1000 < again["seconds"] < 1000 + 60


def test_diverged_weights_are_not_saved(tiny_policy, tmp_path, monkeypatch):
    """A loss that is no number stops the training, although its step is one to save after; the checkpoint before stays."""
    compute_loss = MaskedSFTTrainer.compute_loss

    def lost_at_four(trainer, *arguments, **keywords):
        return compute_loss(trainer, *arguments, **keywords) * (math.nan if trainer.state.global_step == 3 else 1.0)

    with monkeypatch.context() as patch:
        patch.setattr(MaskedSFTTrainer, "compute_loss", lost_at_four)
        with pytest.raises(DivergenceError, match=r"loss is nan at step 4: training has diverged"):
            train(make_rows(16), tiny_policy, tmp_path)
    summary, _ = train(make_rows(16), tiny_policy, tmp_path)

    assert 2 == summary["resumed_from_step"]


@pytest.mark.usefixtures("two_gpus")
def test_one_process_trains_on_one_gpu(tiny_policy, tmp_path, caplog):
    """Where it sees several, it says that it uses the first and how to use the others."""
    summary, _ = train(make_rows(4), tiny_policy, tmp_path)

    assert 1 == summary["steps"]
    assert "2 GPUs are visible" in caplog.text
    assert "accelerate launch -m trainers.sft" in caplog.text


def test_work_of_another_run_is_refused(tiny_policy, tmp_path):
    """Checkpoints of other rows or settings are not continued; the message says what to do."""
    train(make_rows(8), tiny_policy, tmp_path)

    with pytest.raises(TrainingError, match="checkpoints of another run"):
        train(make_rows(8), tiny_policy, tmp_path, SETTINGS.model_copy(update={"learning_rate": 1e-3}))


def test_trained_policy_renders_and_records_the_template_it_was_trained_with(tiny_policy, tmp_path):
    """
    Case tr-chat-template-not-saved: a changed chat template is saved with the policy, gives the token ids of training
    when loaded again, and its hash is in the record.
    """
    changed = tmp_path / "changed"
    shutil.copytree(tiny_policy, changed)
    (changed / "policy.json").unlink()
    template = changed / "chat_template.jinja"
    template.write_text("{# changed #}" + template.read_text(encoding="utf-8"), encoding="utf-8")
    dialogue = [{"role": "user", "content": "Show shops."}, {"role": "assistant", "content": "<think>a</think>b"}]

    train(make_rows(4), changed, tmp_path)

    trained, before = (AutoTokenizer.from_pretrained(folder) for folder in (tmp_path / "out", changed))
    assert before.apply_chat_template(dialogue) == trained.apply_chat_template(dialogue)
    assert check_policy(changed_record(changed)).template_hash == check_policy(tmp_path / "out").template_hash


def changed_record(policy: Path) -> Path:
    from text2sql.policy import write_policy_record

    write_policy_record(policy, "changed")
    return policy


def test_rows_that_are_too_long_are_counted(tiny_policy, tmp_path):
    """Rows over the limit are set aside and counted in the summary."""
    rows = [*make_rows(4), TrainingRow("long", (30,) * 200, (1,) * 200)]

    summary, _ = train(rows, tiny_policy, tmp_path)

    assert (4, 1) == (summary["rows"], summary["rows_too_long"])


def test_tokens_are_counted_as_often_as_they_are_trained(tiny_policy, tmp_path):
    """Two epochs: all tokens of the rows twice, and those with a loss twice."""
    rows = make_rows(6)
    summary, _ = train(rows, tiny_policy, tmp_path, SETTINGS.model_copy(update={"epochs": 2.0}))

    assert 2 * sum(len(row.input_ids) for row in rows) == summary["tokens"]
    assert 2 * sum(row.trained_tokens for row in rows) == summary["trained_tokens"]


def test_no_row_to_train_on_is_an_error(tiny_policy, tmp_path):
    """When every row is set aside, training stops with the counts and the setting to raise."""
    with pytest.raises(TrainingError, match=r"1 of 1 rows are longer than 128 tokens.*sft\.max_tokens"):
        train([TrainingRow("long", (30,) * 200, (1,) * 200)], tiny_policy, tmp_path)


def test_validation_loss_is_the_mean_over_held_out_tokens(tiny_policy, tmp_path):
    """The validation loss after the last step is what the saved policy gives, token by token."""
    held_out = make_rows(5, seed=9)

    _, metrics = train(make_rows(8), tiny_policy, tmp_path, validation=held_out)

    assert loss_by_hand(tmp_path / "out", held_out) == pytest.approx(metrics[2]["validation_loss"], rel=1e-4)


def test_command_says_what_is_wrong_without_a_traceback(tmp_path, capsys):
    """A spec that names a missing file ends with status 2 and one line."""
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"rows": str(tmp_path / "missing.jsonl"), "policy": "p", "out": "o", "work": "w"}))

    assert 2 == main([str(spec)])
    assert "missing.jsonl" in capsys.readouterr().err
