"""The attributes of operators in a graph."""

from __future__ import annotations

from torch_npu._unimplemented import not_implemented

__all__ = ["Bool", "Float", "Int", "ListInt", "Str"]

Bool = not_implemented("torchair.ge.attr.Bool")
Float = not_implemented("torchair.ge.attr.Float")
Int = not_implemented("torchair.ge.attr.Int")
ListInt = not_implemented("torchair.ge.attr.ListInt")
Str = not_implemented("torchair.ge.attr.Str")
