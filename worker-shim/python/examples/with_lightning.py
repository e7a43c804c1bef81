"""Lightning, with all-reduces by the hub: `torchrun --nproc_per_node 2 with_lightning.py`."""

import os

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy

import phub.c10d


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5))
        self.losses = []  # of each epoch: the mean over all workers

    def training_step(self, batch, number):
        inputs, targets = batch
        loss = torch.nn.functional.cross_entropy(self.layers(inputs), targets)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self):
        self.losses.append(self.trainer.callback_metrics["loss"].item())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


lightning.seed_everything(7, verbose=False)
inputs = torch.randn(256, 20)
rows = torch.utils.data.TensorDataset(inputs, inputs[:, :5].argmax(1))
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    strategy=DDPStrategy(process_group_backend="phub"),
    max_epochs=15,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = Classifier()
trainer.fit(model, torch.utils.data.DataLoader(rows, batch_size=32))
if trainer.global_rank == 0:
    for epoch in (0, 14):
        print(f"epoch {epoch}: loss {model.losses[epoch]:.4f}")
weights = sum(each.detach().double().sum().item() for each in model.parameters())
print(f"rank {trainer.global_rank}: weights {weights!r}, calls {phub.c10d.counts()}\n", end="", flush=True)
torch.distributed.destroy_process_group()
