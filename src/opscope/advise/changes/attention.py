"""Changes of attention: another implementation of the model's own, or the fused operator where it is written out."""

from typing import TYPE_CHECKING, Final

from opscope.advise.changes.change import Change, Condition, SourceEdit, for_model, needs
from opscope.documents.advise import ChangeName

if TYPE_CHECKING:
    from opscope.advise.variant import Variant
    from opscope.advise.writer import Writer

_OFFERS_ATTENTION: Final[Condition] = (
    lambda facts: facts.attention_choices > 0,
    "no model offers a choice of attention, and has it written out",
)
_WRITES_ATTENTION: Final[Condition] = (
    lambda facts: bool(facts.written_attention),
    "no module writes attention out in a form that is known",
)


def _choose_sdpa(variant: "Variant") -> None:
    for top in variant.tops:
        if hasattr(top, "set_attn_implementation"):
            before = getattr(top.config, "_attn_implementation", None)
            top.set_attn_implementation("sdpa")
            variant.notes["attention"] = variant.notes.get("attention", 0) + (before != "sdpa")


def _took_sdpa(variant: "Variant") -> str | None:
    return None if variant.notes.get("attention") else "attention was fused already"


SDPA: Final = Change(
    name=ChangeName.SDPA,
    slots=("attention",),
    refuses=needs(_OFFERS_ATTENTION),
    edit=for_model('MODEL.set_attn_implementation("sdpa")'),
    apply=_choose_sdpa,
    took_effect=_took_sdpa,
)


def _fuse(variant: "Variant") -> None:
    from opscope.advise.attention import written_out

    for one in written_out(variant.tops):
        one.fuse(lambda: variant.notes.update(attended=1))


def _fused(variant: "Variant") -> str | None:
    from opscope.advise.changes.compiling import compiled_frames

    if variant.notes.get("attended") or compiled_frames():  # calls within what is compiled are not seen
        return None
    return "the step calls its attention with arguments that the fused form does not take, such as a mask"


def _write_fused(writer: "Writer") -> None:
    """Have each class's attention that is written out call the fused operator."""
    from opscope.advise.attention_edit import fuse_attention
    from opscope.advise.source import NotWritableError

    if not writer.places.attention:
        raise NotWritableError("the attention is not in your own source")
    for file, line in dict.fromkeys(writer.places.attention):
        fuse_attention(writer.source(file), line)


FUSED_ATTENTION: Final = Change(
    name=ChangeName.FUSED_ATTENTION,
    slots=("written attention",),
    refuses=needs(_WRITES_ATTENTION),
    edit=SourceEdit(
        (
            "y = torch.nn.functional.scaled_dot_product_attention(",
            "    q, k, v, attn_mask=..., dropout_p=p if self.training else 0.0, scale=...)  # in PLACES",
        ),
        _write_fused,
    ),
    caveat="masks are True where something is seen, and a row that sees nothing becomes NaN or zero; "
    "for a plain causal mask, is_causal=True instead",
    apply=_fuse,
    took_effect=_fused,
)
