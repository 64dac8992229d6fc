"""
ChatCodec: between texts and the token ids of a chat, so that ids are never made twice.

A trajectory grows by appending: the prompt, then in turn what the model generated (its ids are kept as they came) and
what the environment says. The chat template is rendered once per kind of message, around a placeholder; the ids of a
message are those of this frame with the text encoded in the placeholder's place. So

1. the concatenation equals the template's rendering of the whole chat, for a template that keeps every step a prefix
   of the next one (Qwen3's own drops thinking when a chat goes on; TRL's training variant of it does not);
2. text from outside (utterances, schemas, results) never becomes a control token: `<|im_end|>` in a database cell is
   encoded as eleven ordinary characters. Only the frame holds tokens that the tokenizer adds to its vocabulary.

Needs a fast tokenizer (the `tokenizers` library) and a chat template that knows the role `tool`.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from text2sql.errors import PolicyError
from text2sql.policy import resolve_policy, template_hash

_CONTENT = "\ue000"  # two characters for private use, which no template and no tool description holds
_ASSISTANT = "\ue001"


class ChatCodec:
    """
    The chat of one tokenizer. `end_of_turn` is the id that closes a message of the model, `stop_token_ids` are all ids
    that end one (end of text too). `opens_thinking`: the template itself writes <think> at the start of each message.
    """

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is a transformers fast tokenizer. Raises PolicyError when its template cannot be used."""
        from tokenizers import Tokenizer

        if not isinstance(tokenizer.chat_template, str):
            raise PolicyError("The tokenizer has no chat template; save the model's chat_template.jinja beside it.")
        self.tokenizer = tokenizer
        self._template = tokenizer.chat_template
        self.template_hash = template_hash(self._template)
        self._added: dict[str, int] = {str(token): i for i, token in tokenizer.added_tokens_decoder.items()}
        self._boundary = _boundary(self._added)
        self._markup_boundary = _boundary(str(t) for t in tokenizer.added_tokens_decoder.values() if not t.special)
        definition = json.loads(tokenizer.backend_tokenizer.to_str())
        definition.update(added_tokens=[], post_processor=None, truncation=None, padding=None)
        self._plain = Tokenizer.from_str(json.dumps(definition))
        self._prompt_frames: dict[str, str] = {}
        self._reply_frame = self._render_reply_frame()
        self.end_of_turn = self._encode(self._reply_frame, "")[0]
        stops = (self.end_of_turn, tokenizer.eos_token_id, tokenizer.pad_token_id)
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(i for i in stops if i is not None))
        opening = self._reply_frame.partition(_CONTENT)[2]
        self.opens_thinking = opening.rfind("<think>") > opening.rfind("</think>")
        self._check_plain_encoding()

    @classmethod
    def load(cls, policy: Path | str) -> "ChatCodec":
        """The codec of a model directory or of a Hugging Face model by name."""
        from transformers import AutoTokenizer

        return cls(AutoTokenizer.from_pretrained(resolve_policy(policy)))

    def prompt_ids(self, user_text: str, tools: list[dict[str, Any]] | None = None) -> list[int]:
        """A chat of one user message, with `tools` described as the template does it, up to the model's first token."""
        key = json.dumps(tools)
        if key not in self._prompt_frames:
            self._prompt_frames[key] = self._render([{"role": "user", "content": _CONTENT}], tools)
        return self._encode(self._prompt_frames[key], user_text)

    def environment_ids(self, text: str, close_turn: bool = False) -> list[int]:
        """
        `text` as a tool's reply: all ids between the model's end of turn and the first token of its next message. With
        `close_turn` they start with that end of turn, for a message that the model ended otherwise.
        """
        ids = self._encode(self._reply_frame, text)
        return ids if close_turn else ids[1:]

    def encode_model(self, text: str) -> list[int]:
        """
        A message of the model that was written by hand (scripted episodes), without end of turn: markup such as
        <tool_call> becomes its token where the tokenizer has one, control tokens are ordinary characters.
        """
        return self._ids(self._markup_boundary.split(text))

    def decode(self, ids: Sequence[int]) -> str:
        """All of `ids` as text, control tokens included."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def message_text(self, ids: Sequence[int]) -> str:
        """A message of the model as text, without the token that ended it."""
        ended = bool(ids) and ids[-1] in self.stop_token_ids
        return self.decode(ids[:-1] if ended else ids)

    def _render(self, messages: list[dict[str, str]], tools: list[dict[str, Any]] | None) -> str:
        text = self.tokenizer.apply_chat_template(
            messages, tools=tools, chat_template=self._template, add_generation_prompt=True, tokenize=False
        )
        return str(text)

    def _render_reply_frame(self) -> str:
        messages = [
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": _ASSISTANT},
            {"role": "tool", "content": _CONTENT},
        ]
        frame = self._render(messages, None).partition(_ASSISTANT)[2]
        if frame.count(_CONTENT) != 1 or not self._boundary.match(frame):
            raise PolicyError(
                f"The chat template {self.template_hash} cannot carry tool replies: expected one place for the reply's "
                f"text and a single token that ends the model's turn; rendered {frame!r}."
            )
        return frame

    def _encode(self, frame: str, content: str) -> list[int]:
        """`frame` with its added tokens as single ids, and in the placeholder's place `content` as ordinary characters."""
        before, _, after = frame.partition(_CONTENT)
        head, tail = self._boundary.split(before), self._boundary.split(after)
        return self._ids([*head[:-1], head[-1] + content + tail[0], *tail[1:]])

    def _ids(self, pieces: Sequence[str]) -> list[int]:
        """`pieces` as a split at added tokens gives them: texts at even places, added tokens at odd ones."""
        ids: list[int] = []
        for place, piece in enumerate(pieces):
            ids.extend([self._added[piece]] if place % 2 else self._plain_ids(piece))
        return ids

    def _plain_ids(self, text: str) -> list[int]:
        text = text.encode("utf-8", "replace").decode()  # half surrogate pairs are no text to a tokenizer
        return list(self._plain.encode(text, add_special_tokens=False).ids) if text else []

    def _check_plain_encoding(self) -> None:
        reserved = set(self._added.values())
        for token in self._added:
            if reserved.intersection(self._plain_ids(token)):
                raise PolicyError(f"The tokenizer cannot encode {token!r} as ordinary characters.")


def _boundary(tokens: Iterable[str]) -> re.Pattern[str]:
    """Splits a text at `tokens`, the longest first, and keeps them; a pattern that never matches when there are none."""
    alternatives = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True)))
    return re.compile(f"({alternatives})" if alternatives else "((?!))")
