"""What can be refused before any worker starts: without torch, and without a network.

A launcher calls it in place of the workers, and each worker before it imports torch. `loop.run` checks all of it again,
and what only a worker can know: its device, the text, the store's content.
"""

from __future__ import annotations

from holdfast.checkpoint.stores.opening import check_place, open_store
from holdfast.trainer.data.documents import check_folder
from holdfast.trainer.modules.look import look
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.layout import plan, vocab_of


def check_job(config: Config, world: int, here: bool = True) -> None:
    """Raise UsageError, of which ConfigError is one, for settings that cannot work on `world` ranks.

    `here`: whether the ranks see this host's folders.
    """
    plan(config, world, vocab_of(config.data.tokenizer))
    if config.checkpoint.store:
        open_store(config.checkpoint.store)
    if here:
        check_folder(config.data)
        if config.checkpoint.store:
            check_place(config.checkpoint.store)


def check_module(config: Config, world: int) -> None:
    """For a launcher alone: raise ConfigError for a module of the user's that cannot be trained on `world` ranks.

    It is built and traced in another process, which takes seconds. Workers find the same before they meet.
    """
    if config.module.build:
        look(config, plan(config, world, vocab_of(config.data.tokenizer)).stages)
