"""A small language model with Hugging Face's Trainer and the hub: `torchrun --nproc_per_node 2 with_transformers.py`."""

import tempfile

import torch
import transformers

import phub.c10d

torch.distributed.init_process_group("phub")  # the Trainer uses the process group that is there
torch.manual_seed(7)
letters = torch.tensor(list(("the hub sums what the workers push, and sends them weights. " * 60).encode()))
rows = [{"input_ids": piece, "labels": piece} for piece in letters[: len(letters) // 32 * 32].view(-1, 32)]
config = transformers.GPT2Config(vocab_size=128, n_positions=32, n_embd=32, n_layer=2, n_head=2)
with tempfile.TemporaryDirectory() as directory:
    arguments = transformers.TrainingArguments(
        directory,
        use_cpu=True,
        max_steps=40,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(transformers.GPT2LMHeadModel(config), arguments, train_dataset=rows)
    trainer.train()
if trainer.is_world_process_zero():
    for entry in trainer.state.log_history:
        if "loss" in entry:
            print(f"step {entry['step']}: loss {float(entry['loss']):.4f}")
weights = sum(each.detach().double().sum().item() for each in trainer.model.parameters())
print(f"rank {arguments.process_index}: weights {weights!r}, calls {phub.c10d.counts()}\n", end="", flush=True)
torch.distributed.destroy_process_group()
