"""A model that llama.cpp has loaded: its weights, its vocabulary, its chat template.

A `ModelFile` goes in; tokens, pieces of text and llama.cpp's pointer come out. Nothing here
evaluates a token.
"""

import ctypes
import os
from collections.abc import Iterable, Sequence

from tracekit.trace.errors import TracekitError, UsageError
from tracekit_engine import binding, interrupts
from tracekit_engine.mapped import OpenFiles
from tracekit_engine.model_file import ModelFile


class Model:
    """A model whose weights are mapped into memory, on the CPU; closed with `close`.

    Parameters
    ----------
    file : ModelFile
    n_expert_used : int, optional
        Experts that a token selects, instead of the model's own number.
    weights : bool
        False leaves the weights out. Nothing can then be evaluated, but a context can be made, to
        find out whether one can be.

    Raises
    ------
    TracekitError
        llama.cpp cannot load the model; the sentence gives its reason.
    UsageError
        `n_expert_used` is out of range.
    """

    def __init__(self, file: ModelFile, n_expert_used: int | None = None, weights: bool = True):
        llama = binding.load()
        self.file = file
        binding.log().clear()
        llama.llama_backend_init()
        params = llama.llama_model_default_params()
        no_devices = (ctypes.c_void_p * 1)(None)
        binding.set_fields(
            params,
            devices=ctypes.cast(no_devices, ctypes.c_void_p),
            n_gpu_layers=0,
            load_mode=llama.LLAMA_LOAD_MODE_MMAP if weights else llama.LLAMA_LOAD_MODE_NONE,
            no_alloc=not weights,
            lazy_mode=llama.LLAMA_LAZY_MODE_OFF,
            use_extra_bufts=False,  # these would repack weights, unlike the file
        )
        if n_expert_used is not None:
            overrides = self._override_top_k(n_expert_used)
            binding.set_fields(params, kv_overrides=overrides)
        self._pointer: int | None = None
        self.files = OpenFiles(file.paths, file.needed_bytes)

        def load() -> None:
            with self.files.mapping():
                self._pointer = llama.llama_model_load_from_file(os.fsencode(file.paths[0]), params)

        try:
            with interrupts.counted() as ctrl_c:
                go_on = llama.llama_progress_callback(lambda _share, _data: not ctrl_c.must_stop)
                binding.set_fields(params, progress_callback=go_on)
                binding.guarded(load)
            self.files.check_names()
        except (KeyboardInterrupt, TracekitError):
            self.close()
            raise
        except binding.AbortError as failed:
            self._close_unchanged()
            if "LLAMA_MAX_EXPERTS" in str(failed):
                raise TracekitError(
                    f"{file.paths[0]} has {file.n_expert:,} experts in a layer, more than this "
                    f"llama.cpp takes (llama-cpp-python {binding.version()}); it needs one that was "
                    "built for more."
                ) from failed
            raise TracekitError(f"llama.cpp cannot load {file.paths[0]}: {failed}.") from failed
        if not self._pointer:
            self._close_unchanged()
            raise TracekitError(
                f"llama.cpp cannot load {file.paths[0]}: {binding.log().first_error()}."
            )

    def _close_unchanged(self) -> None:
        """Close the files; if they changed, that is why they cannot be loaded: say so."""
        try:
            self.files.check()
        finally:
            self.files.close()

    def _override_top_k(self, n_expert_used: int) -> "ctypes.Array[ctypes.Structure]":
        if not 1 <= n_expert_used <= self.file.n_expert:
            raise UsageError(
                f"--n-expert-used takes a whole number from 1 to {self.file.n_expert}, the model's "
                f"number of experts, not {n_expert_used}."
            )
        llama = binding.load()
        # llama.cpp reads the list up to an empty key, which is the second here.
        overrides: ctypes.Array[ctypes.Structure] = (llama.llama_model_kv_override * 2)()
        overrides[0].tag = llama.LLAMA_KV_OVERRIDE_TYPE_INT
        overrides[0].key = f"{self.file.arch}.expert_used_count".encode()
        overrides[0].value.val_i64 = n_expert_used
        return overrides

    @property
    def pointer(self) -> int:
        """Address of llama.cpp's model; ValueError once the model is closed."""
        if not self._pointer:
            raise ValueError("the model is closed")
        return self._pointer

    @property
    def _vocab(self) -> int:
        return int(binding.load().llama_model_get_vocab(self.pointer))

    @property
    def n_vocab(self) -> int:
        """Number of tokens in the vocabulary."""
        return int(binding.load().llama_vocab_n_tokens(self._vocab))

    @property
    def n_layer(self) -> int:
        """Number of layers that run."""
        return int(binding.load().llama_model_n_layer(self.pointer))

    @property
    def n_ctx_train(self) -> int:
        """Context length the model was trained for, in tokens."""
        return ctypes.c_uint32(binding.load().llama_model_n_ctx_train(self.pointer)).value

    @property
    def first_token(self) -> int:
        """A token to begin with: the one that begins a text, else the first of the vocabulary."""
        return max(0, int(binding.load().llama_vocab_bos(self._vocab)))

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text, with those that the model adds around every text.

        ``<|…|>`` in the text is the token of that name, as in llama.cpp's own programs.

        Raises
        ------
        TracekitError
            llama.cpp cannot split the text.
        """
        data = text.encode()
        size = len(data) + 8
        tokens = (ctypes.c_int32 * size)()
        llama = binding.load()
        count = llama.llama_tokenize(self._vocab, data, len(data), tokens, size, True, True)
        if count < 0:
            raise TracekitError(
                f"llama.cpp cannot split a text of {len(data):,} bytes into tokens."
            )
        return list(tokens[:count])

    def check_tokens(self, tokens: Iterable[int]) -> None:
        """Raise ValueError if a number is not a token of the vocabulary."""
        count = self.n_vocab
        for token in tokens:
            if not 0 <= token < count:
                raise ValueError(f"{token} is not a token: they go from 0 to {count - 1:,}")

    def piece(self, token: int) -> bytes:
        """Return a token's bytes; a control token has its name."""
        self.check_tokens([token])
        llama = binding.load()
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = llama.llama_token_to_piece(self._vocab, token, buffer, size, 0, True)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def ends_text(self, token: int) -> bool:
        """Return whether the model ends a text, or its turn in a chat, with this token."""
        self.check_tokens([token])
        return bool(binding.load().llama_vocab_is_eog(self._vocab, token))

    def chat_prompt(self, messages: Sequence[tuple[str, str]]) -> str:
        """Return the text that the model's chat template makes of (role, content) messages.

        Raises
        ------
        TracekitError
            The model carries no chat template, or one that llama.cpp does not know.
        """
        llama = binding.load()
        template = llama.llama_model_chat_template(self.pointer, None)
        if not template:
            raise TracekitError(
                f"{self.file.paths[0]} carries no chat template; leave --chat away."
            )
        chat = (llama.llama_chat_message * len(messages))()
        for slot, (role, content) in zip(chat, messages, strict=True):
            slot.role, slot.content = role.encode(), content.encode()
        size = 1024
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = llama.llama_chat_apply_template(
                template, chat, len(messages), True, buffer, size
            )
            if count < 0:
                raise TracekitError(
                    "llama.cpp does not know this model's chat template; leave --chat away and "
                    "write the template's text into the prompt."
                )
            if count <= size:
                return buffer.raw[:count].decode("utf-8", "replace")
            size = count

    def close(self) -> None:
        """Free the model and close its files."""
        self.files.release()
        pointer, self._pointer = self._pointer, None
        if pointer:
            binding.load().llama_model_free(pointer)
        self.files.close()
