"""Un-share an ALBERT inside ordinary transformers code: one line in `model_init`, everything else stays stock.

Run it: python examples/unshare_in_trainer.py        (CPU, well under a minute)

It fine-tunes the small Chinese ALBERT that thrice carries on two dozen reviews, once as published (one layer, called
four times) and once un-shared (four layers that start equal). So few texts say nothing about which is better - `thrice
compare` is for that - but they show every step: same outputs at the start, four different layers at the end, and a
saved folder that loads in stock transformers without thrice.
"""

from __future__ import annotations

import importlib.resources
import tempfile
from pathlib import Path

import torch
from transformers import (
    AlbertForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)
from transformers.utils import logging

import thrice

# Written for this example. 1 = liked it, 0 = did not.
TRAIN = [
    ("房间干净，服务热情，下次还会来。", 1),
    ("送货很快，包装完好，非常满意。", 1),
    ("这本书写得真好，一口气读完了。", 1),
    ("屏幕清晰，用起来很流畅，喜欢。", 1),
    ("早餐丰富，位置方便，性价比高。", 1),
    ("孩子特别喜欢，质量也不错。", 1),
    ("客服耐心，问题很快就解决了。", 1),
    ("味道很香，分量也足，推荐。", 1),
    ("音质出色，戴着舒服，值得买。", 1),
    ("故事感人，演员也很用心。", 1),
    ("颜色漂亮，大小合适，穿着舒服。", 1),
    ("安静又舒适，睡得很好。", 1),
    ("房间很脏，隔音太差，不会再来。", 0),
    ("等了半个月才送到，盒子还破了。", 0),
    ("内容空洞，浪费时间，很失望。", 0),
    ("用了两天就坏了，质量太差。", 0),
    ("早餐难吃，服务员态度恶劣。", 0),
    ("和图片完全不一样，要求退货。", 0),
    ("打了三次电话都没有人管。", 0),
    ("又贵又难吃，再也不点了。", 0),
    ("杂音很大，戴一会儿耳朵就疼。", 0),
    ("剧情无聊，看到一半就走了。", 0),
    ("掉色严重，洗一次就不能穿了。", 0),
    ("楼下太吵，整晚没有睡着。", 0),
]
TEST = [
    ("服务很好，房间也很舒适。", 1),
    ("质量不错，价格便宜，满意。", 1),
    ("很好看，推荐给大家。", 1),
    ("方便快捷，会再来买。", 1),
    ("质量很差，刚买就坏了。", 0),
    ("态度太差，非常失望。", 0),
    ("难吃，不推荐。", 0),
    ("太吵了，房间又脏又旧。", 0),
]

# Any ALBERT will do here: this folder, or a hub id such as "albert/albert-base-v2".
CHECKPOINT = str(importlib.resources.files("thrice.zoo") / "albert-nano-zh")


def shared_model() -> AlbertForSequenceClassification:
    """The published way: one stored layer, called four times."""
    # The file holds float16 to be small; training wants float32.
    return AlbertForSequenceClassification.from_pretrained(CHECKPOINT, dtype=torch.float32)


def unshared_model() -> AlbertForSequenceClassification:
    """The one line. It belongs here, in `model_init`: Trainer calls this first and builds its optimiser afterwards.

    Un-sharing later would leave the optimiser with the parameters of the first layer alone. Without `model_init` the
    rule is the same: `Trainer(model=thrice.unshare(model), ...)`.
    """
    return thrice.unshare(shared_model())


def show_that_nothing_changed_yet(tokenizer) -> None:
    """The same weights, so the same outputs to the last bit, and the same object."""
    model = shared_model().eval()
    batch = tokenizer([text for text, _ in TEST], padding=True, return_tensors="pt")
    with torch.no_grad():
        before = model(**batch).logits
        same_object = thrice.unshare(model) is model
        after = model(**batch).logits
    print(f"un-shared in place: {same_object}; largest difference of the logits: {(before - after).abs().max():.0f}")


def fine_tune(model_init, tokenizer, folder: Path) -> Trainer:
    """Ordinary Trainer code; it knows nothing of thrice."""

    def rows(reviews):
        return [{**tokenizer(text), "labels": label} for text, label in reviews]

    trainer = Trainer(
        model_init=model_init,
        args=TrainingArguments(
            output_dir=str(folder / "run"),
            num_train_epochs=15,
            per_device_train_batch_size=8,
            learning_rate=3e-4,
            seed=1,  # set before model_init is called: both arms start with the same classifier
            use_cpu=True,
            dataloader_pin_memory=False,
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
            save_strategy="no",
        ),
        train_dataset=rows(TRAIN),
        eval_dataset=rows(TEST),
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())},
    )
    trainer.remove_callback(PrinterCallback)  # this file prints its own lines
    trainer.train()
    return trainer


def main() -> None:
    """Fine-tune both, print what they cost and what happened to the layers, save the un-shared one."""
    # Stock code reports that the classifier is new and that the masked-language head is not used; both are meant.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    show_that_nothing_changed_yet(tokenizer)

    with tempfile.TemporaryDirectory() as folder:
        for name, model_init in (("shared", shared_model), ("un-shared", unshared_model)):
            trainer = fine_tune(model_init, tokenizer, Path(folder))
            model, result = trainer.model, trainer.evaluate()
            layers = [group.albert_layers[0].ffn.weight for group in model.albert.encoder.albert_layer_groups]
            print(
                f"{name:>9}: {model.num_parameters():,} stored parameters, stored layers: {len(layers)}, "
                f"{result['eval_accuracy'] * len(TEST):.0f} of {len(TEST)} held-out reviews right"
            )
            # How far each layer has moved away from the first: 0 at the start, and for ever if they were still tied.
            apart = [f"{(layer - layers[0]).norm():.3f}" for layer in layers[1:]]
            print(f"{'':>9}  distance of the later layers from the first: {', '.join(apart) or 'there are none'}")

        out = Path(folder) / "unshared-albert"
        trainer.save_model(str(out))
        again = AlbertForSequenceClassification.from_pretrained(out).eval()
        batch = tokenizer([text for text, _ in TEST], padding=True, return_tensors="pt")
        with torch.no_grad():
            difference = (again(**batch).logits - trainer.model.eval()(**batch).logits).abs().max()
        print(
            f"saved, and loaded by stock transformers: num_hidden_groups = {again.config.num_hidden_groups}, "
            f"largest difference of the logits {difference:.1e}, {(out / 'model.safetensors').stat().st_size:,} bytes"
        )


if __name__ == "__main__":
    main()
